//! RFC 6455, sections 5.5.1 and 7: closing.

use crate::client::{Client, close, frame};

// RFC 6455, 5.5.1: "the endpoint MUST send a Close frame in response", "an endpoint considers the
// WebSocket connection closed and MUST close the underlying TCP connection", "The server MUST close
// the underlying TCP connection immediately". 7.1.1: "an endpoint MUST send a Close control frame,
// as described in Section 5.5.1, whose status code is set to /code/"
#[test]
fn a_close_is_answered_with_its_code_and_the_end() {
    for code in [
        1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999,
    ] {
        let mut client = Client::open();
        client.send(close(code, b"reason"));
        match client.next_frame() {
            Some((0x88, payload)) => assert_eq!(payload[..2], code.to_be_bytes()),
            other => panic!("{other:?}"),
        }
        assert_eq!(client.next_frame(), None);
    }
    let mut client = Client::open();
    client.send(frame(0x88, ""));
    client.expect(0x88, "");
    assert_eq!(client.next_frame(), None);
}

// RFC 6455, 5.5.1: "the first two bytes of the body MUST be a 2-byte unsigned integer". 7.4.1:
// "1005 is a reserved value and MUST NOT be set as a status code", "1006 is a reserved value and
// MUST NOT be set as a status code", "1015 is a reserved value and MUST NOT be set as a status
// code"
#[test]
fn a_close_is_read_to_the_letter() {
    for code in [
        0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535,
    ] {
        let mut client = Client::open();
        client.send(close(code, b""));
        client.expect_failure(1002);
    }
    let mut client = Client::open();
    client.send(frame(0x88, "\x03"));
    client.expect_failure(1002);
    let mut client = Client::open();
    client.send(close(
        1000,
        b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80",
    ));
    client.expect_failure(1007);
    let mut client = Client::open();
    client.send(close(1000, [b'x'; 123]));
    assert_eq!(
        client.next_frame(),
        Some((0x88, 1000_u16.to_be_bytes().to_vec()))
    );
}

// RFC 6455, 5.5.1: "The application MUST NOT send any more data frames after sending a Close
// frame." 6.1: "The endpoint MUST ensure the WebSocket connection is in the OPEN state", "If at any
// point the state of the WebSocket connection changes, the endpoint MUST abort the following
// steps."
#[test]
fn nothing_follows_a_close() {
    let mut client = Client::open();
    client.send(
        [
            frame(0x81, "before"),
            close(1000, b""),
            frame(0x81, "after"),
        ]
        .concat(),
    );
    let mut sent = Vec::new();
    loop {
        match client.next_frame() {
            None => break,
            Some((first, _)) => sent.push(first),
        }
    }
    // The echo of "before" may be dropped if the close frame comes first.
    assert!(sent == [0x81, 0x88] || sent == [0x88], "{sent:x?}");
}

// RFC 6455, 7.1.7: "to do so, the server MUST _Close the WebSocket Connection_", "An endpoint MUST
// NOT continue to attempt to process data (including a responding Close frame) from the remote
// endpoint". 7.2.2: "the server MUST simply _Close the WebSocket Connection_"
#[test]
fn nothing_is_looked_at_after_a_failure() {
    let mut client = Client::open();
    client.send(
        [
            frame(0x83, ""),
            frame(0x89, "ping"),
            frame(0x81, "x"),
            close(1000, b""),
        ]
        .concat(),
    );
    client.expect_failure(1002);
}
