//! While the database is unreadable, the server responds with 503. It never responds with 404 for a
//! valid path, which clients would cache for an hour.

mod support;
mod support_database;
mod support_process;

use std::fs;
use std::time::Instant;

use support_database::{BACK_WITHIN, Subject, cp, replace};
use support_process::{PublicBinary, Shell, is_root, set_mode};
use testkit::sqlite::run as sqlite;

#[test]
fn locked_by_another_process() {
    let mut subject = Subject::start("delete");
    let holder = Shell::open(&subject.database(), "begin exclusive;");
    subject.assert_unavailable();
    drop(holder);
    subject.assert_recovered("locked by another process");
    subject.assert_serves_new_paths();
}

#[test]
fn replaced_by_garbage() {
    let mut subject = Subject::start("wal");
    let (database, aside) = (subject.database(), subject.beside());
    replace(&database, &aside, |path| {
        fs::write(path, "garbage ".repeat(4096)).unwrap();
    });
    subject.assert_unavailable();
    fs::rename(&aside, &database).unwrap();
    subject.assert_recovered("malformed");
    subject.assert_serves_new_paths();
}

#[test]
fn truncated_in_place() {
    let mut subject = Subject::start("delete");
    let (database, aside) = (subject.database(), subject.beside());
    cp(&database, &aside);
    let file = fs::File::options().write(true).open(&database).unwrap();
    file.set_len(0).unwrap();
    drop(file);
    subject.assert_unavailable();
    cp(&aside, &database);
    subject.assert_recovered("damaged");
    subject.assert_serves_new_paths();
}

#[test]
fn cut_in_the_middle() {
    let mut subject = Subject::start("delete");
    let (database, aside) = (subject.database(), subject.beside());
    cp(&database, &aside);
    let file = fs::File::options().write(true).open(&database).unwrap();
    file.set_len(5000).unwrap();
    drop(file);
    subject.assert_unavailable();
    cp(&aside, &database);
    subject.assert_recovered("damaged");
    subject.assert_serves_new_paths();
}

#[test]
fn removed() {
    let mut subject = Subject::start("wal");
    let (database, aside) = (subject.database(), subject.beside());
    fs::rename(&database, &aside).unwrap();
    subject.assert_unavailable();
    fs::rename(&aside, &database).unwrap();
    subject.assert_recovered("does not exist");
    subject.assert_serves_new_paths();
}

#[test]
fn with_all_of_its_directory() {
    let mut subject = Subject::start("wal");
    let directory = subject.database().parent().unwrap().to_owned();
    let aside = directory.with_extension("aside");
    fs::rename(&directory, &aside).unwrap();
    subject.assert_unavailable();
    fs::rename(&aside, &directory).unwrap();
    subject.assert_recovered("does not exist");
    subject.assert_serves_new_paths();
}

#[test]
fn of_another_schema() {
    let mut subject = Subject::start("delete");
    let (database, aside) = (subject.database(), subject.beside());
    replace(&database, &aside, |path| {
        sqlite(path, "create table ValidPaths (something text)");
    });
    subject.assert_unavailable();
    fs::rename(&aside, &database).unwrap();
    subject.assert_recovered("the column ValidPaths.id is missing");
    subject.assert_serves_new_paths();
}

#[test]
fn made_unreadable() {
    if !is_root() {
        return;
    }
    let binary = PublicBinary::new();
    let mut subject = Subject::start_as("delete", binary.as_nobody());
    let directory = subject.database().parent().unwrap().to_owned();
    set_mode(&directory, 0o700);
    subject.assert_unavailable();
    set_mode(&directory, 0o755);
    subject.assert_recovered("not readable for this user");
}

/// A malformed row affects only its own path, and does not make it look absent.
#[test]
fn a_damaged_row_is_no_absence() {
    let subject = Subject::start("wal");
    let (asked, unasked) = (&subject.asked, &subject.unasked);
    for column in ["hash = 'sha256:nonsense'", "narSize = -1", "hash = x'00'"] {
        let sql = format!("update ValidPaths set {column} where path = '{unasked}'");
        sqlite(&subject.database(), &sql);
        let reply = subject.ask(&subject.narinfo(unasked));
        assert_eq!(
            (reply.status, reply.header("retry-after")),
            (503, Some("1")),
            "{column}"
        );
        assert_eq!(subject.ask(&subject.narinfo(asked)).status, 200, "{column}");
        let good = format!("(select hash from ValidPaths where path = '{asked}')");
        let sql = format!("update ValidPaths set hash = {good}, narSize = 120");
        sqlite(&subject.database(), &sql);
        assert_eq!(subject.ask(&subject.narinfo(unasked)).status, 200);
    }
}

/// When a backup is restored, so that another file appears under the same name, no request fails.
#[test]
fn another_database_takes_its_place_without_a_gap() {
    let subject = Subject::start("wal");
    let (database, aside) = (subject.database(), subject.beside());
    cp(&database, &aside);
    sqlite(
        &aside,
        &format!("delete from ValidPaths where path = '{}'", subject.unasked),
    );
    fs::rename(&aside, &database).unwrap();
    let start = Instant::now();
    while subject.ask(&subject.narinfo(&subject.unasked)).status != 404 {
        assert!(start.elapsed() < BACK_WITHIN);
    }
    for _ in 0..50 {
        assert_eq!(subject.ask(&subject.narinfo(&subject.asked)).status, 200);
    }
}
