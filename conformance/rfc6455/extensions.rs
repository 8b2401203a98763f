//! RFC 6455, section 9, and RFC 7692: extensions.

use crate::client::{Client, FIELDS, close, frame};

fn offer(extensions: &str) -> Client {
    Client::with(&format!("Sec-WebSocket-Extensions: {extensions}\r\n"), b"")
}

// RFC 6455, 9: "A server MUST NOT respond with any extension not requested by the client.", "those
// parameters MUST be chosen in accordance with the specification of the extension". 9.1: "The
// parameters supplied with any given extension MUST be defined for that extension.", "Any
// extension-token used MUST be a registered token". 4.2.2: "then the value MUST be derived from the
// client's handshake, specifically by selecting one or more of the values from the
// |Sec-WebSocket-Extensions| field", "Extensions not listed by the client MUST NOT be listed." 5.8:
// "The endpoints of a connection MUST negotiate the use of any extensions during the opening
// handshake." 11.3.2: "the |Sec-WebSocket-Extensions| header field MUST NOT appear more than once
// in an HTTP response."
#[test]
fn only_what_is_offered_is_accepted() {
    assert!(Client::open().values("Sec-WebSocket-Extensions").is_empty());
    assert!(
        offer("x-unknown")
            .values("Sec-WebSocket-Extensions")
            .is_empty()
    );
    let client = offer("x-unknown, permessage-deflate");
    let accepted = client.values("Sec-WebSocket-Extensions");
    assert!(accepted.len() <= 1, "{accepted:?}");
    for value in accepted {
        let mut parts = value.split(';').map(str::trim);
        assert_eq!(parts.next(), Some("permessage-deflate"));
        let known = ["server_no_context_takeover", "client_no_context_takeover"];
        for param in parts {
            let is_known = known.contains(&param) || param.starts_with("server_max_window_bits=");
            assert!(is_known, "{param}");
        }
    }
}

// RFC 6455, 9.1: "the recipient of such malformed data MUST immediately _Fail the WebSocket
// Connection_". 4.3: "the value after quoted-string unescaping MUST conform to the 'token' ABNF"
#[test]
fn a_malformed_list_ends_the_handshake() {
    for value in [
        "a b",
        "a;",
        "a;b=",
        "a;b=\"c d\"",
        "a;b=\"c",
        ";a",
        "a=b",
        "a;;b",
    ] {
        let fields = format!("{FIELDS}Sec-WebSocket-Extensions: {value}\r\n");
        let client = Client::ask(&format!("GET /ws HTTP/1.1\r\n{fields}\r\n"), b"");
        assert!(
            (400..500).contains(&client.status()),
            "{value}: {}",
            client.response.head
        );
    }
}

// RFC 7692, 7: "A server MUST decline an extension negotiation offer for this extension if any of
// the following conditions are met": an unknown parameter, an invalid value, a name twice, a
// configuration that is not supported.
#[test]
fn offers_that_cannot_be_met_are_declined() {
    for param in [
        "unknown",
        "server_max_window_bits",
        "server_max_window_bits=7",
        "server_max_window_bits=16",
        "server_max_window_bits=010",
        "client_max_window_bits=7",
        "client_max_window_bits=16",
        "client_max_window_bits=x",
        "server_no_context_takeover=1",
        "client_no_context_takeover=true",
        "client_max_window_bits; client_max_window_bits",
        "server_no_context_takeover; server_no_context_takeover",
    ] {
        let mut client = offer(&format!("permessage-deflate; {param}"));
        assert!(
            client.values("Sec-WebSocket-Extensions").is_empty(),
            "{param}"
        );
        client.send(frame(0x81, "plain"));
        client.expect(0x81, "plain");
        // The server may accept the second offer.
        let client = offer(&format!("permessage-deflate; {param}, permessage-deflate"));
        assert!(client.values("Sec-WebSocket-Extensions").len() <= 1);
    }
}

// RFC 7692, 7.1.2.2: "the corresponding extension negotiation response to the offer MUST NOT
// include the "client_max_window_bits" extension parameter", if the offer does not.
#[test]
fn a_clients_window_is_its_own_unless_it_says_so() {
    let client = offer("permessage-deflate");
    assert!(
        !client.response.head.contains("client_max_window_bits"),
        "{}",
        client.response.head
    );
    let client = offer("permessage-deflate; server_max_window_bits=10");
    if let [accepted] = client.values("Sec-WebSocket-Extensions")[..] {
        assert!(accepted.contains("server_max_window_bits=10"), "{accepted}");
    }
}

/// "Hello", compressed: RFC 7692, 7.2.3.1.
const HELLO: &[u8] = b"\xf2\x48\xcd\xc9\xc9\x07\x00";

#[test]
fn compressed_messages_are_understood() {
    let mut client = offer("permessage-deflate");
    assert!(
        !client.values("Sec-WebSocket-Extensions").is_empty(),
        "not negotiated"
    );
    client.send(frame(0xc1, HELLO));
    client.expect(0x81, "Hello");
    // In fragments of one byte each.
    client.send(frame(0x41, &HELLO[..1]));
    for byte in &HELLO[1..6] {
        client.send(frame(0x00, [*byte]));
    }
    client.send(frame(0x80, &HELLO[6..]));
    client.expect(0x81, "Hello");
    // RFC 7692, 7.2.3.3 to 7.2.3.6: stored, marked as last, in two blocks, empty.
    client.send(frame(0xc2, b"\x00\x05\x00\xfa\xff\x48\x65\x6c\x6c\x6f\x00"));
    client.expect(0x82, "Hello");
    client.send(frame(0xc1, b"\xf3\x48\xcd\xc9\xc9\x07\x00\x00"));
    client.expect(0x81, "Hello");
    client.send(frame(
        0xc1,
        b"\xf2\x48\x05\x00\x00\x00\xff\xff\xca\xc9\xc9\x07\x00",
    ));
    client.expect(0x81, "Hello");
    client.send(frame(0xc1, b"\x00"));
    client.expect(0x81, "");
    client.send(frame(0x81, "uncompressed"));
    client.expect(0x81, "uncompressed");
    client.send(close(1000, b""));
    client.expect(0x88, 1000_u16.to_be_bytes());
}

#[test]
fn long_answers_are_compressed() {
    let mut client = offer("permessage-deflate");
    client.send(frame(0x81, "again and ".repeat(1000)));
    match client.next_frame() {
        // RFC 7692, 6: "An endpoint MUST NOT set the "Per-Message Compressed" bit of control frames
        // and non-first fragments of a data message."
        Some((0xc1, payload)) => assert!(payload.len() < 1000, "{}", payload.len()),
        other => panic!("{other:?}"),
    }
    client.send(frame(0x89, "x".repeat(125)));
    client.expect(0x8a, "x".repeat(125));
}

// RFC 7692, 6: "An endpoint receiving such a frame MUST _Fail the WebSocket Connection_."
#[test]
fn the_bit_stands_on_first_fragments_of_messages_only() {
    for bytes in [
        frame(0xc9, ""),
        frame(0xc8, "\x03\u{e8}"),
        [frame(0x41, &HELLO[..3]), frame(0xc0, &HELLO[3..])].concat(),
        [frame(0x01, "a"), frame(0xc0, "b")].concat(),
    ] {
        let mut client = offer("permessage-deflate");
        client.send(bytes);
        client.expect_failure(1002);
    }
}
