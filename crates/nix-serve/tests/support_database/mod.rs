//! A server whose database can be made to fail in various ways.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says what it measured"
)]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::nix::Daemon;
use testkit::procfs;
use testkit::sqlite::run as sqlite;
use testkit::wait::holds_within;

use crate::support::{OwnStore, eventually, hash_part, local, nix, nix_serve, output};
use crate::support_process::{
    Connection, Process, Response, Shell, make_public, once, public_store,
};

pub const FAILED: &str = "the store cannot be read, answering 503";
pub const RECOVERED: &str = "the store can be read again";
const UNAVAILABLE: &str = "The store cannot be read at the moment. Try again.\n";
/// Maximum time for recovery after the cause of a failure has gone. The server checks every tenth
/// of a second; on a machine with other work, the processes of a test wait for a processor.
pub const BACK_WITHIN: Duration = Duration::from_secs(30);

/// A server of a separate store, with one path that was requested before and one that was not.
pub struct Subject {
    pub store: OwnStore,
    pub server: Process,
    pub addr: SocketAddr,
    pub asked: String,
    pub unasked: String,
}

impl Subject {
    pub fn start(journal_mode: &str) -> Self {
        Self::start_as(journal_mode, nix_serve())
    }

    /// Starts a server when no process has the database open and its WAL files exist.
    pub fn start_unprivileged<T>(who: &T, command: impl Fn(&T) -> Command) -> Self {
        Self::start_with("wal", command(who), |store| {
            let (database, copy) = (store.database(), store.root().join("copy"));
            let db = database.parent().unwrap();
            let holder = Shell::open(&database, "begin; select count(*) from ValidPaths;");
            sqlite(&database, "pragma wal_checkpoint(truncate)");
            // Made by copying, because closing the last connection would remove them.
            output(Command::new("cp").arg("-r").arg(db).arg(&copy));
            drop(holder);
            fs::remove_dir_all(db).unwrap();
            fs::rename(&copy, db).unwrap();
            assert!(beside(&database, "-shm").exists());
        })
    }

    pub fn start_as(journal_mode: &str, command: Command) -> Self {
        Self::start_with(journal_mode, command, |_| {})
    }

    /// Starts a server while another process has the database open, as an unprivileged server
    /// needs.
    pub fn start_held(journal_mode: &str, command: Command) -> Self {
        let mut holder = None;
        Self::start_with(journal_mode, command, |store| {
            let sql = "begin; select count(*) from ValidPaths;";
            holder = Some(Shell::open(&store.database(), sql));
        })
    }

    fn start_with(
        journal_mode: &str,
        mut command: Command,
        prepare: impl FnOnce(&OwnStore),
    ) -> Self {
        let store = public_store();
        let asked = store.add_file("asked", b"asked");
        let unasked = store.add_file("unasked", b"unasked");
        sqlite(
            &store.database(),
            &format!("pragma journal_mode = {journal_mode}"),
        );
        prepare(&store);
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

    pub fn narinfo(&self, path: &str) -> String {
        format!("/{}.narinfo", hash_part(path))
    }

    pub fn ask(&self, url: &str) -> Response {
        once(self.addr, url)
    }

    /// Has the server open the database again if the file has changed, by a request that needs it.
    /// Without a request the server does so within a tenth of a second. A writer that closes the
    /// database at that moment removes the WAL files, which an unprivileged server cannot create.
    #[track_caller]
    pub fn reopen(&self) {
        let url = format!("/closure/{}", hash_part(&self.asked));
        assert_eq!(self.ask(&url).status, 200);
    }

    /// Waits until the server has checked the files, which it does ten times per second.
    pub fn wait_for_check(&self) {
        let pid = self.server.pid();
        let find = |thread: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm"));
            name.is_ok_and(|name| name == "store-keeper\n")
        };
        let keeper = procfs::threads(pid).into_iter().find(find).unwrap();
        let file = format!("task/{keeper}/status");
        let pauses = || -> u64 {
            let count = procfs::field(pid, &file, "voluntary_ctxt_switches").unwrap();
            count.parse().unwrap()
        };
        let before = pauses();
        eventually("the files are checked", || pauses() > before + 3);
    }

    pub fn database(&self) -> PathBuf {
        self.store.database()
    }

    /// Returns a path beside the database, on the same file system.
    pub fn beside(&self) -> PathBuf {
        self.database().with_extension("aside")
    }

    /// Checks responses while the failure lasts: 503 for everything that is unknown, never 404 for
    /// a valid path.
    ///
    /// As no commit is possible meanwhile, cached responses may be sent: the prefetched narinfo of
    /// a path, and 404 for a path that is certainly absent.
    #[track_caller]
    pub fn assert_unavailable(&mut self) {
        let mut connection = Connection::connect(self.addr);
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
            // The cause must appear only in the operator's log.
            assert_eq!(reply.text(), UNAVAILABLE, "{url}");
            for path in [&self.asked, &self.unasked] {
                let reply = connection.get(&self.narinfo(path));
                assert!(matches!(reply.status, 200 | 503), "{reply:?}");
            }
            let absent = connection.get(&format!("/{}.narinfo", "z".repeat(32)));
            assert!(matches!(absent.status, 404 | 503));
        }
        // Responses that do not need the database must still be sent.
        assert_eq!(connection.get("/nix-cache-info").status, 200);
        assert_eq!(connection.get("/nowhere").status, 404);
        assert_eq!(self.server.count(RECOVERED), 0);
    }

    /// Checks that everything is served once the cause has gone, and that failure and recovery were
    /// logged once each.
    #[track_caller]
    pub fn assert_recovered(&mut self, fault: &str) {
        let start = Instant::now();
        let url = nar(&self.unasked);
        let is_back = holds_within(BACK_WITHIN, || {
            let status = self.ask(&url).status;
            assert!(matches!(status, 200 | 503), "{status}");
            status == 200
        });
        assert!(is_back, "not back: {:?}", self.server.lines());
        eprintln!("back after {:?}: {fault}", start.elapsed());
        self.server.wait_for(RECOVERED);
        let mut connection = Connection::connect(self.addr);
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

    /// Checks that paths added from now on are served.
    #[track_caller]
    pub fn assert_serves_new_paths(&self) {
        let later = self.store.add_file("later", b"later");
        assert_eq!(self.ask(&self.narinfo(&later)).status, 200);
    }
}

pub fn nar(path: &str) -> String {
    format!("/nar/{}.nar", hash_part(path))
}

/// Copies a file in place: the destination keeps its inode.
pub fn cp(from: &Path, to: &Path) {
    output(Command::new("cp").arg(from).arg(to));
}

/// Replaces the database and moves the old one to `aside`. Atomic, because the server may check the
/// file at any time.
pub fn replace(database: &Path, aside: &Path, make: impl FnOnce(&Path)) {
    let other = database.with_extension("other");
    make(&other);
    fs::hard_link(database, aside).expect("another name for the database");
    fs::rename(other, database).expect("another file under its name");
}

/// Returns the path of a file that SQLite keeps beside the database.
pub fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Starts a real nix-daemon that already has the database open.
#[track_caller]
pub fn start_daemon(store: &OwnStore) -> Daemon {
    let daemon = Daemon::start(store);
    // The daemon process of the first connection may open the database at any later time. The
    // process of this second connection has opened it when the command returns.
    output(
        nix("nix", store.root())
            .env("NIX_REMOTE", "daemon")
            .env("NIX_DAEMON_SOCKET_PATH", Daemon::socket(store))
            .args(["store", "ping"]),
    );
    daemon
}
