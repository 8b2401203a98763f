//! Attacks by hostile clients, in one table. Each attack may end only its own connection.

use crate::client::{Client, close, frame};

/// Returns the cases: name, bytes, and the expected close code.
fn cases() -> Vec<(&'static str, Vec<u8>, u16)> {
    vec![
        ("no mask", b"\x81\x01x".to_vec(), 1002),
        (
            "no mask, and hidden HTTP",
            b"\x82\x7fGET / HTTP/1.1\r\n\r\n".to_vec(),
            1002,
        ),
        (
            "HTTP instead of frames",
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            1002,
        ),
        ("RSV1", frame(0xc1, "x"), 1002),
        ("RSV2", frame(0xa1, "x"), 1002),
        ("RSV3", frame(0x91, "x"), 1002),
        (
            "RSV1 on a continuation",
            [frame(0x01, "a"), frame(0xc0, "b")].concat(),
            1002,
        ),
        ("RSV1 on a ping", frame(0xc9, ""), 1002),
        ("opcode 3", frame(0x83, ""), 1002),
        ("opcode 15", frame(0x8f, ""), 1002),
        (
            "length 2^63",
            b"\x82\xff\x80\0\0\0\0\0\0\0\x01\x02\x03\x04".to_vec(),
            1002,
        ),
        (
            "length 2^63 - 1",
            b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x01\x02\x03\x04".to_vec(),
            1009,
        ),
        (
            "length 2^32 + 5",
            b"\x82\xff\0\0\0\x01\0\0\0\x05\x01\x02\x03\x04hello".to_vec(),
            1009,
        ),
        (
            "5 in 16 bits",
            b"\x82\xfe\0\x05\x01\x02\x03\x04hello".to_vec(),
            1002,
        ),
        (
            "5 in 64 bits",
            b"\x82\xff\0\0\0\0\0\0\0\x05\x01\x02\x03\x04hello".to_vec(),
            1002,
        ),
        ("long ping", frame(0x89, [0; 126]), 1002),
        ("long close", frame(0x88, [0; 126]), 1002),
        ("fragmented ping", frame(0x09, "x"), 1002),
        ("fragmented close", frame(0x08, "\x03\u{e8}"), 1002),
        ("continuation of nothing", frame(0x80, "x"), 1002),
        (
            "continuation of a pong",
            [frame(0x8a, ""), frame(0x80, "")].concat(),
            1002,
        ),
        (
            "message in a message",
            [frame(0x01, "a"), frame(0x82, "b")].concat(),
            1002,
        ),
        ("close of one byte", frame(0x88, "x"), 1002),
        ("close code 1005", close(1005, b""), 1002),
        ("close code 1006", close(1006, b""), 1002),
        ("close code 0", close(0, b""), 1002),
        ("close code 5000", close(5000, b""), 1002),
        ("close reason that is no text", close(1000, b"\xff"), 1007),
        ("surrogate", frame(0x81, b"\xed\xa0\x80"), 1007),
        ("overlong slash", frame(0x81, b"\xc0\xaf"), 1007),
        ("half a character", frame(0x81, b"\xe2\x82"), 1007),
        (
            "too long in one frame",
            frame(0x82, vec![0; (1 << 20) + 1]),
            1009,
        ),
        ("too long in fragments", too_long_in_fragments(), 1009),
    ]
}

fn too_long_in_fragments() -> Vec<u8> {
    let mut frames = frame(0x02, "");
    for _ in 0..1025 {
        frames.extend(frame(0x00, [0; 1024]));
    }
    frames
}

#[test]
fn every_attack_ends_its_connection_and_no_other() {
    let mut bystander = Client::open();
    for (name, bytes, code) in cases() {
        println!("{name}");
        // The attack is sent after the handshake, together with it, and, if it is short, byte by
        // byte.
        let mut client = Client::open();
        client.send(&bytes);
        client.expect_failure(code);
        let mut client = Client::with("", &bytes);
        client.expect_failure(code);
        if bytes.len() < 200 {
            let mut client = Client::open();
            for byte in &bytes {
                client.send([*byte]);
            }
            client.expect_failure(code);
        }
        bystander.send(frame(0x81, name));
        bystander.expect(0x81, name);
    }
}

#[test]
fn data_behind_a_close_is_dropped() {
    let mut client = Client::open();
    client.send([close(1000, b""), frame(0x83, "x"), vec![0; 100_000]].concat());
    client.expect_failure(1000);
}

#[test]
fn a_flood_of_pings_is_answered_or_thinned_out() {
    let mut client = Client::open();
    let pings = frame(0x89, "flood").repeat(20_000);
    client.send([pings, frame(0x81, "last")].concat());
    // RFC 6455, 5.5.3: of several pings only the last one has to be answered.
    loop {
        match client.next_frame() {
            Some((0x8a, payload)) => assert_eq!(payload, b"flood"),
            other => {
                break assert_eq!(other, Some((0x81, b"last".to_vec())));
            }
        }
    }
}
