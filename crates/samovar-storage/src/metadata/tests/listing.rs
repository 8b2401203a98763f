//! Lists, logs, realisations and backups.

use super::super::*;
use super::*;

#[test]
fn overviews_list_what_was_published() {
    with_each(|database| {
        let world = world(database);
        let World { cache, .. } = world;
        world.publish(&[&[world.path(1, &[]), world.path(2, &[1]), world.path(3, &[2])]]);
        let recent = overview::recent(database, cache, &|_| true, 2).unwrap();
        let recent: Vec<_> = recent.into_iter().map(|recent| recent.path).collect();
        assert_eq!(recent, [store_path(3), store_path(2)]);
        let pushes = overview::recent_pushes(database, cache, 10, 10).unwrap();
        assert_eq!((pushes.len(), pushes[0].other_count), (1, 2));
        let named = overview::named(database, cache, 0, &|name| name == "p2").unwrap();
        assert_eq!((named.found.len(), named.next), (1, None));
        let details = overview::details(database, cache, store_path(2).hash_part());
        let details = details.unwrap().unwrap();
        assert_eq!(details.referrers, [store_path(3)]);
        let size = ClosureSize {
            path_count: 2,
            nar_size: 30,
        };
        assert_eq!(details.closure, Some(size));
        assert_eq!(check::paths_after(database, 0, 10).unwrap().len(), 3);
        assert_eq!(check::newest_nars(database, 2).unwrap().len(), 2);
        assert_eq!(check::newest_paths(database, cache, 2).unwrap().len(), 2);
        check::small_tables(database).unwrap();
        let minute = Duration::from_secs(60);
        assert_eq!(
            check::faults_within(database, minute, 5).unwrap(),
            (vec![], true)
        );
        let summary = &caches::all(database).unwrap()[0];
        assert_eq!((&*summary.name, summary.path_count), ("main", 3));
        assert_eq!(summary.uploaded_at, Some(START));
        assert_eq!(caches::path_count(database, cache).unwrap(), 3);
        assert_eq!(caches::own_nars(database, "main").unwrap().file_bytes, 6);
        assert_eq!(limits::file_bytes(database, cache).unwrap(), 6);
        assert_eq!(caches::names(database).unwrap(), ["main"]);
        assert_eq!(caches::mirrored(database).unwrap().unwrap().id, cache);
        assert_eq!(caches::find(database, "main").unwrap().unwrap().id, cache);
        let of_path = caches::of_path(database, store_path(1).hash_part()).unwrap();
        assert_eq!(of_path.as_deref(), Some("main"));
        assert_eq!(check::wrong_totals(database, true).unwrap(), [""; 0]);
    });
}

#[test]
fn logs_and_realisations_are_recorded() {
    with_each(|database| {
        let world = world(database);
        let World { cache, token, .. } = world;
        world.publish(&[&[world.path(1, &[])]]);
        let log = |name: &str, size| LogFile {
            name: name.to_owned(),
            size,
            uploaded_at: START,
        };
        let drv = format!("{}-x.drv", store_path(8).hash_part());
        let record = |log: &LogFile| extras::record_log(database, cache, token, log, NO_LIMIT);
        assert_eq!(record(&log(&drv, 5)).unwrap(), Recorded::Kept);
        assert_eq!(record(&log(&drv, 7)).unwrap(), Recorded::Kept);
        extras::compare_logs(database, cache, &[log(&drv, 7), log("other", 1)], 0).unwrap();
        let new = |output: u8, key: &str| NewRealisation {
            key: format!("realisations/sha256:{key}"),
            key_prefix: "realisations/sha256:".to_owned(),
            derivation: None,
            out_path: store_path(output),
            is_elsewhere: output >= 200,
            body: format!("{{\"outPath\":\"{}\"}}", store_path(output)),
            signatures: vec![signature(1)],
        };
        let record = |new: &NewRealisation| {
            extras::record_realisation(database, cache, token, new, NO_LIMIT)
        };
        assert_eq!(record(&new(1, "a!out")).unwrap(), Recorded::Kept);
        assert_eq!(record(&new(1, "a!out")).unwrap(), Recorded::Kept);
        assert_eq!(record(&new(200, "a!out")).unwrap(), Recorded::Conflict);
        assert_eq!(record(&new(7, "b!out")).unwrap(), Recorded::MissingOutput);
        assert_eq!(record(&new(201, "c!out")).unwrap(), Recorded::Kept);
        let found = extras::realisation(database, cache, "realisations/sha256:a!out").unwrap();
        assert!(found.unwrap().is_of_cache);
        assert_eq!(extras::realisation_keys(database, cache).unwrap().len(), 2);
        world.check_totals();
        let mut without_path = extras::without_path(database, START).unwrap();
        without_path.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<&str> = without_path.iter().map(|extra| &*extra.name).collect();
        assert_eq!(names, ["", "p201", "x"]);
        let mut keys = 0;
        let mut remove = |_: &str| {
            keys += 1;
            Ok(())
        };
        let deleted = extras::delete(database, &without_path, START, &mut remove).unwrap();
        assert_eq!((deleted.len(), keys), (3, 3));
        world.check_totals();
    });
}

#[test]
fn backups_are_restored() {
    let backup = std::cell::RefCell::new(Vec::new());
    with_each(|database| {
        let world = world(database);
        assert_eq!(backup::today(database), "2001-09-09");
        world.publish(&[&[world.path(1, &[])]]);
        let other = caches::add(database, "other", "/nix/store").unwrap();
        let mut path = world.path(1, &[]);
        path.cache = other;
        world.publish(&[&[path]]);
        let pin = NewPin {
            cache: "main".to_owned(),
            name: "prod".parse().unwrap(),
            hash_part: store_path(1).hash_part(),
            keep: None,
            expires_at: None,
            token: None,
            host: None,
            message: None,
            condition: Condition::default(),
        };
        pins::add(database, &pin).unwrap();
        let state = backup::state(database).unwrap();
        let mut lines = Vec::new();
        let mut write = |line: &str| {
            lines.push(line.to_owned());
            Ok(())
        };
        assert!(backup::dump(database, &mut write).unwrap().is_none());
        assert_eq!(lines.len(), 6, "{lines:?}");
        assert!(!backup::lacks_any(database, &lines).unwrap());
        assert_eq!(backup::mirrored_cache(&lines).as_deref(), Some("main"));
        assert_eq!(backup::narinfos(&lines).unwrap().len(), 1);
        // A backup of one engine is restored in the other.
        backup::restore(database, &backup.borrow()).unwrap();
        backup::restore(database, &lines).unwrap();
        tokens::revoke(database, "ci").unwrap();
        assert_ne!(backup::state(database).unwrap(), state);
        backup.replace(lines);
    });
}
