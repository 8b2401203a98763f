//! Each configured limit is enforced exactly: its value is accepted, and one more is refused.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use support::{File, Server, serve};

const INFO: &str = "GET /nix-cache-info HTTP/1.1\r\nHost: a\r\n";

fn serve_with(more: &str) -> (Server, String) {
    serve(&File::new(&format!("admin.listen = []\n{more}")))
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).unwrap();
    stream
}

/// Reads the status of the next response. Returns 0 if the server closes the connection instead.
fn status(stream: &mut TcpStream) -> u16 {
    let mut start = [0; 12];
    match stream.read_exact(&mut start) {
        Ok(()) => String::from_utf8_lossy(&start)[9..].parse().unwrap(),
        Err(_) => 0,
    }
}

#[test]
fn head_size_limit() {
    for len in [1024, 16 * 1024, 64 * 1024] {
        let (_server, address) = serve_with(&format!("connections.head-size = {len}\n"));
        for (len, expected) in [(len, 200), (len + 1, 431)] {
            let rest = "\r\nConnection: close\r\n\r\n";
            let padding = len - INFO.len() - "X: ".len() - rest.len();
            let head = format!("{INFO}X: {}{rest}", "x".repeat(padding));
            assert_eq!(head.len(), len);
            let mut stream = connect(&address);
            stream.write_all(head.as_bytes()).unwrap();
            assert_eq!(status(&mut stream), expected, "{len}");
        }
    }
}

/// At the connection limit a new connection is refused, because connections in the middle of a
/// request body are not closed in its favour.
#[test]
fn connection_limit() {
    let (_server, address) = serve_with("connections.max = 3\n");
    let busy: Vec<_> = (0..3)
        .map(|_| {
            let mut stream = connect(&address);
            // The response proves that the server has accepted the connection. Half of the next
            // request then keeps it busy.
            let query = "POST /narinfos HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf";
            stream
                .write_all(format!("{INFO}\r\n{query}").as_bytes())
                .unwrap();
            assert_eq!(status(&mut stream), 200);
            stream
        })
        .collect();
    let mut past = connect(&address);
    past.write_all(format!("{INFO}\r\n").as_bytes()).unwrap();
    assert_eq!(status(&mut past), 503);
    drop(busy);
}

/// The server announces its limit of concurrent streams in its first frame.
#[test]
fn stream_limit() {
    let (_server, address) = serve_with("connections.streams = 7\n");
    let mut stream = connect(&address);
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 4, "SETTINGS");
    let mut settings = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
    stream.read_exact(&mut settings).unwrap();
    // RFC 9113, 6.5.2: SETTINGS_MAX_CONCURRENT_STREAMS.
    let mut settings = settings.chunks(6);
    assert!(settings.any(|one| one == [0, 3, 0, 0, 0, 7]));
}
