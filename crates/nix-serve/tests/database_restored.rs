//! Within a second of restoring an older database, paths added after the backup are absent and stay
//! so, and paths in both databases are served.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it measured"
)]

mod support;
mod support_database;
mod support_process;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use support::{eventually, hash_part, local, nix_serve, output};
use support_database::{BACK_WITHIN, Subject, beside, cp, nar, replace};
use support_process::{
    Connection, Process, PublicBinary, Shell, is_root, make_public, once, public_store,
    refuses_to_start,
};
use testkit::sqlite::run as sqlite;

/// How the backup replaces the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Rename,
    Copy,
}

/// A server, and a backup of its database from before the path `later` was added.
struct Restored {
    subject: Subject,
    later: String,
    backup: std::path::PathBuf,
}

impl Restored {
    fn start(journal_mode: &str, command: Command) -> Self {
        // Another process keeps the database open, which an unprivileged server needs.
        let subject = Subject::start_held(journal_mode, command);
        let database = subject.database();
        let later = format!("/nix/store/{}-later", "l0".repeat(16));
        cp_tree(&subject, &subject.asked, &later);
        make_public(subject.store.root());
        subject.reopen();
        sqlite(&database, "pragma wal_checkpoint(truncate)");
        subject.reopen();
        let backup = subject.store.root().join("backup");
        cp(&database, &backup);
        // Insert the row without Nix, which would change the journal mode.
        let asked = &subject.asked;
        sqlite(
            &database,
            &format!(
                "insert into ValidPaths (path, hash, registrationTime, narSize) \
                 select '{later}', hash, 1, narSize from ValidPaths where path = '{asked}'"
            ),
        );
        let restored = Self {
            subject,
            later,
            backup,
        };
        for _ in 0..2 {
            for url in [
                restored.subject.narinfo(&restored.later),
                nar(&restored.later),
            ] {
                assert_eq!(restored.subject.ask(&url).status, 200);
            }
        }
        restored
    }

    fn restore(&self, way: Way) {
        let database = self.subject.database();
        match way {
            Way::Rename => fs::rename(&self.backup, database).unwrap(),
            Way::Copy => cp(&self.backup, &database),
        }
    }

    fn remove_wal(&self) {
        for suffix in ["-wal", "-shm"] {
            // Ignore errors: the file is absent in rollback mode.
            fs::remove_file(beside(&self.subject.database(), suffix)).ok();
        }
    }

    /// Requests deleted and valid paths until all responses are right, and checks that they stay
    /// so. Reports how long stale responses lasted, and the total time.
    #[track_caller]
    fn comes_right(&self, what: &str) {
        let subject = &self.subject;
        let start = Instant::now();
        let mut connection = Connection::connect(subject.addr);
        let mut ask = |url: &str| connection.get(url).status;
        let (gone, there) = (
            subject.narinfo(&self.later),
            subject.narinfo(&subject.unasked),
        );
        let (gone_nar, there_nar) = (nar(&self.later), nar(&subject.unasked));
        let (mut old, mut is_noticed) = (Duration::ZERO, false);
        loop {
            let answers = [&gone, &gone_nar, &there, &there_nar].map(|url| ask(url));
            for status in &answers[..2] {
                if *status == 200 {
                    assert!(!is_noticed, "{what}: it is there again");
                    old = start.elapsed();
                }
                is_noticed |= *status != 200;
            }
            for status in &answers[2..] {
                assert!(matches!(status, 200 | 503), "{what}: {status}");
            }
            if answers == [404, 404, 200, 200] {
                break;
            }
            let lines = subject.server.lines();
            assert!(
                start.elapsed() < BACK_WITHIN,
                "{what}: {answers:?} {lines:?}"
            );
        }
        eprintln!(
            "{what}: old answers for {old:?}, right after {:?}",
            start.elapsed()
        );
        for _ in 0..50 {
            let answers = [&gone, &gone_nar, &there, &there_nar].map(|url| ask(url));
            assert_eq!(answers, [404, 404, 200, 200], "{what}");
        }
    }
}

/// Copies the files of one path to another.
fn cp_tree(subject: &Subject, from: &str, to: &str) {
    let (from, to) = (subject.store.real(from), subject.store.real(to));
    output(Command::new("cp").arg("-r").arg(from).arg(to));
}

fn everybody(test: impl Fn(&dyn Fn() -> Command, &str)) {
    test(&nix_serve, "root");
    if is_root() {
        let binary = PublicBinary::new();
        test(&|| binary.as_nobody(), "nobody");
    }
}

/// A backup is restored while no Nix process runs, with the WAL emptied or removed.
#[test]
fn with_all_due_care() {
    everybody(|command, who| {
        for journal_mode in ["wal", "truncate"] {
            for way in [Way::Rename, Way::Copy] {
                let restored = Restored::start(journal_mode, command());
                // No Nix process is running, and the WAL is empty or gone.
                sqlite(
                    &restored.subject.database(),
                    "pragma wal_checkpoint(truncate)",
                );
                restored.restore(way);
                if journal_mode == "wal" && who == "nobody" {
                    restored.remove_wal();
                }
                // Nix starts again at the end.
                let _holder = Shell::open(
                    &restored.subject.database(),
                    "begin; select count(*) from Refs;",
                );
                make_public(restored.subject.store.root());
                restored.comes_right(&format!("{way:?} as {who} ({journal_mode})"));
            }
        }
    });
}

/// A backup is restored, but the WAL of the old database is left beside it: the server has kept it
/// alive after Nix ended, so operators may overlook it. The server does not serve SQLite's mixture
/// of the two.
#[test]
fn beside_the_wal_of_before() {
    everybody(|command, who| {
        for way in [Way::Rename, Way::Copy] {
            let restored = Restored::start("wal", command());
            let subject = &restored.subject;
            assert!(
                fs::metadata(beside(&subject.database(), "-wal"))
                    .unwrap()
                    .len()
                    > 0
            );
            subject.wait_for_check();
            restored.restore(way);
            let start = Instant::now();
            let urls = [subject.narinfo(&restored.later), nar(&subject.unasked)];
            eventually("it notices", || {
                let answers = urls.clone().map(|url| subject.ask(&url).status);
                assert!(
                    answers.iter().all(|status| matches!(status, 200 | 503)),
                    "{answers:?}"
                );
                answers == [503, 503]
            });
            eprintln!(
                "{way:?} beside the WAL as {who}: noticed after {:?}",
                start.elapsed()
            );
            let absent = format!("/{}.narinfo", "z".repeat(32));
            for _ in 0..30 {
                for url in urls.iter().chain([&absent]) {
                    assert_eq!(subject.ask(url).status, 503, "{url}");
                }
            }
            let said = "is still beside it; remove db.sqlite-wal and db.sqlite-shm";
            eventually("it is said", || subject.server.count(said) == 1);
            restored.remove_wal();
            let _holder = Shell::open(&subject.database(), "begin; select count(*) from Refs;");
            make_public(subject.store.root());
            restored.comes_right(&format!("{way:?} after the WAL as {who}"));
        }
    });
}

/// A server refuses to start on a file that is not a database, even if a WAL lies beside it. SQLite
/// reads pages from the WAL if they are there, and does not notice. The server would then take the
/// WAL for one of the garbage, and refuse the restored database.
#[test]
fn what_is_no_database_is_none_beside_a_wal() {
    let store = public_store();
    let path = store.add_file("here", b"here");
    let (database, aside) = (store.database(), store.root().join("aside"));
    sqlite(&database, "pragma journal_mode = wal");
    // Put the first page, which holds the names of the tables, into the WAL.
    let _holder = Shell::open(
        &database,
        "pragma user_version = 7; begin; select count(*) from ValidPaths;",
    );
    replace(&database, &aside, |other| {
        fs::write(other, "garbage ".repeat(4096)).unwrap();
    });
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    refuses_to_start(&mut command, &["malformed"]);
    fs::rename(&aside, &database).unwrap();
    let (_server, addr) = Process::serving(&mut command);
    let url = format!("/{}.narinfo", hash_part(&path));
    assert_eq!(once(addr, &url).status, 200);
}

/// A checkpoint, which moves rows from the WAL to the database, is not mistaken for a restore.
#[test]
fn a_checkpoint_is_no_restore() {
    let subject = Subject::start("wal");
    for mode in ["passive", "full", "restart", "truncate"] {
        let later = subject.store.add_file(&format!("later-{mode}"), b"later");
        sqlite(
            &subject.database(),
            &format!("pragma wal_checkpoint({mode})"),
        );
        let mut connection = Connection::connect(subject.addr);
        for _ in 0..30 {
            for path in [&subject.asked, &later] {
                assert_eq!(connection.get(&subject.narinfo(path)).status, 200, "{mode}");
                let url = format!("/{}.ls", hash_part(path));
                assert_eq!(connection.get(&url).status, 200, "{mode}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
