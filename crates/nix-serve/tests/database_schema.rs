//! A database with an unknown schema number is served, with a warning, if it has the columns that
//! the server reads. If not, the server responds with 503, never with 404.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_database;
mod support_process;

use std::fs;
use std::process::Command;

use support::{hash_part, local, nix_serve};
use support_database::{Subject, nar, start_daemon};
use support_process::{Process, public_store, refuses_to_start};
use testkit::sqlite::run as sqlite;

const REMARK: &str = "but 10 is supported";

/// Changes to the schema that a newer Nix might make.
const ADDITIONS: &str = "alter table ValidPaths add column provenance text; \
    create table Signatures (id integer primary key, path integer, text); \
    create index IndexOfIt on ValidPaths(hash);";

/// Starts a server with this content of `db/schema`; returns its log lines.
fn starts_with(schema: Option<&str>) -> Vec<String> {
    let store = public_store();
    let path = store.add_file("a", b"a");
    let file = store.database().with_file_name("schema");
    match schema {
        Some(text) => fs::write(file, text).unwrap(),
        None => fs::remove_file(file).unwrap(),
    }
    sqlite(&store.database(), ADDITIONS);
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    let (server, addr) = Process::serving(&mut command);
    let answer = support_process::once(addr, &format!("/{}.narinfo", hash_part(&path)));
    assert_eq!(answer.status, 200, "{schema:?}");
    let remarks = |line: &String| line.contains(REMARK);
    server.lines().into_iter().filter(remarks).collect()
}

#[test]
fn a_newer_schema_with_all_that_is_read() {
    let said = starts_with(Some("11"));
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("warning: the schema of the Nix database is 11, "));
    let said = starts_with(Some("garbage"));
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("is not a number, "), "{said:?}");
    for schema in [Some("10"), None] {
        assert_eq!(starts_with(schema), [""; 0]);
    }
}

#[test]
fn a_migration_while_it_runs() {
    let mut subject = Subject::start("wal");
    let schema = subject.database().with_file_name("schema");
    let asks = |subject: &Subject| {
        for path in [&subject.asked, &subject.unasked] {
            assert_eq!(subject.ask(&subject.narinfo(path)).status, 200);
            assert_eq!(subject.ask(&nar(path)).status, 200);
        }
        let absent = format!("/{}.narinfo", "z".repeat(32));
        assert_eq!(subject.ask(&absent).status, 404);
    };
    // Change the tables in one transaction and then the file, as Nix does.
    sqlite(
        &subject.database(),
        &format!("begin exclusive; {ADDITIONS} commit;"),
    );
    asks(&subject);
    assert_eq!(subject.server.count(REMARK), 0);
    fs::write(&schema, "11").unwrap();
    support::eventually("it is said", || {
        asks(&subject);
        subject.server.count(REMARK) == 1
    });
    asks(&subject);
    assert_eq!(subject.server.count(REMARK), 1);
    // A migration that renames a column which the server reads.
    let rename = |from: &str, to: &str| {
        let sql = format!("alter table ValidPaths rename column {from} to {to}");
        sqlite(&subject.database(), &sql);
    };
    rename("narSize", "size");
    let addr = subject.addr;
    let status = |url: &str| support_process::once(addr, url).status;
    for path in [&subject.asked, &subject.unasked] {
        for url in [subject.narinfo(path), nar(path)] {
            assert_eq!(status(&url), 503, "{url}");
        }
    }
    let absent = format!("/{}.narinfo", "z".repeat(32));
    assert_eq!(status(&absent), 503);
    rename("size", "narSize");
    subject.assert_recovered("the column ValidPaths.narSize is missing; upgrade Samovar");
    assert_eq!(subject.server.count(REMARK), 1);
}

#[test]
fn without_what_is_read_it_does_not_start() {
    let store = public_store();
    fs::write(store.database().with_file_name("schema"), "11").unwrap();
    sqlite(
        &store.database(),
        "alter table ValidPaths rename column narSize to size",
    );
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    let name = store.database();
    refuses_to_start(
        &mut command,
        &[
            name.to_str().unwrap(),
            "the column ValidPaths.narSize is missing",
            "its schema is 11, and 10 is supported",
            "upgrade Samovar, or start nix-daemon",
        ],
    );
}

/// A schema that Nix 2.8 can read but the server cannot: the server needs the daemon.
#[test]
fn the_daemon_answers_instead() {
    let store = public_store();
    let path = store.add_file("a", b"a");
    let not_counted = "pragma writable_schema = on; update sqlite_master \
        set sql = replace(sql, ' autoincrement', '') where name = 'ValidPaths'";
    sqlite(&store.database(), not_counted);
    let start = || -> Command {
        let mut command = nix_serve();
        command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
        command
    };
    refuses_to_start(
        &mut start(),
        &["ValidPaths.id is not an autoincrement column"],
    );
    let _daemon = start_daemon(&store);
    let (server, addr) = Process::serving(&mut start());
    let absent = format!("/{}.narinfo", "z".repeat(32));
    for (url, status) in [
        (format!("/{}.narinfo", hash_part(&path)), 200),
        (nar(&path), 200),
        (absent, 404),
    ] {
        let answer = support_process::once(addr, &url);
        assert_eq!(answer.status, status, "{url}: {:?}", server.lines());
    }
}
