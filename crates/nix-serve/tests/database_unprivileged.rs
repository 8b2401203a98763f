//! In every state that the database can get into, a server without write permission serves, through
//! the daemon if needed, or responds with 503 and logs how to fix it. `starting.rs` tests the
//! states at start.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_database;
mod support_process;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use support::{eventually, hash_part, local, nix_serve};
use support_database::{FAILED, RECOVERED, Subject, beside, nar, start_daemon};
use support_process::{
    Connection, Process, PublicBinary, Shell, is_root, make_public, public_store,
};
use testkit::procfs;
use testkit::sqlite::run as sqlite;

/// Returns binaries to run as the user nobody (true) and as root (false); none if the tests do not
/// run as root.
fn everybody() -> Vec<(PublicBinary, bool)> {
    match is_root() {
        true => [true, false]
            .map(|is_nobody| (PublicBinary::new(), is_nobody))
            .into(),
        false => Vec::new(),
    }
}

fn command((binary, is_nobody): &(PublicBinary, bool)) -> Command {
    match is_nobody {
        true => binary.as_nobody(),
        false => nix_serve(),
    }
}

fn absent() -> String {
    format!("/{}.narinfo", "z".repeat(32))
}

/// Checks one URL of each kind, while the server uses the daemon.
#[track_caller]
fn serves_all(subject: &Subject) {
    let mut connection = Connection::connect(subject.addr);
    for path in [&subject.asked, &subject.unasked] {
        assert_eq!(connection.get(&subject.narinfo(path)).status, 200);
        assert_eq!(connection.get(&nar(path)).status, 200);
    }
    assert_eq!(connection.get(&absent()).status, 404);
}

/// The files beside the database are deleted while the WAL is empty, or the last Nix process has
/// removed them: the server reads the database alone until the next commit.
#[test]
fn the_wal_index_goes_missing() {
    for who in everybody() {
        for suffixes in [&["-shm"][..], &["-wal", "-shm"]] {
            let subject = Subject::start_unprivileged(&who, command);
            for suffix in suffixes {
                fs::remove_file(beside(&subject.database(), suffix)).unwrap();
            }
            eventually("it goes on", || {
                subject.ask(&nar(&subject.unasked)).status == 200
            });
            serves_all(&subject);
            assert_eq!(subject.server.count(FAILED), 0);
            let later = subject.store.add_file("later", b"later");
            eventually("it serves a new path", || {
                subject.ask(&subject.narinfo(&later)).status == 200
            });
        }
    }
}

/// A WAL with commits and without an index cannot be read without write permission.
#[test]
fn a_wal_without_its_index() {
    for who in everybody().into_iter().filter(|who| who.1) {
        let mut subject = Subject::start_unprivileged(&who, command);
        fs::remove_file(beside(&subject.database(), "-shm")).unwrap();
        fs::write(beside(&subject.database(), "-wal"), "commits").unwrap();
        subject.assert_unavailable();
        let said = "WAL index is missing and may not be created; start nix-daemon";
        eventually("it is said", || subject.server.count(said) == 1);
        let _holder = Shell::open(&subject.database(), "begin; select count(*) from Refs;");
        make_public(subject.store.root());
        subject.assert_recovered("WAL index is missing");
        subject.assert_serves_new_paths();
    }
}

#[test]
fn the_daemon_stands_in_while_the_wal_index_is_missing() {
    for who in everybody().into_iter().filter(|who| who.1) {
        let subject = Subject::start_unprivileged(&who, command);
        let daemon = start_daemon(&subject.store);
        make_public(subject.store.root());
        // Wait until no process can open the database between the two removals: it would mix an old
        // file with a new one.
        subject.server.wait_for("paths are leased");
        eventually("only the server uses the daemon", || {
            procfs::children(daemon.pid()).len() == 1
        });
        for suffix in ["-wal", "-shm"] {
            fs::remove_file(beside(&subject.database(), suffix)).unwrap();
        }
        // As soon as the daemon has the database open, the server reads the database directly
        // again.
        eventually("the server notices", || {
            serves_all(&subject);
            !has_deleted_index(subject.server.pid())
        });
        serves_all(&subject);
        assert_eq!(subject.server.count(FAILED), 0);
        let later = subject.store.add_file("later", b"later");
        assert_eq!(subject.ask(&subject.narinfo(&later)).status, 200);
    }
}

/// Returns whether a process has a WAL index open that was deleted.
fn has_deleted_index(pid: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
    let mut names = links.map(|link| link.to_string_lossy().into_owned());
    names.any(|name| name.ends_with("-shm (deleted)"))
}

/// While the database is missing, the server does not ask the daemon: that would create an empty
/// database, as Nix does, and report every path as absent.
#[test]
fn the_daemon_is_not_asked_where_the_database_is_gone() {
    for who in everybody() {
        let mut subject = Subject::start_unprivileged(&who, command);
        let _daemon = start_daemon(&subject.store);
        make_public(subject.store.root());
        let directory = subject.database().parent().unwrap().to_owned();
        let aside = directory.with_extension("aside");
        fs::rename(&directory, &aside).unwrap();
        subject.assert_unavailable();
        assert!(!directory.exists());
        fs::rename(&aside, &directory).unwrap();
        subject.assert_recovered("does not exist; restore it");
        serves_all(&subject);
    }
}

/// A Nix process dies during a commit. Only a process with write permission can roll back the
/// half-written transaction.
#[test]
fn a_commit_broke_off() {
    for who in everybody() {
        let mut subject = Subject::start_as("truncate", command(&who));
        break_off(&subject.database());
        subject.assert_unavailable();
        // Roll back with SQLite, because Nix would also change the journal mode.
        sqlite(&subject.database(), "select count(*) from ValidPaths");
        subject.assert_recovered("has to be rolled back; any Nix command");
    }
}

/// Leaves pages of an unfinished transaction in the file.
fn break_off(database: &Path) {
    let mut child = Command::new("sqlite3")
        .arg(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let sql = ".timeout 10000\npragma cache_size = 2; begin; \
        update ValidPaths set registrationTime = 1; create table Filler (a text); \
        insert into Filler with recursive n(i) as (select 1 union all select i + 1 from n \
        where i < 2000) select hex(randomblob(500)) from n;\nselect 'held';\n";
    child
        .stdin
        .as_mut()
        .unwrap()
        .write_all(sql.as_bytes())
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line == "held")));
    child.kill().unwrap();
    child.wait().unwrap();
    let journal = fs::metadata(beside(database, "-journal")).unwrap();
    assert!(journal.len() > 0);
}

/// The state that Nix 2.22 and later leave: no process has the database open, and its WAL files
/// exist.
#[test]
fn idle_with_wal_files() {
    for who in everybody() {
        let subject = Subject::start_unprivileged(&who, command);
        for round in 0..5 {
            serves_all(&subject);
            let later = subject.store.add_file(&format!("later-{round}"), b"later");
            assert_eq!(subject.ask(&subject.narinfo(&later)).status, 200);
            subject.store.run("nix-store", &["--delete", &later]);
            assert_eq!(subject.ask(&subject.narinfo(&later)).status, 404);
        }
        assert_eq!(subject.server.count(RECOVERED), 0);
    }
}

/// The state that Nix before 2.22 leaves: no process has the database open, and its WAL files are
/// gone. The server may not create them.
#[test]
fn idle_without_wal_files() {
    for who in everybody().into_iter().filter(|who| who.1) {
        let subject = Subject::start_as("wal", command(&who));
        assert!(!beside(&subject.database(), "-wal").exists());
        assert!(!beside(&subject.database(), "-shm").exists());
        serves_all(&subject);
        for round in 0..5 {
            let later = subject.store.add_file(&format!("later-{round}"), b"later");
            assert_eq!(subject.ask(&subject.narinfo(&later)).status, 200);
            subject.store.run("nix-store", &["--delete", &later]);
            assert_eq!(subject.ask(&subject.narinfo(&later)).status, 404);
        }
        assert_eq!(subject.server.count(FAILED), 0);
    }
}

#[test]
fn a_read_only_file_system() {
    for who in everybody() {
        let store = public_store();
        let path = store.add_file("a", b"a");
        make_public(store.root());
        let root = store.root().to_str().unwrap();
        let mount =
            format!("mount --bind {root} {root} && mount -o remount,bind,ro {root} && exec \"$@\"");
        let mut inside = Command::new("unshare");
        inside.args(["-m", "sh", "-c", &mount, "sh"]);
        let can_mount = Command::new("unshare")
            .args(["-m", "sh", "-c", &mount, "sh", "true"])
            .status();
        if !can_mount.is_ok_and(|status| status.success()) {
            eprintln!("NOT TESTED: nothing can be mounted here");
            return;
        }
        let server = command(&who);
        inside.arg(server.get_program()).args(server.get_args());
        inside.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
        inside.stdin(Stdio::null()).stdout(Stdio::null());
        let (server, addr) = Process::serving(&mut inside);
        let mut connection = Connection::connect(addr);
        for (url, status) in [
            (format!("/{}.narinfo", hash_part(&path)), 200),
            (nar(&path), 200),
            (absent(), 404),
        ] {
            assert_eq!(connection.get(&url).status, status, "{:?}", server.lines());
        }
    }
}
