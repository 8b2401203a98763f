//! Deletes paths and NARs, and keeps those that are used or pinned.

use super::super::*;
use super::*;

#[test]
fn the_collector_deletes_what_nothing_needs() {
    with_each(|database| {
        let world = world(database);
        world.publish(&[
            &[world.path(1, &[]), world.path(2, &[1])],
            &[world.path(3, &[])],
        ]);
        let graph = collect::graph(database, &|_, _| None).unwrap();
        assert_eq!(graph.paths.len(), 3);
        assert_eq!(graph.references(1).collect::<Vec<_>>(), [0]);
        let ids: Vec<i64> = graph.paths.iter().map(|path| path.id).collect();
        assert_eq!(
            collect::store_path(database, ids[1]).unwrap(),
            Some(store_path(2))
        );
        collect::condemn_paths(database, &ids, true).unwrap();
        assert!(collect::confirm(database, 10).unwrap());
        // A use revives.
        assert!(world.find(3).is_some());
        let mut condemned = collect::condemned_paths(database, clock()).unwrap();
        assert_eq!(condemned, [ids[1], ids[0]]);
        condemned.reverse();
        let mut removed = Vec::new();
        let mut remove = |key: &str| {
            removed.push(key.to_owned());
            Ok(())
        };
        let deleted = collect::delete_paths(database, &condemned, clock(), &mut remove).unwrap();
        // The reference is still needed when it is tried first.
        assert_eq!(deleted, [(world.cache, store_path(2).hash_part())]);
        let deleted = collect::delete_paths(database, &condemned, clock(), &mut remove).unwrap();
        assert_eq!(deleted, [(world.cache, store_path(1).hash_part())]);
        assert_eq!(removed.len(), 2);
        CLOCK.fetch_add(1, Ordering::Relaxed);
        let loose = collect::loose_nars(database, START, None).unwrap();
        assert_eq!(loose.len(), 2);
        assert_eq!(collect::condemn_nars(database, &loose, START).unwrap(), 2);
        collect::confirm(database, 1).unwrap();
        collect::confirm(database, 1).unwrap();
        let loose = collect::loose_nars(database, START, Some(clock())).unwrap();
        let deleted = collect::delete_nars(database, &loose, START, clock()).unwrap();
        assert_eq!(deleted.iter().sum::<u64>(), 3);
        let garbage = collect::garbage(database).unwrap();
        assert_eq!(garbage.len(), 2);
        assert!(!check::is_orphan(database, &garbage[0]).unwrap());
        collect::set_removed(database, &garbage).unwrap();
        collect::free_keys(database, clock()).unwrap();
        assert!(!nars::is_garbage(database, &garbage[0]).unwrap());
        let orphans = ["nar/x".to_owned(), "nar/3.nar.zst".to_owned()];
        assert_eq!(check::discard(database, &orphans).unwrap(), ["nar/x"]);
        totals::set_collected(database).unwrap();
        let totals = totals::read(database).unwrap();
        assert_eq!(
            (totals.nar_count, totals.loose_count, totals.file_bytes),
            (1, 0, 3)
        );
        assert_eq!(totals.collected_at, Some(clock()));
        world.check_totals();
    });
}

#[test]
fn paths_are_deleted_with_what_needs_them() {
    with_each(|database| {
        let world = world(database);
        world.publish(&[&[
            world.path(1, &[]),
            world.path(2, &[1]),
            world.path(3, &[2, 1]),
            world.path(4, &[1]),
            world.path(5, &[4]),
        ]]);
        let mut ids: Vec<i64> = [1, 2, 3, 4]
            .map(|number| world.find(number).unwrap().id)
            .into();
        collect::condemn_paths(database, &ids, true).unwrap();
        assert!(collect::confirm(database, 10).unwrap());
        ids.reverse();
        let deleted =
            collect::delete_paths(database, &ids, clock(), &mut |_: &str| Ok(())).unwrap();
        let mut deleted: Vec<HashPart> = deleted.into_iter().map(|(_, key)| key).collect();
        deleted.sort();
        // Path 5 needs 4, which needs 1.
        assert_eq!(deleted, [2, 3].map(|number| store_path(number).hash_part()));
        assert_eq!(world.find(5).unwrap().references, [store_path(4)]);
        assert_eq!(
            world.find(4).unwrap().references,
            [store_path(1), store_path(4)]
        );
        world.check_totals();
    });
}

#[test]
fn uses_are_recorded() {
    with_each(|database| {
        let world = world(database);
        world.publish(&[&[world.path(1, &[]), world.path(2, &[]), world.path(3, &[])]]);
        CLOCK.fetch_add(USE_INTERVAL, Ordering::Relaxed);
        let [one, two, three] = [1, 2, 3].map(|number| world.find(number).unwrap());
        collect::condemn_paths(database, &[three.id], true).unwrap();
        let mut uses = Uses::default();
        uses.paths.extend([one.id, three.id]);
        uses.nars.insert((world.cache, two.nar.id));
        uses::record(database, &uses).unwrap();
        for number in [1, 2, 3] {
            let peeked = paths::peek(database, world.cache, store_path(number).hash_part());
            assert_eq!(peeked.unwrap().unwrap().used_at, clock());
        }
        assert_eq!(totals::read(database).unwrap().condemned_count, 0);
    });
}

#[test]
fn pins_have_generations() {
    with_each(|database| {
        let world = world(database);
        world.publish(&[&[world.path(1, &[]), world.path(2, &[])]]);
        let pin = |number: u8, keep| NewPin {
            cache: "main".to_owned(),
            name: "prod".parse().unwrap(),
            hash_part: store_path(number).hash_part(),
            keep,
            expires_at: Some(START + 100),
            token: Some(world.token),
            host: None,
            message: Some("why".parse().unwrap()),
            condition: Condition::default(),
        };
        let added = |number, keep| match pins::add(database, &pin(number, keep)).unwrap() {
            Pinned::Done(pin) => pin,
            other => panic!("{other:?}"),
        };
        let first = added(1, None);
        let second = added(2, None);
        assert_eq!((first.generation, second.generation), (1, 2));
        assert_eq!(
            (&first.lineage, first.token.as_deref()),
            (&second.lineage, Some("ci"))
        );
        assert_eq!(added(2, None), second);
        assert_eq!(
            pins::all(database).unwrap(),
            [second.clone(), first.clone()]
        );
        assert_eq!(added(1, Some(2)).generation, 3);
        let name = "prod".parse().unwrap();
        let generations = pins::generations(database, world.cache, &name, 3, 10).unwrap();
        assert_eq!(generations, std::slice::from_ref(&second));
        let lineages = pins::lineages(database, world.cache, &name, 3, 10).unwrap();
        assert_eq!(lineages, [second.version()]);
        assert_eq!(
            pins::newest(database, world.cache).unwrap()[0].generation,
            3
        );
        assert_eq!(
            pins::newest_generations(database, world.cache).unwrap()["prod"],
            3
        );
        let id = world.find(1).unwrap().id;
        collect::condemn_paths(database, &[id], true).unwrap();
        collect::confirm(database, 10).unwrap();
        let deleted =
            collect::delete_paths(database, &[id], clock(), &mut |_: &str| Ok(())).unwrap();
        assert_eq!(deleted, []);
        let unpin = Unpin {
            cache: world.cache,
            name: name.clone(),
            generation: Some(3),
            token: world.token,
            condition: Condition::default(),
        };
        assert_eq!(pins::unpin(database, &unpin).unwrap(), Unpinned::Done(1));
        assert_eq!(added(1, None).generation, 4);
        CLOCK.fetch_add(100, Ordering::Relaxed);
        assert_eq!(pins::remove_expired(database).unwrap(), 2);
        let last = NewPin {
            expires_at: None,
            ..pin(1, None)
        };
        let Pinned::Done(last) = pins::add(database, &last).unwrap() else {
            panic!("not pinned")
        };
        assert_eq!(last.generation, 5);
        assert_ne!(last.lineage, first.lineage);
        let details = overview::details(database, world.cache, store_path(1).hash_part());
        let details = details.unwrap().unwrap();
        assert_eq!(details.pins, [("prod".to_owned(), 5)]);
        assert_eq!(pins::remove(database, "main", "prod").unwrap(), 1);
    });
}
