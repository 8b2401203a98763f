//! A reader without write permission works in each state in which Nix leaves its database.
//!
//! The reader is this test binary, started as the user nobody with [`reader_process`] as its only
//! test. It takes commands from standard input. Starting it requires root: for other users the
//! tests print a note and pass.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(
    clippy::print_stdout,
    reason = "replies of a child, and why a test was skipped"
)]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use samovar_store::{Location, Store, open};
use support::rows::{self, Journal, Rows};
use support::{NixStore, make_public};

const NOBODY: u32 = 65534;
const LOCATION: &str = "SAMOVAR_TEST_STATE_DIR";
const REPLY: &str = "reply: ";

/// Entry point of the reader process. Does nothing in other processes.
#[test]
fn reader_process() {
    let Some(state_dir) = std::env::var_os(LOCATION) else {
        return;
    };
    let location = location(Path::new(&state_dir));
    let store = samovar_store::LocalStore::new(location).unwrap();
    let catalog = store.catalog().unwrap();
    let mut snapshot = catalog.current();
    for line in std::io::stdin().lines() {
        let number: u32 = line.unwrap().parse().unwrap();
        let hash_part = rows::path(number).hash_part();
        if !catalog.check(&mut snapshot) {
            match catalog.load() {
                Ok(fresh) => snapshot = fresh,
                Err(error) => {
                    println!("{REPLY}{error:?}");
                    continue;
                }
            }
        }
        let by_catalog = snapshot.may_contain(&hash_part);
        match store.lookup(hash_part) {
            Ok(Some(info)) if by_catalog => println!("{REPLY}{}", info.nar_size),
            Ok(None) => println!("{REPLY}absent"),
            Ok(Some(_)) => println!("{REPLY}the catalog lacks it"),
            Err(error) => println!("{REPLY}{error:?}"),
        }
    }
}

fn location(state_dir: &Path) -> Location {
    let root = state_dir.parent().unwrap();
    Location {
        store_dir: samovar_nix::StoreDir::default(),
        real_dir: root.join("store"),
        state_dir: state_dir.to_owned(),
        log_dir: root.join("log"),
        socket: root.join("socket"),
        read_only: false,
        dotfile_locks: false,
    }
}

struct Reader {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _binary: tempfile::TempDir,
}

impl Reader {
    /// Starts a reader as nobody; returns `None` without root. `prefix` is a command that runs the
    /// reader.
    fn start(state_dir: &Path, uid: u32, prefix: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can become another user");
            return None;
        }
        // Copy the binary: the user nobody may have no access to the build directory.
        let (binary_dir, binary) = copy_of_this_binary();
        let mut words = prefix.iter().map(ToString::to_string).collect::<Vec<_>>();
        words.push(binary.to_str().unwrap().to_owned());
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .args(["--exact", "reader_process", "--nocapture"])
            .env(LOCATION, state_dir)
            .uid(uid)
            .gid(uid)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Some(Self {
            child,
            input,
            output,
            _binary: binary_dir,
        })
    }

    fn ask(&mut self, number: u32) -> String {
        writeln!(self.input, "{number}").unwrap();
        loop {
            let mut line = String::new();
            assert!(
                self.output.read_line(&mut line).unwrap() > 0,
                "the reader has ended"
            );
            // The test harness prints to the same stream, without ending its line.
            if let Some((_, reply)) = line.split_once(REPLY) {
                return reply.trim_end().to_owned();
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

fn copy_of_this_binary() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    make_public(dir.path());
    let path = dir.path().join("reader");
    // Copy in another process: if a child of another test inherited a descriptor opened for
    // writing, execution would fail with "text file busy".
    let copied = Command::new("cp")
        .arg(std::env::current_exe().unwrap())
        .arg(&path)
        .status();
    assert!(copied.unwrap().success());
    make_public(&path);
    (dir, path)
}

fn state_dir(place: &Rows) -> PathBuf {
    place.dir().join("var")
}

const SIZE_1: &str = "120";
const NO_WAL_INDEX: &str = "Unavailable(WalIndexMissing)";

/// Asks a reader while no other process has the database open. A reader closes a changed database
/// before it opens it again. If the writer closes it at that moment, SQLite removes the WAL files,
/// which the reader may not create: then another writer creates them.
#[track_caller]
fn ask_idle(reader: &mut Reader, place: &Rows, number: u32) -> String {
    let answer = reader.ask(number);
    if answer != NO_WAL_INDEX {
        return answer;
    }
    let _writer = place.writer();
    let mut answer = answer;
    testkit::eventually("the reader opens the database", || {
        answer = reader.ask(number);
        answer != NO_WAL_INDEX
    });
    answer
}

/// Retries for a minute, until the reply is the expected one.
#[track_caller]
fn recovers(reader: &mut Reader, number: u32, expected: &str) {
    let mut answer = String::new();
    let is_back = testkit::wait::holds_within(testkit::PATIENCE, || {
        answer = reader.ask(number);
        answer == expected
    });
    assert!(is_back, "still {answer}");
}

#[test]
fn another_process_has_the_database_open() {
    let place = Rows::new(Journal::Wal);
    let writer = place.writer();
    rows::register(&writer, 1, 1);
    let Some(mut reader) = Reader::start(&state_dir(&place), NOBODY, &[]) else {
        return;
    };
    assert_eq!(reader.ask(1), SIZE_1);
    assert_eq!(reader.ask(2), "absent");
    rows::register(&writer, 2, 2);
    assert_eq!(reader.ask(2), "128");
    rows::delete(&writer, 2);
    assert_eq!(reader.ask(2), "absent");
    // The reader keeps the WAL files alive when the writer closes them, and sees the commits of the
    // next writer.
    writer.close().unwrap();
    assert_eq!(reader.ask(1), SIZE_1);
    let writer = place.writer();
    rows::register(&writer, 3, 1);
    assert_eq!(reader.ask(3), SIZE_1);
}

/// Without WAL files, the reader cannot create them. It reads the database alone until the next
/// commit, and does not miss that.
#[test]
fn idle_and_without_wal_files() {
    let place = Rows::new(Journal::Wal);
    let writer = place.writer();
    rows::register(&writer, 1, 1);
    writer.close().unwrap();
    let Some(mut reader) = Reader::start(&state_dir(&place), NOBODY, &[]) else {
        return;
    };
    assert_eq!(reader.ask(1), SIZE_1);
    for round in 2..20 {
        assert_eq!(ask_idle(&mut reader, &place, round), "absent");
        // A Nix process starts, commits and ends. If the reader has not opened the database again
        // by then, SQLite copies the commit into the file and removes the WAL files.
        let writer = place.writer();
        rows::register(&writer, round, 1);
        if round % 2 == 0 {
            assert_eq!(reader.ask(round), SIZE_1);
        }
        writer.close().unwrap();
        assert_eq!(ask_idle(&mut reader, &place, round), SIZE_1);
    }
}

/// A reader that opened the database without WAL files locks it after the next commit. The last
/// writer must not remove the WAL files then.
#[test]
fn locks_are_kept_after_the_first_commit() {
    let place = Rows::new(Journal::Wal);
    place.writer().close().unwrap();
    let Some(mut reader) = Reader::start(&state_dir(&place), NOBODY, &[]) else {
        return;
    };
    assert_eq!(reader.ask(1), "absent");
    let writer = place.writer();
    rows::register(&writer, 1, 1);
    assert_eq!(reader.ask(1), SIZE_1);
    writer.close().unwrap();
    assert!(place.dir().join("var/db/db.sqlite-shm").exists());
    assert_eq!(reader.ask(1), SIZE_1);
}

/// Leaves the WAL files as Nix 2.22 and later do: the WAL is empty, and no process uses the files.
fn with_idle_wal_files(place: &Rows) {
    let writer = place.writer();
    rows::register(&writer, 1, 1);
    writer
        .query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))
        .unwrap();
    let copy = place.dir().join("copy");
    let db = place.dir().join("var/db");
    let cp = |from: &Path, to: &Path| {
        // Copy in another process: closing the files in this one would drop the writer's locks.
        assert!(
            Command::new("cp")
                .arg("-r")
                .arg(from)
                .arg(to)
                .status()
                .unwrap()
                .success()
        );
    };
    cp(&db, &copy);
    writer.close().unwrap();
    std::fs::remove_dir_all(&db).unwrap();
    std::fs::rename(&copy, &db).unwrap();
    assert!(db.join("db.sqlite-shm").exists());
}

#[test]
fn idle_with_wal_files() {
    let place = Rows::new(Journal::Wal);
    with_idle_wal_files(&place);
    let Some(mut reader) = Reader::start(&state_dir(&place), NOBODY, &[]) else {
        return;
    };
    for round in 0..3 {
        assert_eq!(ask_idle(&mut reader, &place, 1), SIZE_1);
        assert_eq!(ask_idle(&mut reader, &place, 100 + round), "absent");
        // A Nix process starts, commits and ends.
        let writer = place.writer();
        assert_eq!(reader.ask(100 + round), "absent");
        rows::register(&writer, 100 + round, 1);
        assert_eq!(reader.ask(100 + round), SIZE_1);
        writer
            .query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))
            .unwrap();
        assert_eq!(reader.ask(100 + round), SIZE_1);
        rows::delete(&writer, 100 + round);
        rows::register(&writer, 200 + round, 1);
        writer.close().unwrap();
        assert_eq!(ask_idle(&mut reader, &place, 100 + round), "absent");
        assert_eq!(ask_idle(&mut reader, &place, 200 + round), SIZE_1);
    }
}

#[test]
fn commits_between_two_queries_of_an_idle_reader() {
    let place = Rows::new(Journal::Wal);
    with_idle_wal_files(&place);
    let Some(mut reader) = Reader::start(&state_dir(&place), NOBODY, &[]) else {
        return;
    };
    for round in 0..20 {
        assert_eq!(ask_idle(&mut reader, &place, 100 + round), "absent");
        // Each process rebuilds the WAL index, and may write the same bytes to it as before.
        for number in [100 + round, 200 + round] {
            let writer = place.writer();
            rows::register(&writer, number, 1);
            writer
                .query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))
                .unwrap();
            writer.close().unwrap();
            drop(place.writer());
        }
        assert_eq!(ask_idle(&mut reader, &place, 100 + round), SIZE_1);
        assert_eq!(ask_idle(&mut reader, &place, 200 + round), SIZE_1);
    }
}

/// An empty WAL without its index is not used; one with commits cannot be read.
#[test]
fn a_wal_without_its_index() {
    let place = Rows::new(Journal::Wal);
    with_idle_wal_files(&place);
    std::fs::remove_file(place.dir().join("var/db/db.sqlite-shm")).unwrap();
    let Some(mut reader) = Reader::start(&state_dir(&place), NOBODY, &[]) else {
        return;
    };
    assert_eq!(reader.ask(1), SIZE_1);
    let wal = place.dir().join("var/db/db.sqlite-wal");
    std::fs::write(&wal, "commits").unwrap();
    assert_eq!(reader.ask(2), NO_WAL_INDEX);
    let _writer = place.writer();
    recovers(&mut reader, 1, SIZE_1);
}

#[test]
fn not_readable() {
    use std::os::unix::fs::PermissionsExt;
    let place = Rows::new(Journal::Wal);
    let writer = place.writer();
    rows::register(&writer, 1, 1);
    let mode = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(place.database(), permissions).unwrap();
    };
    mode(0o600);
    let Some(mut reader) = Reader::start(&state_dir(&place), NOBODY, &[]) else {
        return;
    };
    assert_eq!(reader.ask(1), "Unavailable(PermissionDenied)");
    mode(0o644);
    recovers(&mut reader, 1, SIZE_1);
}

#[test]
fn rollback_mode() {
    let place = Rows::new(Journal::Truncate);
    let writer = place.writer();
    rows::register(&writer, 1, 1);
    let Some(mut reader) = Reader::start(&state_dir(&place), NOBODY, &[]) else {
        return;
    };
    assert_eq!(reader.ask(1), SIZE_1);
    rows::register(&writer, 2, 1);
    assert_eq!(reader.ask(2), SIZE_1);
    writer.close().unwrap();
    rows::delete(&place.writer(), 2);
    assert_eq!(reader.ask(2), "absent");
}

#[test]
fn a_read_only_file_system() {
    let place = Rows::new(Journal::Wal);
    let writer = place.writer();
    rows::register(&writer, 1, 1);
    writer.close().unwrap();
    let dir = place.dir().to_str().unwrap();
    let script =
        format!("mount --bind {dir} {dir} && mount -o remount,bind,ro {dir} && exec \"$@\"");
    let prefix = ["unshare", "-m", "sh", "-c", &script, "sh"];
    let can_mount = Command::new("unshare")
        .args(["-m", "sh", "-c", &script, "sh", "true"])
        .status();
    if !can_mount.is_ok_and(|status| status.success()) {
        println!("skipped: nothing can be mounted here");
        return;
    }
    // On a read-only file system even root cannot create the WAL index.
    let Some(mut reader) = Reader::start(&state_dir(&place), 0, &prefix) else {
        return;
    };
    assert_eq!(reader.ask(1), SIZE_1);
    assert_eq!(reader.ask(2), "absent");
}

/// Calls [`open`] in an unprivileged process, which uses the daemon while it cannot open the
/// database.
#[test]
fn opener_process() {
    let Some(dir) = std::env::var_os("SAMOVAR_TEST_NIX_DIR") else {
        return;
    };
    let at = |name: &str| Path::new(&dir).join(name).to_str().unwrap().to_owned();
    let variable = |name: &str| match name {
        "NIX_STORE_DIR" => Some(at("store").into()),
        "NIX_STATE_DIR" => Some(at("var").into()),
        "NIX_LOG_DIR" => Some(at("log").into()),
        "NIX_CONF_DIR" => Some(at("etc").into()),
        "NIX_DAEMON_SOCKET_PATH" => Some(at("socket").into()),
        _ => None,
    };
    let settings = samovar_store::Settings::from_environment(variable).unwrap();
    let uri = std::env::var("SAMOVAR_TEST_URI").unwrap();
    let hash_part = std::env::var("SAMOVAR_TEST_HASH_PART")
        .unwrap()
        .parse()
        .unwrap();
    match open(Some(&uri), &settings) {
        Ok(store) => {
            let info = store.lookup(hash_part).unwrap();
            let tree = info.map(|info| store.tree(&info.path).unwrap());
            println!(
                "{REPLY}{:?}",
                tree.map(|tree| tree.plan(1 << 20).unwrap().nar_size())
            );
        }
        Err(error) => println!("{REPLY}{error}"),
    }
}

#[test]
fn a_server_without_privileges_starts() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let nix = NixStore::new();
    // Nix 2.8 removes the WAL files when it ends, and root's daemon opens the database for each
    // connection again.
    let path = nix.add_text("a", "hello\n");
    let (_dir, binary) = copy_of_this_binary();
    let open = |uri: &str| {
        let output = Command::new(&binary)
            .args(["--exact", "opener_process", "--nocapture"])
            .env("SAMOVAR_TEST_NIX_DIR", nix.root())
            .env("SAMOVAR_TEST_URI", uri)
            .env("SAMOVAR_TEST_HASH_PART", path.hash_part().to_string())
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (_, reply) = text.split_once(REPLY).expect("the opener replies");
        reply.lines().next().unwrap().to_owned()
    };
    for uri in ["local", "daemon", "auto"] {
        assert_eq!(open(uri), "Some(120)", "{uri}");
    }
    // A WAL without its index: only a process that may create the index can read it.
    std::fs::write(nix.root().join("var/db/db.sqlite-wal"), "commits").unwrap();
    for uri in ["local", "daemon", "auto"] {
        let reply = open(uri);
        assert!(
            reply.contains("WAL index is missing") && reply.contains("start nix-daemon"),
            "{reply}"
        );
    }
    let _running = nix.daemon();
    for uri in ["local", "daemon", "auto", "auto?path-info-cache-size=0"] {
        assert_eq!(open(uri), "Some(120)", "{uri}");
    }
}
