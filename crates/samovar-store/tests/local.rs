//! Look-ups return what Nix has registered, and malformed rows give errors.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::io::Write;
use std::process::Stdio;

use rusqlite::params;
use samovar_nix::{NarHash, StorePath};
use samovar_store::{Corruption, LocalStore, Location, Store, StoreError, Unavailable};
use support::rows::{self, Journal, Rows};
use support::{NixStore, absent};

/// Looks a path up as a server does: first in the catalog.
fn ask(store: &LocalStore, path: &StorePath) -> Option<NarHash> {
    let snapshot = store.catalog().unwrap().load().unwrap();
    let info = store.lookup(path.hash_part()).unwrap();
    assert!(snapshot.may_contain(&path.hash_part()) || info.is_none());
    info.map(|info| info.nar_hash)
}

#[test]
fn added_deleted_and_added_again() {
    let nix = NixStore::new();
    let first = nix.add_text("first", "1");
    let store = nix.open();
    assert!(ask(&store, &first).is_some());
    let second = nix.add_text("second", "2");
    assert!(ask(&store, &second).is_some());
    nix.delete(&first);
    assert_eq!(ask(&store, &first), None);
    assert!(ask(&store, &second).is_some());
    assert_eq!(nix.add_text("first", "1"), first);
    assert!(ask(&store, &first).is_some());
    assert_eq!(store.lookup(absent()), Ok(None));
}

#[test]
fn registrations_by_nix_are_found() {
    let nix = NixStore::new();
    let base = nix.add_text("base", "base");
    let name = "0123456789abcdfghijklmnpqrsvwxyz-app-1.0";
    let app = StorePath::from_base_name(name).unwrap();
    std::fs::create_dir(nix.real(&app)).unwrap();
    // Input for `nix-store --load-db`: path, hash, size, deriver, number of references, references.
    let hash = "0".repeat(63) + "1";
    let registration = format!(
        "{}\n{hash}\n1234\n{}\n2\n{}\n{}\n",
        nix.full(&app),
        nix.full(&base),
        nix.full(&base),
        nix.full(&app)
    );
    let mut child = nix
        .command("nix-store")
        .arg("--load-db")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(registration.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());

    let store = nix.open();
    let info = store.lookup(app.hash_part()).unwrap().unwrap();
    assert_eq!(info.path, app);
    assert_eq!(info.nar_size, 1234);
    assert_eq!(
        info.nar_hash,
        NarHash::parse(&format!("sha256:{hash}")).unwrap()
    );
    let mut expected = vec![base.clone(), app];
    expected.sort();
    assert_eq!(info.references, expected);
    assert_eq!(info.deriver, Some(base.clone()));
    assert!(info.registration_time > 1_600_000_000);

    let info = store.lookup(base.hash_part()).unwrap().unwrap();
    assert!(info.content_address.is_some());
    assert!(info.references.is_empty());
}

/// Creates a store with one row, in which the test sets one column.
fn with_column(column: &str, value: impl rusqlite::ToSql) -> (Rows, LocalStore) {
    let place = Rows::new(Journal::Wal);
    let writer = place.writer();
    rows::register(&writer, 1, 1);
    writer
        .execute(&format!("update ValidPaths set {column} = ?"), [value])
        .unwrap();
    let store = place.open();
    (place, store)
}

fn lookup(store: &LocalStore) -> Result<Option<samovar_nix::PathInfo>, StoreError> {
    store.lookup(rows::path(1).hash_part())
}

#[test]
fn registration_ids_are_unique() {
    let place = Rows::new(Journal::Wal);
    let writer = place.writer();
    rows::register(&writer, 1, 1);
    let store = place.open();
    let registration = || lookup(&store).unwrap().unwrap().registration;
    let first = registration();
    assert!(first.is_some());
    rows::sign(&writer, 1, &rows::signature(1));
    assert_eq!(registration(), first);
    rows::delete(&writer, 1);
    rows::register(&writer, 1, 1);
    assert!(registration() > first);
}

#[test]
fn rows_without_a_store_path_hide_no_others() {
    let place = Rows::new(Journal::Wal);
    let writer = place.writer();
    let store = place.open();
    let catalog = store.catalog().unwrap();
    let insert = |path: &dyn rusqlite::ToSql| {
        writer
            .execute(
                "insert into ValidPaths (path, hash, registrationTime) values (?, '', 0)",
                [path],
            )
            .unwrap();
    };
    insert(&"/nix/store/odd");
    insert(&"/elsewhere/zs83x50c7jbs0hj70ivx7ykckxh2zzl5-a");
    assert_eq!(catalog.load().unwrap().path_count(), 0);
    rows::register(&writer, 1, 1);
    assert_eq!(catalog.load().unwrap().path_count(), 1);
    insert(&"");
    // In the index a blob sorts after all text.
    insert(&[0xff_u8, 0xfe].as_slice());
    rows::register(&writer, 2, 1);
    let snapshot = catalog.load().unwrap();
    assert_eq!(snapshot.path_count(), 2);
    for number in [1, 2] {
        let hash_part = rows::path(number).hash_part();
        assert!(snapshot.may_contain(&hash_part));
        assert!(store.lookup(hash_part).unwrap().is_some());
    }
    let last = samovar_nix::HashPart::parse(&[b'z'; 32]).unwrap();
    assert_eq!(store.lookup(last), Ok(None));
}

#[test]
fn hashes_in_any_encoding() {
    for text in [
        "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "sha256:1b8m03r63zqhnjf7l5wnldhh7c134ap5vpj0850ymkq1iyzicy5s",
        "sha256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=",
        "sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=",
    ] {
        let (_place, store) = with_column("hash", text);
        let info = lookup(&store).unwrap().unwrap();
        assert_eq!(
            info.nar_hash.to_string(),
            "sha256:1b8m03r63zqhnjf7l5wnldhh7c134ap5vpj0850ymkq1iyzicy5s"
        );
    }
}

#[test]
fn malformed_signatures_are_dropped() {
    let good = rows::signature(1);
    let (_place, store) = with_column("sigs", format!("nonsense {good} a: :b {good} x:AAAA"));
    let signatures = lookup(&store).unwrap().unwrap().signatures;
    assert_eq!(signatures.len(), 1);
    assert_eq!(signatures[0].to_string(), good);
}

#[test]
fn a_path_of_unknown_size_cannot_be_served() {
    for value in [None, Some(0)] {
        let (_place, store) = with_column("narSize", value);
        assert_eq!(lookup(&store), Ok(None));
    }
}

#[test]
fn malformed_rows_are_errors_and_not_absent() {
    let check = |column: &str, value: &str, expected: Corruption| {
        let (_place, store) = with_column(column, value);
        assert_eq!(lookup(&store), Err(StoreError::Corrupt(expected)));
    };
    check("hash", "sha256:00", Corruption::NarHash);
    check("hash", "", Corruption::NarHash);
    check("narSize", "-1", Corruption::NarSize);
    check("narSize", "much", Corruption::NarSize);
}

#[test]
fn malformed_optional_columns_are_dropped() {
    for (column, value) in [
        ("deriver", "unknown-deriver"),
        ("ca", "nonsense"),
        ("ultimate", ""),
    ] {
        let (_place, store) = with_column(column, value);
        let info = lookup(&store).unwrap().unwrap();
        assert_eq!(
            (info.deriver, info.content_address, info.ultimate),
            (None, None, false)
        );
    }
}

#[test]
fn a_neighbour_is_not_mistaken_for_the_path() {
    let place = Rows::new(Journal::Wal);
    let writer = place.writer();
    for number in 0..200 {
        rows::register(&writer, number, number);
    }
    let store = place.open();
    for number in 0..400 {
        let info = store.lookup(rows::path(number).hash_part()).unwrap();
        assert_eq!(info.is_some(), number < 200);
    }
}

#[test]
fn tables_decide_and_not_the_schema_version() {
    for (content, is_known) in [
        (Some("10"), true),
        (Some("10\n"), true),
        (None, true),
        (Some("11"), false),
        (Some("7"), false),
        (Some(""), false),
        (Some("garbage"), false),
    ] {
        let place = Rows::new(Journal::Wal);
        rows::register(&place.writer(), 1, 1);
        let file = place.dir().join("var/db/schema");
        match content {
            Some(content) => std::fs::write(file, content).unwrap(),
            None => std::fs::remove_file(file).unwrap(),
        }
        let store = place.open();
        assert!(lookup(&store).unwrap().is_some(), "{content:?}");
        assert_eq!(
            store.take_schema_warning().is_none(),
            is_known,
            "{content:?}"
        );
        assert_eq!(store.take_schema_warning(), None, "{content:?}");
    }
}

/// Each unsupported schema gives its own error. The table has the statement that makes the schema.
#[test]
fn unsupported_schemas() {
    let recreated = "create table New (id integer primary key, path text unique not null, \
        hash text not null, registrationTime integer not null, deriver text, narSize integer, \
        ultimate integer, sigs text, ca text); drop table ValidPaths; \
        alter table New rename to ValidPaths";
    let columns = [
        "path",
        "hash",
        "registrationTime",
        "deriver",
        "narSize",
        "ultimate",
    ]
    .into_iter()
    .chain(["sigs", "ca"])
    .map(|column| {
        let sql = format!("alter table ValidPaths rename column {column} to other");
        (sql, format!("the column ValidPaths.{column} is missing"))
    });
    let others = [
        (recreated, "ValidPaths.id is not an autoincrement column"),
        (
            "alter table Refs rename to Other",
            "the column Refs.referrer is missing",
        ),
        (
            "alter table ValidPaths rename to Other; create table ValidPaths (\
             id integer primary key autoincrement, path, hash, registrationTime, deriver, \
             narSize, ultimate, sigs, ca)",
            "ValidPaths.path is not unique",
        ),
    ]
    .map(|(sql, what)| (sql.to_owned(), what.to_owned()));
    for (sql, what) in columns.chain(others) {
        for schema in ["10", "11"] {
            let place = Rows::new(Journal::Wal);
            std::fs::write(place.dir().join("var/db/schema"), schema).unwrap();
            let writer = place.writer();
            // Change the tables before the store reads them for the first time.
            writer
                .execute_batch(&format!("pragma foreign_keys = 0; {sql}"))
                .unwrap();
            let Err(StoreError::Unavailable(Unavailable::Form(said))) = lookup(&place.open())
            else {
                panic!("{sql} is understood");
            };
            assert_eq!(said, what);
        }
    }
}

/// A database with an unknown schema version is unsupported if its newest rows are malformed.
#[test]
fn the_newest_rows_of_an_unknown_schema_must_be_well_formed() {
    for (schema, is_understood) in [("10", true), ("11", false)] {
        let place = Rows::new(Journal::Wal);
        std::fs::write(place.dir().join("var/db/schema"), schema).unwrap();
        let writer = place.writer();
        rows::register(&writer, 1, 1);
        rows::register(&writer, 2, 1);
        let sql = "update ValidPaths set hash = 'blake3:00' where path = ?";
        writer.execute(sql, [rows::full(2)]).unwrap();
        assert_eq!(lookup(&place.open()).is_ok(), is_understood, "{schema}");
    }
}

#[test]
fn row_and_references_are_read_in_one_transaction() {
    let place = Rows::new(Journal::Wal);
    let writer = place.writer();
    let write = |generation: u32| {
        writer
            .execute_batch("begin immediate; delete from Refs; delete from ValidPaths")
            .unwrap();
        for number in 1..=3 {
            rows::register(&writer, number, generation);
        }
        // Odd generations refer to path 2, even ones to path 3.
        writer
            .execute(
                "insert into Refs select a.id, b.id from ValidPaths a, ValidPaths b \
                 where a.path = ? and b.path = ?",
                params![rows::full(1), rows::full(2 + (generation + 1) % 2)],
            )
            .unwrap();
        writer.execute_batch("commit").unwrap();
    };
    write(0);
    let store = place.open();
    let done = std::sync::atomic::AtomicBool::new(false);
    let count = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let info = lookup(&store).unwrap().unwrap();
                let generation = u32::try_from((info.nar_size - 112) / 8).unwrap();
                assert_eq!(info.references, [rows::path(2 + (generation + 1) % 2)]);
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        });
        // Continue until the reader has seen some: on a busy machine it may start late.
        for generation in 1_u32.. {
            let read_count = count.load(std::sync::atomic::Ordering::Relaxed);
            if reader.is_finished() || (generation >= 500 && read_count >= 100) {
                break;
            }
            write(generation);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        reader.join().unwrap();
    });
}

#[test]
fn realisations_of_both_generations() {
    let place = Rows::new(Journal::Wal);
    let writer = place.writer();
    rows::register(&writer, 1, 1);
    rows::register(&writer, 2, 2);
    let store = place.open();
    let hash = format!("sha256:{}", "a".repeat(64));
    let old = samovar_store::RealisationId::parse_hash_form(&format!("{hash}!out")).unwrap();
    let drv = "0123456789abcdfghijklmnpqrsvwxyz-x.drv";
    let new = samovar_store::RealisationId::parse_derivation_form(drv, "out").unwrap();
    // The tables exist only where the experimental feature was once enabled.
    assert_eq!(store.realisation(&old), Ok(None));
    assert_eq!(store.realisation(&new), Ok(None));
    writer
        .execute_batch(
            "create table Realisations (id integer primary key autoincrement not null, \
             drvPath text not null, outputName text not null, outputPath integer not null, \
             signatures text);
             create table RealisationsRefs (referrer integer not null, \
             realisationReference integer);
             create table BuildTraceV3 (id integer primary key autoincrement not null, \
             drvPath text not null, outputName text not null, outputPath text not null, \
             signatures text);",
        )
        .unwrap();
    assert_eq!(store.realisation(&old), Ok(None));
    assert_eq!(store.realisation(&new), Ok(None));
    writer
        .execute_batch(&format!(
            "insert into Realisations values (1, '{hash}', 'out', 1, 'k:sig'), \
             (2, 'sha256:{}', 'dev', 2, null);
             insert into RealisationsRefs values (1, 2);
             insert into BuildTraceV3 values (1, '{drv}', 'out', '{}', '{}');",
            "b".repeat(64),
            rows::full(7),
            rows::signature(0),
        ))
        .unwrap();
    assert_eq!(
        store.realisation(&old).unwrap().unwrap().into_document(),
        format!(
            "{{\"dependentRealisations\":{{\"sha256:{}!dev\":\"{}\"}},\"id\":\"{hash}!out\",\
             \"outPath\":\"{}\",\"signatures\":[\"k:sig\"]}}",
            "b".repeat(64),
            rows::path(2),
            rows::path(1),
        )
    );
    assert_eq!(
        store.realisation(&new).unwrap().unwrap().into_document(),
        format!(
            "{{\"outPath\":\"{}\",\"signatures\":[{{\"keyName\":\"test-1\",\"sig\":\"{}==\"}}]}}",
            rows::path(7),
            "A".repeat(86),
        )
    );
}

/// A read-only store opens a database without a WAL as immutable, where SQLite reports no WAL mode.
#[test]
fn the_journal_mode_is_that_of_the_file() {
    for (journal, is_wal) in [(Journal::Wal, true), (Journal::Truncate, false)] {
        let place = Rows::new(journal);
        place.writer().close().unwrap();
        for read_only in [false, true] {
            let store = LocalStore::new(Location {
                read_only,
                ..place.location()
            });
            assert_eq!(store.unwrap().uses_wal().unwrap(), Some(is_wal));
        }
    }
}
