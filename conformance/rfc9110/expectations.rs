//! Expectations and interim responses: sections 10.1.1 and 15.2.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{ask, is_own, server};

/// Sends a head, waits for the head of a response, and sends the rest; returns the status lines of
/// both responses.
fn in_two(head: &str, rest: &str) -> (String, String) {
    let mut stream = TcpStream::connect(server::addr()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let (mut first, mut byte) = (Vec::new(), [0]);
    while !first.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "ended in {first:?}");
        first.extend_from_slice(&byte);
    }
    let is_interim = first.starts_with(b"HTTP/1.1 1");
    let head = String::from_utf8_lossy(&first).to_ascii_lowercase();
    assert!(!(is_interim && head.contains("content-length")), "{head}");
    // The server may have refused the request and closed the connection.
    stream.write_all(rest.as_bytes()).ok();
    let mut last = Vec::new();
    stream.read_to_end(&mut last).ok();
    let line = |bytes: Vec<u8>| {
        let text = String::from_utf8(bytes).unwrap();
        text.lines().next().unwrap_or_default().to_owned()
    };
    (line(first), line(last))
}

fn expecting(target: &str) -> String {
    format!(
        "POST {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: 100-continue\r\n\
         Content-Length: 5\r\n\r\n"
    )
}

#[test]
fn the_peer_is_told_to_go_on_or_not() {
    // RFC 9110, 10.1.1: "Upon receiving an HTTP/1.1 (or later) request that has a method, target
    // URI, and complete header section that contains a 100-continue expectation and an indication
    // that request content will follow, an origin server MUST send either:"
    // RFC 9110, 10.1.1: "The origin server MUST NOT wait for the content before sending the 100
    // (Continue) response."
    // RFC 9110, 10.1.1: "A server that sends a 100 (Continue) response MUST ultimately send a final
    // status code, once it receives and processes the request content"
    let own = ["/streamed", "/inline"].into_iter().filter(|_| is_own());
    for target in ["/", "/none"].into_iter().chain(own) {
        let (first, last) = in_two(&expecting(target), "hello");
        if first.contains(" 100 ") {
            assert!(
                last.starts_with("HTTP/1.1 ") && !last.contains(" 1"),
                "{target}: {last:?}"
            );
        } else {
            assert!(first.starts_with("HTTP/1.1 "), "{target}: {first:?}");
        }
    }
}

#[test]
fn an_old_peer_is_told_nothing() {
    // RFC 9110, 10.1.1: "A server that receives a 100-continue expectation in an HTTP/1.0 request
    // MUST ignore that expectation."
    // RFC 9110, 15.2: "Since HTTP/1.0 did not define any 1xx status codes, a server MUST NOT send a
    // 1xx response to an HTTP/1.0 client."
    let own = ["/streamed", "/early"].into_iter().filter(|_| is_own());
    for target in ["/"].into_iter().chain(own) {
        let old = expecting(target).replace("HTTP/1.1", "HTTP/1.0") + "hello";
        let statuses = ask(old).statuses();
        assert!(
            matches!(statuses[..], [200..=999]),
            "{target}: {statuses:?}"
        );
    }
    if is_own() {
        let now = "GET /early HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        assert_eq!(ask(now).statuses(), [103, 200]);
    }
}
