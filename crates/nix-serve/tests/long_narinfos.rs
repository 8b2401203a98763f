//! The narinfo of a path with thousands of references is the same from memory and from the
//! database. Sending it to a client that does not read costs no copy.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_process;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use support::client::succeeds;
use support::{OwnStore, local, nix_serve};
use support_process::{Connection, Process};
use testkit::limit;
use testkit::sqlite::run as sqlite;

/// Creates a store of `count` paths, the last of which refers to all others.
fn store_of(count: u32) -> OwnStore {
    let store = OwnStore::new();
    sqlite(
        &store.database(),
        &format!(
            "with recursive n(i) as (values(1) union all select i + 1 from n where i < {count})
             insert into ValidPaths (id, path, hash, registrationTime, narSize)
             select i, printf('/nix/store/%032d-a-name-of-usual-length-%d', i, i),
             printf('sha256:%064x', i), 1700000000, 112 from n;
             insert into Refs select {count}, id from ValidPaths where id < {count};"
        ),
    );
    store
}

fn serve(store: &OwnStore) -> (Process, std::net::SocketAddr) {
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    Process::serving(&mut command)
}

fn url(number: u32) -> String {
    format!("/{number:032}.narinfo")
}

#[test]
fn a_long_narinfo_is_the_same_each_time_and_over_http_2() {
    // Short; just below and above the length that the I/O thread sends itself; too long to be
    // cached.
    for count in [2, 240, 260, 5000] {
        let store = store_of(count);
        let (_server, addr) = serve(&store);
        let mut connection = Connection::connect(addr);
        let first = connection.get(&url(count)).text();
        let references = first.lines().find(|line| line.starts_with("References: "));
        let reference_count = references.unwrap().split(' ').skip(1).count();
        assert_eq!(reference_count, count as usize - 1);
        for _ in 0..2 {
            assert_eq!(connection.get(&url(count)).text(), first);
            connection.get_and_head(&url(count), &[]);
        }
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--fail", "--http2-prior-knowledge"]);
        assert_eq!(
            succeeds(curl.arg(format!("http://{addr}{}", url(count)))),
            first
        );
    }
}

/// Ten peers with a zero window request 100 narinfos of 200 KB each, which would be 200 MB if each
/// were copied.
#[test]
fn clients_that_do_not_read_cause_no_copies() {
    const COUNT: u32 = 4000;
    let store = store_of(COUNT);
    let (server, addr) = serve(&store);
    let len = Connection::connect(addr).get(&url(COUNT)).text().len();
    assert!(len > 200_000, "{len}");
    let before = resident_len(&server);
    let peers: Vec<_> = (0..10)
        .map(|_| {
            let mut peer = TcpStream::connect(addr).unwrap();
            peer.set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            peer.write_all(&asking(&url(COUNT))).unwrap();
            // Only response heads arrive: the window leaves no space for bodies.
            let mut head_count = 0;
            while head_count < 100 {
                let mut frame = [0; 9];
                peer.read_exact(&mut frame).unwrap();
                let len = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]);
                peer.read_exact(&mut vec![0; len as usize]).unwrap();
                head_count += u32::from(frame[3] == HEADERS);
            }
            peer
        })
        .collect();
    let grown = resident_len(&server).saturating_sub(before);
    limit::memory_at_most("memory for unread responses", grown as u64, 80 << 20);
    drop(peers);
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

/// Builds an HTTP/2 preface with an initial window of 0, and 100 requests.
fn asking(url: &str) -> Vec<u8> {
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut out, SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    for stream in (1..200).step_by(2) {
        // Two fields from the static table (GET, http), and two literal fields without indexing.
        let mut fields = vec![0x82, 0x86];
        for (name, value) in [(":path", url), (":authority", "x")] {
            fields.push(0);
            for text in [name, value] {
                fields.push(u8::try_from(text.len()).unwrap());
                fields.extend(text.as_bytes());
            }
        }
        // Flags END_STREAM and END_HEADERS.
        frame(&mut out, HEADERS, 5, stream, &fields);
    }
    out
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    out.extend(&len[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
}

fn resident_len(server: &Process) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: usize = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib * 1024
}
