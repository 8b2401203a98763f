//! RFC 6455, section 9: extensions.

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
    // RFC 7692 defines this extension; our server does not accept it.
    let mut client = offer("x-unknown, permessage-deflate; client_max_window_bits");
    assert!(client.values("Sec-WebSocket-Extensions").is_empty());
    client.send(frame(0x81, "again and ".repeat(1000)));
    client.expect(0x81, "again and ".repeat(1000));
    client.send(close(1000, b""));
    client.expect(0x88, 1000_u16.to_be_bytes());
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
