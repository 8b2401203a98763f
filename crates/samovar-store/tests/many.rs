//! Batch look-ups and closures return the same as single look-ups, each in one transaction.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod support;

use std::collections::HashSet;

use rusqlite::{Connection, params};
use samovar_nix::HashPart;
use samovar_store::{Closure, Corruption, LocalStore, Member, Store, StoreError};
use support::absent;
use support::rows::{self, Journal, Rows};

/// Creates a store of `count` paths, each with references to itself and to two earlier paths.
fn ladder(count: u32) -> (Rows, LocalStore, Connection) {
    let rows = Rows::new(Journal::Wal);
    let writer = rows.writer();
    for number in 0..count {
        rows::register(&writer, number, number);
        for reference in [number, number.saturating_sub(1), number / 2] {
            refer(&writer, number, reference);
        }
    }
    let store = rows.open();
    (rows, store, writer)
}

fn refer(connection: &Connection, referrer: u32, reference: u32) {
    connection
        .execute(
            "insert or replace into Refs (referrer, reference) select a.id, b.id \
             from ValidPaths a, ValidPaths b where a.path = ? and b.path = ?",
            params![rows::full(referrer), rows::full(reference)],
        )
        .unwrap();
}

fn hash_part(number: u32) -> HashPart {
    rows::path(number).hash_part()
}

#[track_caller]
fn members(store: &LocalStore, number: u32, count_max: usize) -> Vec<Member> {
    match store.closure(hash_part(number), count_max).unwrap() {
        Some(Closure::Members(members)) => members,
        other => panic!("{other:?}"),
    }
}

#[test]
fn batches_equal_single_look_ups() {
    let (_rows, store, _writer) = ladder(50);
    let mut asked: Vec<HashPart> = (0..50).rev().map(hash_part).collect();
    asked.insert(7, absent());
    asked.push(hash_part(3));
    let expected: Vec<_> = asked.iter().map(|asked| store.lookup(*asked)).collect();
    assert_eq!(store.lookup_many(&asked), Ok(expected));
    assert_eq!(store.lookup_many(&[]), Ok(vec![]));
}

#[test]
fn a_scan_finds_all_accepted_paths() {
    let (_rows, store, _writer) = ladder(9000);
    let all = |accepts: &dyn Fn(&str) -> bool| {
        let (mut found, mut after) = (Vec::new(), Some(String::new()));
        while let Some(from) = after {
            let scanned = store.scan(&from, accepts).unwrap();
            found.extend(scanned.found.into_iter().map(|(_, path)| path));
            after = scanned.next;
        }
        found
    };
    let found = all(&|_| true);
    assert_eq!(found.len(), 9000);
    assert!(found.is_sorted());
    let one = rows::path(8999);
    assert_eq!(
        all(&|base_name| base_name == one.base_name()),
        std::slice::from_ref(&one)
    );
    let rest = store.scan(&one.base_name()[..20], &|_| true).unwrap();
    assert!(rest.found.iter().any(|(_, path)| *path == one));
}

#[test]
fn referrers_are_bounded_and_do_not_include_the_path() {
    let (_rows, store, _writer) = ladder(20);
    let info = store.lookup(hash_part(0)).unwrap().unwrap();
    let referrers = store.referrers(&info, 100).unwrap();
    assert!(!referrers.is_empty() && !referrers.contains(&info.path));
    for referrer in &referrers {
        let referrer = store.lookup(referrer.hash_part()).unwrap().unwrap();
        assert!(referrer.references.contains(&info.path));
    }
    assert_eq!(store.referrers(&info, 1).unwrap().len(), 1);
}

#[test]
fn a_malformed_row_fails_only_its_own_look_up() {
    let (_rows, store, writer) = ladder(3);
    writer
        .execute(
            "update ValidPaths set hash = 'nonsense' where path = ?",
            [rows::full(1)],
        )
        .unwrap();
    let looked = store
        .lookup_many(&[hash_part(0), hash_part(1), hash_part(2)])
        .unwrap();
    assert!(matches!(looked[0], Ok(Some(_))));
    assert_eq!(looked[1], Err(StoreError::Corrupt(Corruption::NarHash)));
    assert!(matches!(looked[2], Ok(Some(_))));
    // The path with the malformed row still has an id and references.
    assert_eq!(members(&store, 2, 3).len(), 3);
    let newest = store.newest(None, 3).unwrap();
    let paths: Vec<_> = newest.into_iter().map(|info| info.path).collect();
    assert_eq!(paths, [rows::path(2), rows::path(0)]);
}

#[test]
fn a_closure_has_references_first_and_the_path_last() {
    let (_rows, store, _writer) = ladder(200);
    let members = members(&store, 199, 200);
    assert_eq!(members.len(), 200);
    assert_eq!(members[199].hash_part, hash_part(199));
    let mut seen = HashSet::new();
    for member in members {
        seen.insert(member.hash_part);
        let info = store.lookup(member.hash_part).unwrap().unwrap();
        assert_eq!(member.registration, info.registration);
        for reference in info.references {
            assert!(seen.contains(&reference.hash_part()));
        }
    }
    assert_eq!(store.closure(absent(), 10), Ok(None));
}

#[test]
fn a_closure_is_bounded() {
    let (_rows, store, _writer) = ladder(20);
    assert_eq!(members(&store, 19, 20).len(), 20);
    for count_max in [19, 1, 0] {
        assert_eq!(
            store.closure(hash_part(19), count_max),
            Ok(Some(Closure::TooLarge))
        );
    }
    assert_eq!(members(&store, 0, 1).len(), 1);
}

#[test]
fn a_closure_with_a_path_of_unknown_size_is_incomplete() {
    let (_rows, store, writer) = ladder(5);
    for unknown in ["0", "null"] {
        writer
            .execute(
                &format!("update ValidPaths set narSize = {unknown} where path = ?"),
                [rows::full(1)],
            )
            .unwrap();
        assert_eq!(
            store.closure(hash_part(4), 5),
            Ok(Some(Closure::Incomplete))
        );
        assert_eq!(store.closure(hash_part(1), 5), Ok(None));
    }
    assert_eq!(members(&store, 0, 1).len(), 1);
}

#[test]
fn the_newest_come_in_pages() {
    let (_rows, store, writer) = ladder(10);
    // Drop the trigger of Nix that deletes self-references.
    writer
        .execute("delete from Refs where referrer = 10", [])
        .unwrap();
    rows::delete(&writer, 9);
    rows::register(&writer, 9, 99);
    let mut found = Vec::new();
    let mut before = None;
    loop {
        let page = store.newest(before, 4).unwrap();
        let Some(last) = page.last() else { break };
        before = last.registration;
        found.extend(page);
    }
    let paths: Vec<_> = found.iter().map(|info| info.path.clone()).collect();
    let expected: Vec<_> = (0..10).rev().map(rows::path).collect();
    assert_eq!(paths, expected);
    for info in found {
        assert_eq!(store.lookup(info.path.hash_part()), Ok(Some(info)));
    }
}
