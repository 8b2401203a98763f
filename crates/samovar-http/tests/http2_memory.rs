//! The memory of HTTP/2 connections and streams is bounded. The file has only one test, because it
//! measures the memory of the whole process.

mod support;

use std::time::{Duration, Instant};

use samovar_http::Limits;
use support::h2::{self as wire, Raw, frame, literal};
use support::h2_app::{start, wait_until};
use support::resident_len;
use testkit::limit;

/// Maximum memory of an idle connection, in bytes: HPACK tables and the buffers of `h2`.
const IDLE_LEN_MAX: usize = 48 * 1024;
/// Maximum memory, in bytes, of a connection whose client opens a hundred streams and all windows
/// but does not read: one piece and small buffers per stream, the output waiting for the socket,
/// and the malloc arenas of the threads. With `MALLOC_ARENA_MAX=1` it takes 4.9 MB, without 7.3 MB
/// on a busy machine.
const GREEDY_LEN_MAX: usize = 100 * (16 + 32 + 16) * 1024 + 2 * 1024 * 1024;

#[test]
fn memory_is_limited_whatever_the_client_does_not_read() {
    let (server, addr) = start(Limits::default());
    drop(Raw::connect(addr));
    let before_len = resident_len();
    let idle: Vec<_> = (0..200).map(|_| Raw::connect(addr)).collect();
    let idle_len = resident_len().saturating_sub(before_len) / idle.len();
    limit::memory_at_most(
        "memory for an idle connection",
        idle_len as u64,
        IDLE_LEN_MAX as u64,
    );
    drop(idle);

    let before_len = resident_len();
    let block = |path: &str| [b"\x82\x86\x41\x01a".to_vec(), literal(":path", path)].concat();
    let greedy: Vec<_> = (0..3)
        .map(|_| {
            let mut raw = Raw::with_settings(addr, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
            let window = 0x7fff_0000_u32.to_be_bytes();
            raw.send(&frame(wire::WINDOW_UPDATE, 0, 0, &window));
            for i in 0..100 {
                let block = block("/pattern/1000000000");
                raw.send(&frame(wire::HEADERS, 5, 2 * i + 1, &block));
            }
            raw
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(3);
    let mut most_len = 0;
    while Instant::now() < deadline {
        most_len = most_len.max(resident_len().saturating_sub(before_len) / greedy.len());
        std::thread::sleep(Duration::from_millis(10));
    }
    limit::memory_at_most(
        "memory for a greedy connection",
        most_len as u64,
        GREEDY_LEN_MAX as u64,
    );
    drop(greedy);
    wait_until("all is given back", || server.connection_count() == 0);
    eprintln!("{idle_len} bytes idle, {most_len} greedy");
}
