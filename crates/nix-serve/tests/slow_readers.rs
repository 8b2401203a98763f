//! Clients that read slowly cost a bounded amount of memory and do not prevent others from being
//! served.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/burden.rs"]
mod burden;
mod support;
mod support_process;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use burden::{ask, connect, resident_len, slow_readers, wait_for_all};
use support::{
    Nix, OwnStore, ServerProcess, eventually, hash_part, local, nix_serve, sample, sample_root,
};
use support_process::Connection;
use testkit::limit;

const MIB: u64 = 1 << 20;

/// Creates a store in memory with one path of `count` files, whose names have `name_len` bytes.
fn wide_store(count: usize, name_len: usize) -> (OwnStore, String) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = OwnStore {
        dir,
        nix: Nix::INSTALLED,
    };
    store.run("nix-store", &["--init"]);
    let path = "/nix/store/00000000000000000000000000000000-wide".to_owned();
    fill(&store.real(&path), count, name_len);
    store.register(&path);
    (store, path)
}

fn fill(directory: &Path, count: usize, name_len: usize) {
    std::fs::create_dir_all(directory).unwrap();
    let first = directory.join("0");
    std::fs::write(&first, "").unwrap();
    for number in 0..count {
        let name = format!("{number:0name_len$}");
        std::fs::hard_link(&first, directory.join(name)).unwrap();
    }
}

/// The directories that are buffered for slow readers of NARs and listings take 64 MiB in total,
/// for any number of readers. Every reader can finish.
#[test]
fn large_directories_take_bounded_memory() {
    const READERS: u64 = 48;
    // The names of the entries take 5 MB per reader.
    let (store, path) = wide_store(20_000, 250);
    let server = ServerProcess::of_store(store.root());
    let pid = server.child.id();
    let nar = format!("/nar/{}.nar", hash_part(&path));
    let expected = server.get(&nar);
    assert!(expected.is_complete);
    let before = resident_len(pid);
    let readers = slow_readers(server.addr, usize::try_from(READERS).unwrap(), &nar);
    let held = resident_len(pid).saturating_sub(before);
    println!(
        "{READERS} slow readers of 20,000 entries: {} KiB",
        held / 1024
    );
    // Each reader needs a part of the directory and buffers; the allocator retains some memory.
    let bound = 64 * MIB + READERS * MIB + 16 * MIB;
    limit::memory_at_most("memory for slow readers", held, bound);
    // A new reader gets the directory in several passes.
    let answer = server.get(&nar);
    assert!(answer.is_complete && answer.body == expected.body);
    drop(readers);
}

fn post(addr: SocketAddr, list: &[u8]) -> u16 {
    let mut connection = Connection::connect(addr);
    let len = list.len();
    connection.send_request("POST", "/narinfos", &[&format!("Content-Length: {len}")]);
    connection.send(list);
    connection.response(false).status
}

/// Reads to the end; returns whether the response was truncated.
fn is_cut_off(mut stream: TcpStream) -> bool {
    let mut answer = Vec::new();
    let outcome = stream.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    if let Err(error) = &outcome {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    outcome.is_err() || !answer.ends_with(b"\r\n0\r\n\r\n")
}

/// Twenty clients that request 100,000 paths each and do not read occupy the capacity for bulk
/// queries. They are evicted for clients that read.
#[test]
fn who_asks_for_many_narinfos_and_does_not_read_gives_way() {
    let server = ServerProcess::start(nix_serve().args([
        "--store",
        &local(&sample_root()),
        "--workers",
        "4",
    ]));
    let list = format!("{}\n", hash_part(&sample("tree"))).repeat(100_000);
    let ask_for_many = || {
        let mut stream = connect(server.addr);
        ask(&mut stream, "POST", "/narinfos", list.as_bytes());
        wait_for_all(std::slice::from_ref(&stream));
        let mut head = [0; 12];
        stream.peek(&mut head).unwrap();
        (head == *b"HTTP/1.1 200").then_some(stream)
    };
    let ask_twenty = || -> Vec<TcpStream> {
        let patiently = |_| {
            let mut answered = None;
            eventually("there is room", || {
                answered = ask_for_many();
                answered.is_some()
            });
            answered.unwrap()
        };
        (0..20).map(patiently).collect()
    };
    let first = ask_twenty();
    // The first responses are 503. Then there is capacity, because a response that makes no
    // progress for five seconds is evicted.
    let hundred = &list.as_bytes()[..3300];
    eventually("somebody gives way", || {
        let status = post(server.addr, hundred);
        assert!(matches!(status, 200 | 503), "{status}");
        status == 200
    });
    let second = ask_twenty();
    // The evicted responses are visibly truncated.
    for stream in first {
        assert!(is_cut_off(stream));
    }
    drop(second);
    server.signal("USR1");
    let counts = server.wait_for("events since the start");
    assert!(counts.contains("bulk_evicted="), "{counts}");
    assert!(
        !server
            .lines()
            .iter()
            .any(|line| line.contains("were aborted"))
    );
}

/// A compressed request body is refused as such, not parsed as a list whose first line is invalid.
#[test]
fn a_compressed_list_is_refused_as_such() {
    let server = ServerProcess::of_store(&sample_root());
    for (coding, status) in [("gzip", 415), ("identity", 200), ("Identity", 200)] {
        let fields = [&*format!("Content-Encoding: {coding}"), "Content-Length: 0"];
        let answer = server.request("POST", "/narinfos", &fields);
        assert_eq!(answer.status, status, "{coding}");
        if status == 415 {
            assert_eq!(answer.header("accept-encoding"), Some("identity"));
        }
    }
}

/// A request that cannot be parsed is also written to the access log.
#[test]
fn refused_requests_stand_in_the_access_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("access");
    let mut command = nix_serve();
    command.args(["--store", &local(&sample_root()), "--access-log"]);
    let server = ServerProcess::start(command.arg(&log));
    let mut stream = connect(server.addr);
    stream
        .write_all(b"GET / HTTP/1.1\r\nHo st: a\r\n\r\n")
        .unwrap();
    eventually("a line", || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.starts_with("127.0.0.1 - - [") && text.ends_with("\"-\" 400 - \"-\" \"-\"\n")
    });
}
