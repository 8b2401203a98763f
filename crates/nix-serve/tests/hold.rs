//! With a daemon, the server leases announced paths, and paths that are being sent, against garbage
//! collection. No request waits for a daemon that does not respond.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::daemon::{NixDaemon, roots};
use support::{Nix, OwnStore, ServerProcess, eventually, hash_part, local, nix, nix_serve, raw};
use testkit::http1::Connection;
use testkit::sqlite::Shell;

const HOLD: &str = "1";
const HOLD_TIME: Duration = Duration::from_secs(1);

fn serve(store: &OwnStore, arguments: &[&str]) -> ServerProcess {
    let mut command = nix_serve();
    command.args(["--store", &local(store.root()), "--nar-cache-size", "0"]);
    ServerProcess::start(command.args(["--verbose"]).args(arguments))
}

/// Starts a server and waits until it leases paths.
fn serve_holding(store: &OwnStore, arguments: &[&str]) -> ServerProcess {
    let server = serve(store, arguments);
    let first = store.add_file("first", b"first");
    eventually("a path is held", || {
        server.narinfo(&first);
        roots(store).contains(&first)
    });
    server
}

/// Returns the number of responses that the server has sent without a lease.
fn unleased_count(server: &ServerProcess) -> u64 {
    server.signal("USR1");
    let line = server.wait_for("events since");
    number_in(&line, "narinfo_unleased") + number_in(&line, "nar_unleased")
}

/// Sends requests by `ask` until none of their responses was sent without a lease. A request waits
/// for the daemon for at most 200 ms, which a daemon exceeds on a busy machine. Returns the time
/// before these requests, and whether they were the first ones.
fn until_leased(server: &ServerProcess, ask: impl Fn()) -> (Instant, bool) {
    let (mut started, mut count) = (Instant::now(), 0);
    eventually("every response has its lease", || {
        let before = unleased_count(server);
        started = Instant::now();
        count += 1;
        ask();
        unleased_count(server) == before
    });
    (started, count == 1)
}

/// Waits for a log line, which may have been written before the server was ready.
fn sees(server: &mut ServerProcess, part: &str) -> String {
    let seen = server.lines().into_iter().find(|line| line.contains(part));
    seen.unwrap_or_else(|| server.wait_for(part))
}

fn collect(store: &OwnStore) {
    store.run("nix-store", &["--gc"]);
}

/// Adds a tree of many files. A download opens them one after another.
fn add_tree(store: &OwnStore, name: &str, file_count: usize, file_len: usize) -> String {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join(name);
    fs::create_dir(&tree).unwrap();
    for number in 0..file_count {
        let content = vec![u8::try_from(number % 251).unwrap(); file_len];
        fs::write(tree.join(format!("{number:04}")), content).unwrap();
    }
    store.add(&tree)
}

fn nar_of(path: &str) -> String {
    format!("/nar/{}.nar", hash_part(path))
}

/// Returns a counter from the log line that the server writes when it ends.
fn counted(server: ServerProcess, name: &str) -> u64 {
    let log = server.whole_log();
    let line = log.iter().rfind(|line| line.contains("events since"));
    number_in(line.unwrap_or_else(|| panic!("{log:#?}")), name)
}

/// Returns a counter from the line that the server logs on USR1, and when it ends.
fn number_in(line: &str, name: &str) -> u64 {
    let number = line.split_whitespace().find_map(|word| {
        let (key, number) = word.split_once('=')?;
        (key == name).then(|| number.trim_end_matches(';').parse().unwrap())
    });
    number.unwrap_or(0)
}

/// An announced path is leased for the configured time, and can be collected afterwards.
#[test]
fn an_announced_path_is_leased_for_the_lease_time_and_collected_afterwards() {
    Nix::all().into_iter().for_each(leases_an_announced_path);
}

#[track_caller]
fn leases_an_announced_path(nix: Nix) {
    let store = OwnStore::of(nix);
    let _daemon = NixDaemon::start(&store);
    let server = serve_holding(&store, &["--gc-lease", HOLD]);
    let announced = store.add_file("announced", &[b'a'; 100_000]);
    let silent = store.add_file("silent", b"silent");
    let (started, _) = until_leased(&server, || {
        assert_eq!(server.narinfo(&announced).status, 200);
    });
    collect(&store);
    let nar = server.get(&nar_of(&announced));
    if started.elapsed() < HOLD_TIME {
        assert!(nar.status == 200 && nar.is_complete, "{}", nar.head);
    }
    assert_eq!(server.narinfo(&silent).status, 404);
    // Its NAR was just being sent, so the lease may last twice its configured time.
    eventually("it is collected", || {
        collect(&store);
        !store.real(&announced).exists()
    });
    assert!(started.elapsed() >= HOLD_TIME);
    assert_eq!(server.narinfo(&announced).status, 404);
}

#[test]
fn a_slow_download_stays_leased_beyond_the_lease_time() {
    let store = OwnStore::new();
    let tree = add_tree(&store, "tree", 400, 100_000);
    let expected = store.run("nix-store", &["--query", "--size", &tree]);
    let _daemon = NixDaemon::start(&store);
    let server = serve_holding(&store, &["--gc-lease", HOLD]);
    let other = store.add_file("other", b"other");
    assert_eq!(server.narinfo(&other).status, 200);
    let mut connection = Connection::connect(server.addr);
    // Request the NAR only: its narinfo was never requested.
    connection.begin("GET", &nar_of(&tree), &[]);
    let mut has_waited = false;
    let mut nar = Vec::new();
    let result = connection.body(|piece| {
        // Most of the response is unsent: the server waits for this client.
        if !std::mem::replace(&mut has_waited, true) {
            let started = Instant::now();
            // A daemon that takes longer than 200 ms leases the path after the response has begun.
            eventually("it is leased", || roots(&store).contains(&tree));
            eventually("the other path is collected", || {
                collect(&store);
                started.elapsed() >= 3 * HOLD_TIME && !store.real(&other).exists()
            });
        }
        nar.extend_from_slice(piece);
    });
    result.unwrap();
    assert_eq!(nar.len().to_string(), expected.trim());
    let dump = nix("nix-store", store.root())
        .args(["--store", store.root().to_str().unwrap(), "--dump"])
        .arg(store.real(&tree))
        .output();
    assert!(nar == dump.unwrap().stdout);
    // After the NAR is sent, the path is no longer leased.
    eventually("it is collected", || {
        collect(&store);
        !store.real(&tree).exists()
    });
    assert_eq!(counted(server, "path_collected"), 0);
}

/// Nix acknowledges a temporary root for a path that its collector is deleting only after it has
/// deleted the path. The response does not wait that long, so it has no lease.
#[test]
fn a_path_in_deletion_is_announced_without_a_lease() {
    Nix::all()
        .into_iter()
        .for_each(announces_a_path_in_deletion_without_a_lease);
}

#[track_caller]
fn announces_a_path_in_deletion_without_a_lease(nix: Nix) {
    let store = OwnStore::of(nix);
    let _daemon = NixDaemon::start(&store);
    let server = serve_holding(&store, &[]);
    let path = store.add_file("deleted", b"deleted");
    let lock = Shell::open(&store.database(), "begin immediate;");
    let begin = || {
        let mut deletion = store.command("nix-store");
        deletion.args(["--delete", &path]).stderr(Stdio::piped());
        let mut deletion = deletion.spawn().unwrap();
        let messages = BufReader::new(deletion.stderr.take().unwrap()).lines();
        (deletion, messages)
    };
    let (mut deletion, mut messages) = begin();
    // Nix fails while a process of another test has a file open whose path is too long.
    eventually("the deletion waits for the database", || {
        let is_waiting = messages.any(|line| line.unwrap().contains("is busy"));
        if !is_waiting {
            deletion.wait().unwrap();
            (deletion, messages) = begin();
        }
        is_waiting
    });
    let before = unleased_count(&server);
    assert_eq!(server.narinfo(&path).status, 200);
    assert_eq!(unleased_count(&server), before + 1);
    assert!(!roots(&store).contains(&path));
    drop(lock);
    messages.for_each(drop);
    assert!(deletion.wait().unwrap().success());
    eventually("the root is acknowledged", || roots(&store).contains(&path));
    assert_eq!(server.get(&nar_of(&path)).status, 404);
    assert_eq!(server.narinfo(&path).status, 404);
}

/// Paths in the response to a bulk query are leased.
#[test]
fn bulk_queries_lease_the_paths_they_announce() {
    Nix::all()
        .into_iter()
        .for_each(leases_the_paths_of_bulk_queries);
}

#[track_caller]
fn leases_the_paths_of_bulk_queries(nix: Nix) {
    let store = OwnStore::of(nix);
    let _daemon = NixDaemon::start(&store);
    let server = serve_holding(&store, &[]);
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<String> = (0..100)
        .map(|number| {
            let file = dir.path().join(format!("file-{number}"));
            fs::write(&file, number.to_string()).unwrap();
            file.to_str().unwrap().to_owned()
        })
        .collect();
    let add: Vec<&str> = std::iter::once("--add")
        .chain(files.iter().map(String::as_str))
        .collect();
    let added = store.run("nix-store", &add);
    let paths: Vec<&str> = added.lines().collect();
    let list = paths[..99].join("\n");
    let len = list.len();
    let fields = format!("Host: a\r\nConnection: close\r\nContent-Length: {len}");
    let request = format!("POST /narinfos HTTP/1.1\r\n{fields}\r\n\r\n{list}");
    let (_, is_first) = until_leased(&server, || {
        let answer = raw(server.addr, request.as_bytes());
        assert!(answer.text().ends_with("end 99 0 0\n"), "{}", answer.head);
        let closure = server.get(&format!("/closure/{}", hash_part(paths[99])));
        assert!(closure.text().ends_with("end 1 0 0\n"), "{}", closure.head);
    });
    collect(&store);
    for path in paths {
        assert_eq!(server.get(&nar_of(path)).status, 200);
    }
    let held = roots(&store);
    let mut held: Vec<&str> = held
        .split_terminator('\0')
        .filter(|path| !path.ends_with("-first"))
        .collect();
    let count = held.len();
    held.sort_unstable();
    held.dedup();
    assert_eq!(held.len(), 100);
    // A request that waited in vain leaves its paths in the queue, and the next one adds them
    // again.
    assert!(count == 100 || !is_first, "{count} leases of 100 paths");
}

/// Without leases (`--gc-lease off`), served paths can be collected at once.
#[test]
fn no_path_is_leased_if_leases_are_off() {
    let store = OwnStore::new();
    let _daemon = NixDaemon::start(&store);
    let server = serve(&store, &["--gc-lease", "off"]);
    let path = store.add_file("a", b"a");
    assert_eq!(server.narinfo(&path).status, 200);
    assert_eq!(server.get(&nar_of(&path)).status, 200);
    collect(&store);
    assert_eq!(server.get(&nar_of(&path)).status, 404);
    assert_eq!(server.narinfo(&path).status, 404);
    assert!(roots(&store).is_empty());
    assert_eq!(counted(server, "path_leased"), 0);
}

/// A daemon that starts after the server is used as soon as it runs, because a machine may start
/// both at the same time. Most machines without a daemon get no warning.
#[test]
fn a_daemon_that_starts_later_is_used() {
    let store = OwnStore::new();
    let path = store.add_file("a", b"a");
    let server = serve(&store, &[]);
    let mut asking = serve(&store, &["--gc-lease", "60"]);
    let told = sees(
        &mut asking,
        "paths cannot be leased against garbage collection",
    );
    assert!(told.contains("serving them anyway"), "{told}");
    assert_eq!(server.narinfo(&path).status, 200);
    let daemon = NixDaemon::start(&store);
    asking.wait_for("paths are leased against garbage collection again");
    server.wait_for("paths are leased against garbage collection again");
    until_leased(&server, || {
        assert_eq!(server.narinfo(&path).status, 200);
    });
    assert!(roots(&store).contains(&path));
    // A daemon that has never run causes no log line.
    let told = server
        .lines()
        .into_iter()
        .filter(|line| line.contains("serving them anyway"));
    assert_eq!(told.count(), 0);
    drop(daemon);
}

/// No request fails if the daemon is killed, and the server connects to its successor.
#[test]
fn killing_the_daemon_fails_no_request_and_leasing_resumes() {
    let store = OwnStore::new();
    let tree = add_tree(&store, "tree", 400, 100_000);
    let daemon = NixDaemon::start(&store);
    let server = serve_holding(&store, &[]);
    let mut connection = Connection::connect(server.addr);
    connection.begin("GET", &nar_of(&tree), &[]);
    let mut daemons = vec![daemon];
    let mut has_waited = false;
    let result = connection.body(|_| {
        if std::mem::replace(&mut has_waited, true) {
            return;
        }
        daemons.remove(0).end_with_children();
        server.wait_for("serving them anyway");
        let path = store.add_file("a", b"a");
        assert_eq!(server.narinfo(&path).status, 200);
        assert_eq!(server.get(&nar_of(&path)).status, 200);
        daemons.push(NixDaemon::start(&store));
        server.wait_for("paths are leased against");
        // Paths that are being sent are leased again, and newly announced paths too.
        eventually("held again", || roots(&store).contains(&tree));
        until_leased(&server, || {
            assert_eq!(server.narinfo(&path).status, 200);
        });
        collect(&store);
        assert_eq!(server.get(&nar_of(&path)).status, 200);
    });
    result.unwrap();
    assert_eq!(counted(server, "leases_failed"), 1);
}

/// No request waits if the collector or the disk keeps the daemon busy with one path.
#[test]
fn requests_do_not_wait_for_a_daemon_that_does_not_respond() {
    let store = OwnStore::new();
    let daemon = NixDaemon::start(&store);
    let server = serve_holding(&store, &[]);
    let paths: Vec<String> = (0..20)
        .map(|number| store.add_file("a", number.to_string().as_bytes()))
        .collect();
    let large = add_tree(&store, "large", 10, 100_000);
    let before = unleased_count(&server);
    daemon.signal_children("STOP");
    let mut times: Vec<Duration> = paths
        .iter()
        .map(|path| {
            let started = Instant::now();
            assert_eq!(server.narinfo(path).status, 200);
            started.elapsed()
        })
        .collect();
    let started = Instant::now();
    assert!(server.get(&nar_of(&large)).is_complete);
    times.push(started.elapsed());
    times.sort_unstable();
    // If each request waited, it would wait for 200 ms.
    assert!(times[10] < Duration::from_millis(200), "{times:?}");
    assert_eq!(unleased_count(&server) - before, 21);
    daemon.signal_children("CONT");
    // The server has requested the leases, although no request has waited for them.
    eventually("all are held", || {
        paths.iter().all(|path| roots(&store).contains(path))
    });
    collect(&store);
    assert!(paths.iter().all(|path| store.real(path).exists()));
}

/// Leases of a daemon count only if it serves the same store: its socket may belong to another one.
#[test]
fn a_daemon_of_another_store_is_not_used() {
    let (store, other) = (OwnStore::new(), OwnStore::new());
    let path = store.add_file("a", b"a");
    let _daemon = NixDaemon::start(&other);
    let mut command = nix_serve();
    command.args(["--store", &local(store.root()), "--gc-lease", "60"]);
    command.env("NIX_DAEMON_SOCKET_PATH", NixDaemon::socket(&other));
    let mut server = ServerProcess::start(&mut command);
    sees(&mut server, "the daemon has another store");
    assert_eq!(server.narinfo(&path).status, 200);
    assert!(roots(&other).is_empty());
}

/// The server retries with back-off if a daemon closes each connection at once, because each costs
/// the daemon a process.
#[test]
fn attempts_to_connect_back_off_if_the_daemon_hangs_up_at_once() {
    const COUNT: usize = 4;
    let store = OwnStore::new();
    let socket = NixDaemon::socket(&store);
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let mut server = serve(&store, &[]);
    let greeting = [0x6478_696f_u64, 0x100 | 31, 0x616c_7473].map(u64::to_le_bytes);
    let mut accepted = Vec::new();
    while accepted.len() < COUNT {
        let (mut stream, _) = listener.accept().unwrap();
        accepted.push(Instant::now());
        stream.write_all(&greeting.concat()).unwrap();
        // Read the whole handshake: otherwise closing the socket would send a reset.
        stream.read_exact(&mut [0; 32]).unwrap();
    }
    // The pauses are 250 ms, 500 ms and 1 s.
    let time = accepted[COUNT - 1] - accepted[0];
    assert!(time >= Duration::from_secs(1), "{time:?}");
    sees(&mut server, "cannot be leased");
}
