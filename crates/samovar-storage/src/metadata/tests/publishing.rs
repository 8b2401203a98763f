//! Publishes paths, and the NARs before.

use super::super::*;
use super::*;

#[test]
fn a_closure_is_published_and_found() {
    with_each(|database| {
        let world = world(database);
        let group = [
            world.path(1, &[]),
            world.path(2, &[1, 200]),
            world.path(3, &[1, 2]),
        ];
        assert_eq!(
            world.publish(&[&group]),
            [[Published::New, Published::New, Published::New]]
        );
        let found = world.find(2).unwrap();
        assert_eq!(found.path, store_path(2));
        let mut references = [store_path(1), store_path(2), store_path(200)];
        references.sort();
        assert_eq!(found.references, references);
        assert_eq!((found.nar.nar_size, found.nar.file_size), (20, 2));
        assert_eq!(found.signatures, [signature(2)]);
        assert_eq!((found.registered_at, found.used_at), (START, START));
        // References have smaller row numbers, and look-ups give what single ones give.
        let parts: Vec<_> = [3, 9, 1, 2, 3]
            .map(|number| store_path(number).hash_part())
            .into();
        let all = paths::find_all(database, world.cache, &parts).unwrap();
        let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
        assert_eq!(
            all,
            [
                world.find(3),
                None,
                world.find(1),
                world.find(2),
                world.find(3)
            ]
        );
        let id = |index: usize| all[index].as_ref().unwrap().id;
        assert!(id(2) < id(3) && id(3) < id(0));
        let of_nar = paths::of_nar(database, world.cache, found.nar.id).unwrap();
        assert_eq!(of_nar, [store_path(2).hash_part()]);
        let outer = paths::outer_references(database, world.cache).unwrap();
        assert_eq!(outer, [store_path(200).hash_part()]);
        assert_eq!(paths::hash_parts(database).unwrap().len(), 3);
        let deriver = found.deriver.unwrap();
        assert_eq!(
            paths::of_deriver(database, world.cache, &deriver)
                .unwrap()
                .len(),
            3
        );
        assert!(paths::exists(database, world.cache, parts[0]).unwrap());
        assert!(
            paths::peek(database, world.cache, parts[1])
                .unwrap()
                .is_none()
        );
        world.check_totals();
    });
}

#[test]
fn a_group_is_published_as_a_whole_or_not_at_all() {
    with_each(|database| {
        let world = world(database);
        let good = [world.path(1, &[])];
        let bad = [world.path(2, &[1]), world.path(3, &[2, 77])];
        let after = [world.path(4, &[2])];
        let outcomes = world.publish(&[&good, &bad, &after]);
        let missing = |number| Published::MissingReferences(vec![store_path(number)]);
        assert_eq!(outcomes[0], [Published::New]);
        assert_eq!(outcomes[1], [Published::New, missing(77)]);
        assert_eq!(outcomes[2], [missing(2)]);
        assert!(world.find(1).is_some() && world.find(2).is_none() && world.find(4).is_none());
        // The same path twice in one batch: its signatures are joined, unless the group fails.
        let mut again = world.path(5, &[1]);
        again.signatures = vec![signature(50)];
        let mut undone = again.clone();
        undone.signatures = vec![signature(51)];
        let outcomes = world.publish(&[
            &[world.path(5, &[1])],
            &[again],
            &[undone, world.path(6, &[77])],
        ]);
        assert_eq!(outcomes[0], [Published::New]);
        assert_eq!(outcomes[1], [Published::Known]);
        assert_eq!(outcomes[2], [Published::Known, missing(77)]);
        assert_eq!(
            world.find(5).unwrap().signatures,
            [signature(5), signature(50)]
        );
        world.check_totals();
    });
}

#[test]
fn what_may_not_be_published_is_refused() {
    with_each(|database| {
        let world = world(database);
        world.publish(&[&[world.path(1, &[])]]);
        // Another NAR, and another name.
        let mut other_nar = world.path(1, &[]);
        other_nar.nar_id = world.nar(2);
        assert_eq!(
            world.publish(&[&[other_nar.clone()]]),
            [[Published::Conflict]]
        );
        let mut other_name = world.path(1, &[]);
        let base_name = format!("{}-other", store_path(1).hash_part());
        other_name.path = StorePath::from_base_name(&base_name).unwrap();
        assert_eq!(
            world.publish(&[&[other_name]]),
            [[Published::OtherPath(store_path(1))]]
        );
        // A lost NAR is replaced.
        let first = world.find(1).unwrap().nar.id;
        let mut nothing = |_: &str| Ok(());
        assert!(check::set_lost(database, first, true, &mut || Ok(true), &mut nothing).unwrap());
        assert!(world.find(1).is_none());
        assert_eq!(world.publish(&[&[other_nar.clone()]]), [[Published::Known]]);
        assert_eq!(world.find(1).unwrap().nar.id, other_nar.nar_id);
        let mut lost = world.path(3, &[]);
        lost.nar_id = 1_000_000;
        assert_eq!(world.publish(&[&[lost]]), [[Published::MissingNar]]);
        world.check_totals();
        // Limits, tokens, caches.
        let mut large = world.path(4, &[]);
        large.limit.extra_max = OWN_LEN + 100;
        let used = OWN_LEN + signature(1).to_string().len() as u64;
        assert_eq!(
            world.publish(&[&[large]]),
            [[Published::OverLimit { used }]]
        );
        let names = Glob::new("q*");
        let restricted = new_token("mr", Some("q*"));
        let restricted = tokens::add(database, &TokenHash([2; 32]), &restricted).unwrap();
        let mut other = world.path(5, &[]);
        other.token = Some(restricted);
        assert_eq!(
            world.publish(&[&[other.clone()]]),
            [[Published::OtherName(names)]]
        );
        assert_eq!(tokens::revoke(database, "mr").unwrap(), 1);
        assert_eq!(
            world.publish(&[&[other.clone()]]),
            [[Published::TokenInvalid]]
        );
        caches::delete(database, "main").unwrap().unwrap();
        other.token = None;
        assert_eq!(
            world.publish(&[&[other.clone()]]),
            [[Published::CacheDeleted]]
        );
        let mut removed = Vec::new();
        while let Some(cache) = caches::to_purge(database).unwrap() {
            caches::purge(database, cache, 1, &mut |key: &str| {
                removed.push(key.to_owned());
                Ok(())
            })
            .unwrap();
        }
        assert_eq!(removed.len(), 1);
        assert_eq!(world.publish(&[&[other]]), [[Published::New]]);
        world.check_totals();
    });
}

#[test]
fn nars_are_recorded_together() {
    with_each(|database| {
        let world = world(database);
        let World { cache, token, .. } = world;
        nars::add(database, token, &[new_nar(1), new_nar(2), new_nar(1)]).unwrap();
        let id = nars::row(database, &[1; 32]).unwrap().unwrap();
        collect::condemn_nars(database, &[id], START).unwrap();
        collect::confirm(database, 10).unwrap();
        CLOCK.fetch_add(1, Ordering::Relaxed);
        let deleted = collect::delete_nars(database, &[id], START, clock()).unwrap();
        assert_eq!(deleted, [1]);
        assert!(nars::is_garbage(database, "nar/1.nar.zst").unwrap());
        let mut nothing = |_: &str| Ok(());
        let lost = nars::row(database, &[2; 32]).unwrap().unwrap();
        check::set_lost(database, lost, true, &mut || Ok(true), &mut nothing).unwrap();
        let batch = [
            (Some(token), new_nar(1)),
            (Some(99), new_nar(3)),
            (None, new_nar(4)),
            (Some(token), new_nar(2)),
            (Some(token), new_nar(2)),
        ];
        let batch: Vec<_> = batch.iter().collect();
        let outcomes = nars::add_of_tokens(database, &batch, PATIENCE).unwrap();
        let [first, second, third, fourth, fifth] = &outcomes[..] else {
            panic!("{outcomes:?}")
        };
        assert!(matches!(first, Err(StorageError::KeyInUse(_))), "{first:?}");
        assert!(
            matches!(second, Err(StorageError::TokenInvalid)),
            "{second:?}"
        );
        assert!(matches!(
            (third, fourth, fifth),
            (Ok(false), Ok(true), Ok(false))
        ));
        assert_eq!(nars::row(database, &[3; 32]).unwrap(), None);
        // Who may use which NAR.
        let nar = nars::find(database, cache, world.client(), &[2; 32])
            .unwrap()
            .unwrap();
        assert!(nars::has_sent(database, token, nar.id).unwrap());
        let reader = Client {
            token: None,
            is_reader: true,
        };
        assert_eq!(nars::find(database, cache, reader, &[2; 32]).unwrap(), None);
        assert_eq!(nars::loose_bytes(database, token).unwrap(), OWN_LEN + 2);
        world.publish(&[&[world.path(2, &[])]]);
        assert_eq!(
            nars::find(database, cache, reader, &[2; 32]).unwrap(),
            Some(nar.clone())
        );
        assert_eq!(nars::loose_bytes(database, token).unwrap(), 0);
        let key = nars::object_key(database, &[2; 32]).unwrap();
        assert_eq!(key, Some((nar.object_key.clone(), false)));
        assert_eq!(nars::listing(database, nar.id).unwrap(), Some(vec![2]));
        nars::set_frames(database, nar.id, Some(&[7])).unwrap();
        assert_eq!(nars::frames(database, nar.id).unwrap(), Some(vec![7]));
        // The other compression of a NAR is another file.
        assert_eq!(check::nars_after(database, 0, 10).unwrap().len(), 2);
        world.check_totals();
    });
}

#[test]
fn pushes_learn_what_they_need() {
    with_each(|database| {
        let world = world(database);
        let World { cache, token, .. } = world;
        world.publish(&[&[world.path(1, &[])]]);
        let loose = world.nar(2);
        let line = |number: u8| OpenLine {
            hash_part: store_path(number).hash_part(),
            nar_hash: NarHash::from_bytes([number; 32]),
            nar_size: 10 * u64::from(number),
            path: Some(store_path(number)),
        };
        let mut other_size = line(2);
        other_size.nar_size = 1;
        let mut other_name = line(1);
        let base_name = format!("{}-x", store_path(1).hash_part());
        other_name.path = Some(StorePath::from_base_name(&base_name).unwrap());
        let lines = [line(1), line(2), line(3), other_size, other_name, line(1)];
        let check = || {
            let needs = pushes::needs(database, cache, world.client(), &lines).unwrap();
            assert!(matches!(&needs[0], Need::Nothing(nar) if nar.nar_size == 10));
            assert!(matches!(&needs[1], Need::Narinfo(nar) if nar.id == loose));
            assert_eq!(needs[2..4], [Need::All, Need::All]);
            assert_eq!(needs[4], Need::OtherPath(store_path(1)));
            assert_eq!(needs[5], needs[0]);
        };
        check();
        CLOCK.fetch_add(USE_INTERVAL, Ordering::Relaxed);
        let id = world.find(1).unwrap().id;
        collect::condemn_paths(database, &[id], true).unwrap();
        check();
        assert_eq!(world.find(1).unwrap().used_at, clock());
        collect::confirm(database, 10).unwrap();
        assert_eq!(collect::condemned_paths(database, clock()).unwrap(), [0; 0]);

        let hash = NarHash::from_bytes([2; 32]);
        let usable = pushes::usable_nars(database, cache, world.client(), &hash).unwrap();
        assert_eq!(usable.len(), 1);
        pushes::renew_nar(database, token, loose, true).unwrap();
        let held = pushes::hold_nars(database, token, &[loose, 1_000_000, loose]).unwrap();
        assert_eq!(held, [true, false, true]);
        let limits = PushLimits {
            count_max: 1,
            lifetime: 100,
            tolerance: 10,
        };
        let id = pushes::open(database, cache, token, &limits)
            .unwrap()
            .unwrap();
        assert_eq!(id.len(), 32);
        assert_eq!(pushes::open(database, cache, token, &limits).unwrap(), None);
        CLOCK.fetch_add(50, Ordering::Relaxed);
        assert!(pushes::touch(database, &id, cache, token, &limits).unwrap());
        let open = pushes::all(database, None).unwrap();
        assert_eq!(open, std::slice::from_ref(&id));
        assert_eq!(pushes::all(database, Some(token + 1)).unwrap(), [""; 0]);
        assert!(pushes::close(database, &id, cache, token).unwrap());
        assert!(!pushes::touch(database, &id, cache, token, &limits).unwrap());
        pushes::remove_expired(database).unwrap();
    });
}
