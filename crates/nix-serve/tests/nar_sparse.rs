//! NARs longer than 4 GiB are served in bounded memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::process::Stdio;

use sha2::{Digest, Sha256};
use support::{OwnStore, ServerProcess, hash_part, nix};
use testkit::http1::Connection;
use testkit::limit;

const FILE_LEN: u64 = 5 << 30;
/// Length of the NAR: the contents and the framing of a single file.
const NAR_SIZE: u64 = FILE_LEN + 112;
/// Output of `truncate -s 5G zeros; nix-store --dump zeros | sha256sum`, Nix 2.8.0.
const NAR_HASH: &str = "a714df9b658ecd336703edb9e410def644d8e5836502452f5ad38d52f2bd7ce9";
const PATH: &str = "/nix/store/00000000000000000000000000000005-sparse";
/// Maximum peak memory of a server that sends one NAR after another, in bytes.
const MEMORY_MAX: u64 = 32 << 20;

/// Creates a store with one path: a sparse file of 5 GiB.
fn store() -> OwnStore {
    let store = OwnStore::new();
    let real = store.real(PATH);
    fs::create_dir_all(real.parent().unwrap()).unwrap();
    let file = fs::File::create(&real).unwrap();
    file.set_len(FILE_LEN).unwrap();
    let mut load = nix("nix-store", store.root());
    load.arg("--store").arg(store.root()).arg("--load-db");
    let mut load = load.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = load.stdin.take().unwrap();
    writeln!(stdin, "{PATH}\n{NAR_HASH}\n{NAR_SIZE}\n\n0").unwrap();
    drop(stdin);
    assert!(load.wait().unwrap().success());
    store
}

/// Returns the peak resident memory of a process, in bytes.
fn memory_peak(server: &ServerProcess) -> u64 {
    from_proc(server, "status", "VmHWM:") * 1024
}

/// Returns the number of bytes that a process has read so far.
fn read_len(server: &ServerProcess) -> u64 {
    from_proc(server, "io", "rchar:")
}

fn from_proc(server: &ServerProcess, file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/{file}", server.child.id())).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    let value = value.unwrap().trim();
    value.strip_suffix(" kB").unwrap_or(value).parse().unwrap()
}

#[test]
fn a_nar_of_five_gigabytes_is_sent_in_bounded_memory() {
    let store = store();
    let server = ServerProcess::of_store(store.root());
    let narinfo = server.narinfo(PATH).text();
    let size = format!("\nNarSize: {NAR_SIZE}\n");
    assert!(narinfo.contains(&size), "{narinfo}");

    let mut connection = Connection::connect(server.addr);
    let url = server.nar_url(PATH);
    let length = NAR_SIZE.to_string();
    let head = connection.request("HEAD", &url, &[]);
    assert_eq!(head.header("content-length"), Some(&*length));

    let answer = connection.begin("GET", &url, &[]);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-length"), Some(&*length));
    let mut hash = Sha256::new();
    connection.body(|piece| hash.update(piece)).unwrap();
    let hash = hash
        .finalize()
        .iter()
        .fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        });
    assert_eq!(hash, NAR_HASH);
    // The body ends at its announced length, so the connection can be used again.
    let before = read_len(&server);
    parts(&mut connection, &url);
    let read = read_len(&server) - before;
    assert!(read < 1 << 20, "{read} bytes read for a few");
    // The peak of the server process alone.
    let used = memory_peak(&server);
    limit::memory_at_most("memory of the server", used, MEMORY_MAX);
}

/// Requests ranges on both sides of 4 GiB and at the end. The server must not read the bytes before
/// a range.
fn parts(connection: &mut Connection, url: &str) {
    for (from, to) in [
        ((1 << 32) - 8, (1 << 32) + 7),
        (NAR_SIZE - 32, NAR_SIZE - 1),
        (NAR_SIZE - 1, NAR_SIZE - 1),
    ] {
        let field = format!("Range: bytes={from}-{to}");
        let answer = connection.request("GET", url, &[&field]);
        assert_eq!(answer.status, 206);
        let expected = format!("bytes {from}-{to}/{NAR_SIZE}");
        assert_eq!(answer.header("content-range"), Some(&*expected));
        let mut bytes = vec![0; usize::try_from(to - from + 1).unwrap()];
        let end = b"\x01\0\0\0\0\0\0\0)\0\0\0\0\0\0\0";
        if to == NAR_SIZE - 1 {
            let len = bytes.len();
            let shown = len.min(end.len());
            bytes[len - shown..].copy_from_slice(&end[end.len() - shown..]);
        }
        assert_eq!(answer.body, bytes, "{from}");
    }
    let field = format!("Range: bytes={NAR_SIZE}-");
    assert_eq!(connection.request("GET", url, &[&field]).status, 416);
    let listing = connection.get(&format!("/{}.ls", hash_part(PATH)));
    let expected = format!(
        "{{\"version\":1,\"root\":{{\"type\":\"regular\",\"size\":{FILE_LEN},\"narOffset\":96}}}}"
    );
    assert_eq!(listing.text(), expected);
}

/// Downloads that no client reads cost their buffers, not whole NARs.
#[test]
fn twenty_downloads_whose_clients_do_not_read_take_bounded_memory() {
    let store = store();
    let server = ServerProcess::of_store(store.root());
    let url = server.nar_url(PATH);
    let mut connections: Vec<Connection> = Vec::new();
    for _ in 0..20 {
        let mut connection = Connection::connect(server.addr);
        assert_eq!(connection.begin("GET", &url, &[]).status, 200);
        connections.push(connection);
    }
    // Other clients are served meanwhile.
    assert_eq!(server.narinfo(PATH).status, 200);
    let used = memory_peak(&server);
    limit::memory_at_most("memory of the server", used, MEMORY_MAX);
}
