//! RFC 6455, sections 5, 6 and 8: frames and messages.

use crate::client::{Client, close, frame};

// RFC 6455, 5.4: "Clients and servers MUST support receiving both fragmented and unfragmented
// messages.", "Message fragments MUST be delivered to the recipient in the order sent by the
// sender.", "the type for all fragments in a message MUST be either text, binary, or one of the
// reserved opcodes". 6.1: "an endpoint MUST perform the following steps", "An endpoint MUST
// encapsulate the /data/ in a WebSocket frame as defined in Section 5.2.", "The opcode
// (frame-opcode) of the first frame containing the data MUST be set to the appropriate value", "The
// FIN bit (frame-fin) of the last frame containing the data MUST be set to 1", "The frame(s) that
// have been formed MUST be transmitted over the underlying network connection." 6.2: "Incoming data
// MUST be parsed as WebSocket frames as defined in Section 5.2.", "A server MUST remove masking for
// data frames received from a client", "the endpoint MUST note the /type/ of the data as defined by
// the opcode", "Subsequent data frames MUST be interpreted as belonging to a new WebSocket
// message."
#[test]
fn messages_come_back_as_they_were() {
    let mut client = Client::open();
    for len in [0, 1, 125, 126, 127, 65_535, 65_536, 65_537, 200_000] {
        let text = "x".repeat(len);
        client.send(frame(0x81, &text));
        client.expect(0x81, &text);
        let data: Vec<u8> = (0..=u8::MAX).cycle().take(len).collect();
        client.send(frame(0x82, &data));
        client.expect(0x82, &data);
    }
    for parts in [
        &["ab", "cd", "ef"][..],
        &["", "", ""],
        &["a", ""],
        &["", "a"],
    ] {
        let (last, rest) = parts.split_last().unwrap();
        for (n, part) in rest.iter().enumerate() {
            client.send(frame(if n == 0 { 0x01 } else { 0x00 }, part));
        }
        client.send(frame(0x80, last));
        client.expect(0x81, parts.concat());
    }
}

// RFC 6455, 5.4: "An endpoint MUST be capable of handling control frames in the middle of a
// fragmented message." 5.5.2: "an endpoint MUST send a Pong frame in response, unless it already
// received a Close frame". 6.2: "the frame MUST be handled as defined by Section 5.5"
#[test]
fn pings_are_answered_also_inside_a_message() {
    let mut client = Client::open();
    client.send(frame(0x01, "in "));
    client.send(frame(0x89, "there?"));
    client.expect(0x8a, "there?");
    client.send(frame(0x8a, "nobody asked"));
    client.send(frame(0x80, "parts"));
    client.expect(0x81, "in parts");
    for len in [0, 1, 125] {
        client.send(frame(0x89, vec![0xff; len]));
        client.expect(0x8a, vec![0xff; len]);
    }
}

// RFC 6455, 5.1: "The server MUST close the connection upon receiving a frame that is not masked."
// 10.7: "Incoming data MUST always be validated by both clients and servers."
#[test]
fn a_frame_without_a_mask_ends_it() {
    for bytes in [
        &b"\x81\x05hello"[..],
        b"\x89\x00",
        b"\x88\x02\x03\xe8",
        b"\x82\x7e\x00\x7e",
    ] {
        let mut client = Client::open();
        client.send(bytes);
        client.expect_failure(1002);
    }
}

// RFC 6455, 5.2: "If a nonzero value is received and none of the negotiated extensions defines the
// meaning of such a nonzero value, the receiving endpoint MUST _Fail the WebSocket Connection_."
#[test]
fn reserved_bits_end_it() {
    for bits in 1..8 {
        for op_code in [0x1, 0x2, 0x9, 0xa] {
            let mut client = Client::open();
            client.send(frame(0x80 | bits << 4 | op_code, ""));
            client.expect_failure(1002);
        }
    }
}

// RFC 6455, 5.2: "If an unknown opcode is received, the receiving endpoint MUST _Fail the WebSocket
// Connection_."
#[test]
fn reserved_opcodes_end_it() {
    for op_code in (0x3..=0x7).chain(0xb..=0xf) {
        let mut client = Client::open();
        client.send(frame(0x80 | op_code, ""));
        client.expect_failure(1002);
    }
}

// RFC 6455, 5.2: "(the most significant bit MUST be 0)", "in all cases, the minimal number of bytes
// MUST be used to encode the length"
#[test]
fn lengths_have_one_form() {
    for length in [
        &b"\xff\x80\0\0\0\0\0\0\0"[..],
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xff\0\0\0\0\0\0\xff\xff",
        b"\xff\0\0\0\0\0\0\0\x05",
        b"\xfe\0\x7d",
        b"\xfe\0\0",
    ] {
        let mut client = Client::open();
        client.send([b"\x82", length, b"\x01\x02\x03\x04"].concat());
        client.expect_failure(1002);
    }
}

// RFC 6455, 5.4: "Control frames themselves MUST NOT be fragmented." 5.5: "All control frames MUST
// have a payload length of 125 bytes or less and MUST NOT be fragmented."
#[test]
fn control_frames_are_short_and_whole() {
    for op_code in [0x8, 0x9, 0xa] {
        for bytes in [
            frame(op_code, "\x03\u{e8}"),
            frame(0x80 | op_code, [b'x'; 126]),
        ] {
            let mut client = Client::open();
            client.send(bytes);
            client.expect_failure(1002);
        }
    }
}

// RFC 6455, 5.4: "The fragments of one message MUST NOT be interleaved between the fragments of
// another message"
#[test]
fn messages_do_not_overlap() {
    let nothing_to_continue = frame(0x80, "x");
    let inside = [frame(0x01, "a"), frame(0x81, "b")].concat();
    let inside_binary = [frame(0x02, "a"), frame(0x02, "b")].concat();
    for bytes in [nothing_to_continue, inside, inside_binary, frame(0x00, "x")] {
        let mut client = Client::open();
        client.send(bytes);
        client.expect_failure(1002);
    }
}

// RFC 6455, 5.6: "the whole message MUST contain valid UTF-8". 8.1: "that endpoint MUST _Fail the
// WebSocket Connection_"
#[test]
fn text_is_utf_8_however_it_is_cut() {
    for text in [
        "κόσμε",
        "\u{0}",
        "\u{7ff}\u{800}\u{ffff}\u{10000}\u{10ffff}",
        "\u{fffd}\u{d7ff}",
    ] {
        for cut in 0..=text.len() {
            let (a, b) = text.as_bytes().split_at(cut);
            let mut client = Client::open();
            client.send([frame(0x01, a), frame(0x80, b)].concat());
            client.expect(0x81, text);
        }
    }
    for bad in [
        &b"\xce\xba\xed\xa0\x80x"[..],
        b"\xf4\x90\x80\x80",
        b"\xc0\xaf",
        b"\xe0\x80\xaf",
        b"\xf8\x88\x80\x80\x80",
        b"\xfe",
        b"\x80",
        b"\xe2\x82",
        b"a\xc3",
    ] {
        for cut in 0..=bad.len() {
            let (a, b) = bad.split_at(cut);
            let mut client = Client::open();
            client.send([frame(0x01, a), frame(0x80, b)].concat());
            client.expect_failure(1007);
        }
    }
}

#[test]
fn text_fails_before_its_frame_has_ended() {
    let mut client = Client::open();
    // The frame announces 100 bytes, of which the fourth is invalid.
    client.send(&frame(0x81, [&b"abc\xff"[..], &[b'x'; 96]].concat())[..10]);
    client.expect_failure(1007);
}

// RFC 6455, 10.4: "MUST protect themselves against exceeding those limits"
#[test]
fn what_is_too_long_is_refused_with_its_header() {
    let mut client = Client::open();
    client.send(b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x01\x02\x03\x04");
    client.expect_failure(1009);
    let mut client = Client::open();
    for n in 0..100 {
        client.send(frame(if n == 0 { 0x02 } else { 0x00 }, vec![0; 50_000]));
    }
    match client.next_frame() {
        Some((0x88, payload)) => assert_eq!(payload[..2], 1009_u16.to_be_bytes()),
        other => assert_eq!(other, None),
    }
    let mut client = Client::open();
    client.send(close(1000, b""));
    client.expect(0x88, 1000_u16.to_be_bytes());
}
