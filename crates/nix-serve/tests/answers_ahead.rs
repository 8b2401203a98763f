//! The server prefetches narinfos: it can answer requests for paths that no client has requested
//! before, even while the database is locked.

mod support;
mod support_process;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::{OwnStore, eventually, hash_part, key_pair, local, nix_serve};
use support_process::{Connection, Process, Shell};
use testkit::sqlite::run as sqlite;

/// Uses a lock in rollback mode: it blocks all readers, but does not mean that anything was
/// committed.
#[test]
fn narinfos_are_prefetched_and_sent_while_the_database_is_locked() {
    let store = OwnStore::new();
    let dir = tempfile::tempdir().expect("a directory");
    let (secret, _) = key_pair(dir.path(), "ahead-1");
    let before = store.add_file("before", b"before the start");
    sqlite(&store.database(), "pragma journal_mode = delete");
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    let (server, addr) = Process::serving(command.env("NIX_SECRET_KEY_FILE", &secret));
    // None of these responses can come from the database, which is locked during the requests.
    let ready = |path: &str| {
        let url = format!("/{}.narinfo", hash_part(path));
        eventually("it is made ahead", || {
            // Leave the lock free for a while: prefetching tries the database every 250 ms, and
            // must find it unlocked.
            std::thread::sleep(Duration::from_millis(600));
            let holder = Shell::open(&store.database(), "begin exclusive;");
            let reply = Connection::connect(addr).get(&url);
            drop(holder);
            assert!(matches!(reply.status, 200 | 503), "{reply:?}");
            reply.status == 200 && reply.text().contains("Sig: ahead-1:")
        });
    };
    ready(&before);
    // Nix switches the database to WAL mode, which an open reader would prevent. So wait until the
    // server is idle and has no transaction open.
    eventually("the server sleeps, and holds no lock", || {
        server.signal("STOP");
        let is_free = sqlite_says(&store.database(), "begin exclusive; select 1;") == "1";
        if !is_free {
            server.signal("CONT");
        }
        is_free
    });
    let after = store.add_file("after", b"after the start");
    let mode = sqlite_says(&store.database(), "pragma journal_mode = delete");
    server.signal("CONT");
    assert_eq!(mode, "delete");
    ready(&after);
    let (other, _) = key_pair(dir.path(), "other-1");
    std::fs::copy(other, &secret).expect("another key");
    server.signal("HUP");
    let url = format!("/{}.narinfo", hash_part(&before));
    eventually("it is signed anew", || {
        std::thread::sleep(Duration::from_millis(600));
        let holder = Shell::open(&store.database(), "begin exclusive;");
        let reply = Connection::connect(addr).get(&url);
        drop(holder);
        reply.status == 200 && reply.text().contains("Sig: other-1:")
    });
}

/// Runs a statement that must not wait for a lock: the server that may have one is stopped.
fn sqlite_says(database: &Path, statement: &str) -> String {
    let mut sqlite = Command::new("sqlite3");
    let output = sqlite.arg(database).arg(statement).output();
    let output = output.expect("sqlite3 is there").stdout;
    String::from_utf8_lossy(&output).trim().to_owned()
}
