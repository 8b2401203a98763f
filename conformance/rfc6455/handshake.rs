//! RFC 6455, section 4: the opening handshake.

use crate::client::{Client, FIELDS, frame};

/// Sends the handshake with `line` replaced by `by`.
fn status(line: &str, by: &str) -> Client {
    assert!(FIELDS.contains(line), "{line}");
    let fields = FIELDS.replace(line, by);
    Client::ask(&format!("GET /ws HTTP/1.1\r\n{fields}\r\n"), b"")
}

// RFC 6455, 4.2.2: "the server MUST complete the following steps to accept the connection",
// "it MUST reply with a valid HTTP response indicating the following". 11.3.3: "The
// |Sec-WebSocket-Accept| header MUST NOT appear more than once in an HTTP response."
#[test]
fn the_answer_is_101() {
    let client = Client::open();
    assert_eq!(client.status(), 101);
    assert_eq!(
        client.values("Sec-WebSocket-Accept"),
        ["s3pPLMBiTxaQ9kYGzzhZRbK+xOo="]
    );
    assert!(client.values("Upgrade")[0].eq_ignore_ascii_case("websocket"));
    assert!(client.values("Connection")[0].eq_ignore_ascii_case("upgrade"));
    assert!(client.values("Content-Length").is_empty());
    assert!(client.values("Transfer-Encoding").is_empty());
}

// RFC 6455, 4.2: "the server MUST stop processing the client's handshake and return an HTTP
// response with an appropriate error code". 11.3.1: "The |Sec-WebSocket-Key| header field MUST NOT
// appear more than once in an HTTP request." 11.3.5: "the |Sec-WebSocket-Version| header field MUST
// NOT appear more than once in an HTTP request."
#[test]
fn a_handshake_that_does_not_match_is_refused() {
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let version = "Sec-WebSocket-Version: 13\r\n";
    for (line, by) in [
        (key, ""),
        (key, "Sec-WebSocket-Key: \r\n"),
        (key, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ\r\n"),
        (key, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25j\r\n"),
        (key, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZTEyMzQ=\r\n"),
        (key, "Sec-WebSocket-Key: !!!!IHNhbXBsZSBub25jZQ==\r\n"),
        (key, &format!("{key}{key}")),
        (version, ""),
        (version, &format!("{version}{version}")),
        ("Connection: Upgrade\r\n", "Connection: keep-alive\r\n"),
        ("Connection: Upgrade\r\n", ""),
    ] {
        let client = status(line, by);
        assert!(
            (400..500).contains(&client.status()),
            "{by:?}: {}",
            client.response.head
        );
    }
    let body = format!("GET /ws HTTP/1.1\r\n{FIELDS}Content-Length: 4\r\n\r\n");
    assert!((400..500).contains(&Client::ask(&body, b"body").status()));
    for line in ["POST /ws HTTP/1.1", "GET /ws HTTP/1.0"] {
        let client = Client::ask(&format!("{line}\r\n{FIELDS}\r\n"), b"");
        assert!(
            (400..500).contains(&client.status()),
            "{line}: {}",
            client.response.head
        );
    }
    // Not a WebSocket request, so any response but 101 is correct.
    let client = status("Upgrade: websocket\r\n", "");
    assert_ne!(client.status(), 101);
}

#[test]
fn tokens_are_found_in_lists_and_in_any_case() {
    for (line, by) in [
        (
            "Connection: Upgrade\r\n",
            "Connection: keep-alive, uPGRADE\r\n",
        ),
        (
            "Connection: Upgrade\r\n",
            "Connection: keep-alive\r\nConnection: upgrade\r\n",
        ),
        ("Upgrade: websocket\r\n", "Upgrade: WebSocket\r\n"),
        ("Upgrade: websocket\r\n", "Upgrade: h2c, websocket\r\n"),
    ] {
        assert_eq!(status(line, by).status(), 101, "{by:?}");
    }
}

// RFC 6455, 4.2.2: "the server MUST abort the WebSocket handshake described in this section and
// instead send an appropriate HTTP error code (such as 426 Upgrade Required) and a
// |Sec-WebSocket-Version| header field". 4.4: "it MUST respond with a |Sec-WebSocket-Version|
// header field (or multiple |Sec-WebSocket-Version| header fields) containing all versions it is
// willing to use"
#[test]
fn another_version_is_told_which_ones_there_are() {
    for version in ["8", "0", "14", "255", "13, 8"] {
        let by = format!("Sec-WebSocket-Version: {version}\r\n");
        let client = status("Sec-WebSocket-Version: 13\r\n", &by);
        assert!(
            (400..500).contains(&client.status()),
            "{version}: {}",
            client.response.head
        );
        assert_eq!(client.values("Sec-WebSocket-Version"), ["13"], "{version}");
    }
}

// RFC 6455, 4.2.2: "If the server does not wish to accept this connection, it MUST return an
// appropriate HTTP error code"
#[test]
fn a_page_from_elsewhere_is_refused() {
    for (origin, expected) in [("http://a", 101), ("http://b", 403), ("null", 403)] {
        let request = format!("GET /ws HTTP/1.1\r\n{FIELDS}Origin: {origin}\r\n\r\n");
        assert_eq!(Client::ask(&request, b"").status(), expected, "{origin}");
    }
}

// RFC 6455, 4.2.2: "If the requested service is not available, the server MUST send an appropriate
// HTTP error code (such as 404 Not Found)"
#[test]
fn where_there_is_no_socket_there_is_404() {
    let client = Client::ask(&format!("GET /none HTTP/1.1\r\n{FIELDS}\r\n"), b"");
    assert_eq!(client.status(), 404);
}

// RFC 6455, 4.2.2: "The value chosen MUST be derived from the client's handshake, specifically by
// selecting one of the values from the |Sec-WebSocket-Protocol| field", "if the server does not
// wish to agree to one of the suggested subprotocols, it MUST NOT send back a
// |Sec-WebSocket-Protocol| header field". 11.3.4: "the |Sec-WebSocket-Protocol| header field MUST
// NOT appear more than once in an HTTP response."
#[test]
fn a_subprotocol_is_one_of_those_offered_or_none() {
    for (offer, expected) in [
        ("", &[][..]),
        ("Sec-WebSocket-Protocol: x\r\n", &[]),
        ("Sec-WebSocket-Protocol: Echo\r\n", &[]),
        ("Sec-WebSocket-Protocol: x, echo\r\n", &["echo"]),
        (
            "Sec-WebSocket-Protocol: x\r\nSec-WebSocket-Protocol: echo, y\r\n",
            &["echo"],
        ),
    ] {
        let client = Client::with(offer, b"");
        assert_eq!(client.values("Sec-WebSocket-Protocol"), expected, "{offer}");
    }
    let request = format!("GET /ws HTTP/1.1\r\n{FIELDS}Sec-WebSocket-Protocol: a b\r\n\r\n");
    assert!((400..500).contains(&Client::ask(&request, b"").status()));
}

#[test]
fn frames_may_follow_the_request_at_once() {
    let mut client = Client::with("", &frame(0x81, "early"));
    client.expect(0x81, "early");
    // The first half of a frame together with the request, the rest later.
    let bytes = frame(0x81, "in two parts");
    let mut client = Client::with("", &bytes[..5]);
    client.send(&bytes[5..]);
    client.expect(0x81, "in two parts");
    client.send(frame(0x88, ""));
    assert_eq!(client.next_frame(), Some((0x88, Vec::new())));
}
