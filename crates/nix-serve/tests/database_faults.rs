//! A database that cannot be read is the server's trouble: it says 503 and comes back by itself. A
//! 404 for a valid path would be remembered by clients for an hour.

mod support;
mod support_process;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use support::{OwnStore, eventually, hash_part, local, nix_serve, output};
use support_process::{
    Connection, Holder, Process, PublicBinary, is_root, make_public, public_store, set_mode, sqlite,
};

const FAILED: &str = "the store cannot be read, answering 503";
const RECOVERED: &str = "the store can be read again";
const UNAVAILABLE: &str = "The store cannot be read at the moment. Try again.\n";
/// Within what the server is to be back after the cause has gone.
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// A server of a store of its own, with a path that it was asked for and one that it was not.
struct Subject {
    store: OwnStore,
    server: Process,
    addr: SocketAddr,
    asked: String,
    unasked: String,
}

impl Subject {
    fn start(journal_mode: &str) -> Self {
        Self::start_as(journal_mode, nix_serve())
    }

    fn start_as(journal_mode: &str, mut command: Command) -> Self {
        let store = public_store();
        let asked = store.add_file("asked", b"asked");
        let unasked = store.add_file("unasked", b"unasked");
        sqlite(
            &store.database(),
            &format!("pragma journal_mode = {journal_mode}"),
        );
        make_public(store.root());
        command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
        let (server, addr) = Process::serving(&mut command);
        let subject = Self {
            store,
            server,
            addr,
            asked,
            unasked,
        };
        let reply = subject.ask(&subject.narinfo(&subject.asked));
        assert_eq!(reply.status, 200, "{:?}", subject.server.lines());
        subject
    }

    fn narinfo(&self, path: &str) -> String {
        format!("/{}.narinfo", hash_part(path))
    }

    fn ask(&self, url: &str) -> support_process::Reply {
        support_process::once(self.addr, url)
    }

    fn database(&self) -> PathBuf {
        self.store.database()
    }

    /// Beside the database, on the same file system.
    fn beside(&self) -> PathBuf {
        self.database().with_extension("aside")
    }

    /// While the cause lasts: 503 for whatever is not known, never 404 for what is there.
    ///
    /// What is in memory may be said as long as nobody can have committed anything: so the narinfo
    /// of a path, which is made ahead of need, may be answered, and one that is certainly not there
    /// denied.
    #[track_caller]
    fn suffers(&mut self) {
        let mut connection = Connection::tcp(self.addr);
        eventually("it notices", || {
            let reply = connection.get(&nar(&self.unasked));
            assert!(matches!(reply.status, 200 | 503), "{reply:?}");
            reply.status == 503
        });
        for url in [
            nar(&self.unasked),
            nar(&self.asked),
            format!("/{}.ls", hash_part(&self.unasked)),
        ] {
            let reply = connection.get_and_head(&url, &[]);
            assert_eq!(reply.status, 503, "{url}");
            assert_eq!(reply.header("retry-after"), Some("1"), "{url}");
            assert_eq!(reply.header("content-type"), Some("text/plain"), "{url}");
            // What is wrong is for the operator alone.
            assert_eq!(reply.text(), UNAVAILABLE, "{url}");
            for path in [&self.asked, &self.unasked] {
                let reply = connection.get(&self.narinfo(path));
                assert!(matches!(reply.status, 200 | 503), "{reply:?}");
            }
            let absent = connection.get(&format!("/{}.narinfo", "z".repeat(32)));
            assert!(matches!(absent.status, 404 | 503));
        }
        // What does not depend on the database goes on.
        assert_eq!(connection.get("/nix-cache-info").status, 200);
        assert_eq!(connection.get("/nowhere").status, 404);
        assert_eq!(self.server.count(RECOVERED), 0);
    }

    /// After the cause has gone: everything is served again, and the log has said both once.
    #[track_caller]
    fn recovers(&mut self, fault: &str) {
        let start = Instant::now();
        let url = nar(&self.unasked);
        loop {
            let reply = self.ask(&url);
            if reply.status == 200 {
                break;
            }
            assert_eq!(reply.status, 503);
            assert!(
                start.elapsed() < BACK_WITHIN,
                "not back: {:?}",
                self.server.lines()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        self.server.wait_for(RECOVERED);
        let mut connection = Connection::tcp(self.addr);
        for path in [&self.asked, &self.unasked] {
            assert_eq!(connection.get(&self.narinfo(path)).status, 200);
            assert_eq!(
                connection
                    .get(&format!("/nar/{}.nar", hash_part(path)))
                    .status,
                200
            );
        }
        let absent = format!("/{}.narinfo", "z".repeat(32));
        connection.check_text(&absent, 404, "No such path.\n");
        let said: Vec<_> = self
            .server
            .lines()
            .into_iter()
            .filter(|line| line.contains(FAILED))
            .collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("nix-serve: error: "), "{said:?}");
        assert!(said[0].contains(fault), "{said:?}");
        assert_eq!(self.server.count(RECOVERED), 1);
        assert!(self.server.is_alive());
    }

    /// What is added from now on is there.
    #[track_caller]
    fn goes_on(&self) {
        let later = self.store.add_file("later", b"later");
        assert_eq!(self.ask(&self.narinfo(&later)).status, 200);
    }
}

fn nar(path: &str) -> String {
    format!("/nar/{}.nar", hash_part(path))
}

/// In place: the file stays the same one.
fn cp(from: &Path, to: &Path) {
    output(Command::new("cp").arg(from).arg(to));
}

/// Puts another file in the place of the database, which goes aside. At one blow: the server looks
/// at any time.
fn replace(database: &Path, aside: &Path, make: impl FnOnce(&Path)) {
    let other = database.with_extension("other");
    make(&other);
    fs::hard_link(database, aside).expect("another name for the database");
    fs::rename(other, database).expect("another file under its name");
}

#[test]
fn locked_by_another_process() {
    let mut subject = Subject::start("delete");
    let holder = Holder::run(&subject.database(), "begin exclusive;");
    subject.suffers();
    drop(holder);
    subject.recovers("locked by another process");
    subject.goes_on();
}

#[test]
fn replaced_by_garbage() {
    let mut subject = Subject::start("wal");
    let (database, aside) = (subject.database(), subject.beside());
    replace(&database, &aside, |path| {
        fs::write(path, "garbage ".repeat(4096)).unwrap();
    });
    subject.suffers();
    fs::rename(&aside, &database).unwrap();
    subject.recovers("malformed");
    subject.goes_on();
}

#[test]
fn truncated_in_place() {
    let mut subject = Subject::start("delete");
    let (database, aside) = (subject.database(), subject.beside());
    cp(&database, &aside);
    let file = fs::File::options().write(true).open(&database).unwrap();
    file.set_len(0).unwrap();
    drop(file);
    subject.suffers();
    cp(&aside, &database);
    subject.recovers("damaged");
    subject.goes_on();
}

#[test]
fn cut_in_the_middle() {
    let mut subject = Subject::start("delete");
    let (database, aside) = (subject.database(), subject.beside());
    cp(&database, &aside);
    let file = fs::File::options().write(true).open(&database).unwrap();
    file.set_len(5000).unwrap();
    drop(file);
    subject.suffers();
    cp(&aside, &database);
    subject.recovers("damaged");
    subject.goes_on();
}

#[test]
fn removed() {
    let mut subject = Subject::start("wal");
    let (database, aside) = (subject.database(), subject.beside());
    fs::rename(&database, &aside).unwrap();
    subject.suffers();
    fs::rename(&aside, &database).unwrap();
    subject.recovers("does not exist");
    subject.goes_on();
}

#[test]
fn with_all_of_its_directory() {
    let mut subject = Subject::start("wal");
    let directory = subject.database().parent().unwrap().to_owned();
    let aside = directory.with_extension("aside");
    fs::rename(&directory, &aside).unwrap();
    subject.suffers();
    fs::rename(&aside, &directory).unwrap();
    subject.recovers("does not exist");
    subject.goes_on();
}

#[test]
fn of_another_schema() {
    let mut subject = Subject::start("delete");
    let (database, aside) = (subject.database(), subject.beside());
    replace(&database, &aside, |path| {
        sqlite(path, "create table ValidPaths (something text)");
    });
    subject.suffers();
    fs::rename(&aside, &database).unwrap();
    subject.recovers("a table or column of schema 10 is missing");
    subject.goes_on();
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
    subject.suffers();
    set_mode(&directory, 0o755);
    subject.recovers("not readable for this user");
}

/// One row that makes no sense is one path that cannot be told about.
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

/// A restore from a backup: another file by the same name.
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
