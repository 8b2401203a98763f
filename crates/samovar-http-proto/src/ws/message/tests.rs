use super::*;

/// Limit of a message, in bytes.
const LEN_MAX: usize = 2000;

/// Builds a masked frame.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let key = [0x37, 0xfa, 0x21, 0x3d];
    let mut bytes = vec![first];
    match payload.len() {
        len @ ..126 => bytes.push(0x80 | u8::try_from(len).unwrap()),
        len @ ..65536 => {
            bytes.push(0xfe);
            bytes.extend(u16::try_from(len).unwrap().to_be_bytes());
        }
        len => {
            bytes.push(0xff);
            bytes.extend((len as u64).to_be_bytes());
        }
    }
    bytes.extend(key);
    let start = bytes.len();
    bytes.extend(payload);
    frame::unmask(&mut bytes[start..], key, 0);
    bytes
}

fn own(event: Event<'_>) -> Event<'static> {
    match event {
        Event::Text(text) => Event::Text(text.into_owned().into()),
        Event::Binary(data) => Event::Binary(data.into_owned().into()),
        Event::Ping(data) => Event::Ping(data.into_owned().into()),
        Event::Pong(data) => Event::Pong(data.into_owned().into()),
        Event::Close(reason) => {
            Event::Close(reason.map(|(code, text)| (code, text.into_owned().into())))
        }
    }
}

/// Feeds `bytes` in pieces of `piece_len` bytes. Returns the events, and the failure with the
/// number of bytes fed before it.
fn feed(bytes: &[u8], piece_len: usize) -> (Vec<Event<'static>>, Option<(Failure, usize)>) {
    let (mut assembler, mut events, mut seen) = (Assembler::default(), Vec::new(), 0);
    for piece in bytes.chunks(piece_len) {
        let mut piece = piece.to_vec();
        seen += piece.len();
        let mut rest = &mut piece[..];
        while !rest.is_empty() {
            let taken = match assembler.step(rest, LEN_MAX) {
                Ok((taken, event)) => {
                    events.extend(event.map(own));
                    taken
                }
                Err(failure) => return (events, Some((failure, seen))),
            };
            assert!(taken > 0);
            rest = &mut rest[taken..];
        }
    }
    (events, None)
}

#[track_caller]
fn check(bytes: &[u8], expected: &[Event<'static>], failure: Option<Failure>) {
    for piece_len in [1, 2, 3, 7, 50, bytes.len()] {
        let (events, failed) = feed(bytes, piece_len);
        assert_eq!(events, expected, "pieces of {piece_len}");
        assert_eq!(
            failed.map(|(failure, _)| failure),
            failure,
            "pieces of {piece_len}"
        );
    }
}

fn text(text: &str) -> Event<'static> {
    Event::Text(text.to_owned().into())
}

#[test]
fn control_frames_may_separate_fragments() {
    let bytes = [
        frame(0x01, "dé".as_bytes()),
        frame(0x89, b"there?"),
        frame(0x00, b""),
        frame(0x8a, b""),
        frame(0x80, b"j\xc3\xa0"),
        frame(0x82, b"\xff\xfe"),
        frame(0x88, b"\x03\xe8bye"),
        frame(0x81, b"too late"),
    ];
    let expected = [
        Event::Ping(b"there?".to_vec().into()),
        Event::Pong(Vec::new().into()),
        text("déjà"),
        Event::Binary(b"\xff\xfe".to_vec().into()),
        Event::Close(Some((CloseCode::NORMAL, "bye".into()))),
    ];
    check(&bytes.concat(), &expected, None);
}

#[test]
fn fragments_must_be_in_order() {
    check(
        &frame(0x80, b"x"),
        &[],
        Some(Failure::UnexpectedContinuation),
    );
    let nested = [frame(0x01, b"a"), frame(0x81, b"b")].concat();
    check(&nested, &[], Some(Failure::ExpectedContinuation));
    let after = [frame(0x81, b"a"), frame(0x80, b"b")].concat();
    check(&after, &[text("a")], Some(Failure::UnexpectedContinuation));
}

#[test]
fn reserved_bits_are_refused() {
    for bit in [0x40, 0x20, 0x10] {
        check(&frame(0x81 | bit, b"x"), &[], Some(Failure::ReservedBits));
        check(&frame(0x89 | bit, b"x"), &[], Some(Failure::ReservedBits));
    }
}

#[test]
fn limits_hold_at_the_limit_and_one_past_it() {
    let longest = "x".repeat(2000);
    check(&frame(0x81, longest.as_bytes()), &[text(&longest)], None);
    let over = frame(0x81, &[b'x'; 2001]);
    check(&over, &[], Some(Failure::MessageTooLong));
    let max = [b'x'; 1000];
    let two = [frame(0x01, &max), frame(0x80, &max)].concat();
    check(&two, &[text(&longest)], None);
    let three = [frame(0x01, &max), frame(0x00, &max), frame(0x80, b"x")].concat();
    check(&three, &[], Some(Failure::MessageTooLong));
}

#[test]
fn a_length_past_the_limit_is_refused_before_its_payload() {
    let header = b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x01\x02\x03\x04";
    assert_eq!(feed(header, 1).1, Some((Failure::MessageTooLong, 14)));
}

#[test]
fn invalid_text_fails_at_its_byte() {
    // The start of U+110000; the frame is not complete.
    let bytes = frame(0x01, b"\xce\xba\xe1\xf4\x90\x80\x80");
    let header_len = 6;
    assert_eq!(feed(&bytes, 1).1, Some((Failure::Utf8, header_len + 4)));
    let bytes = frame(0x01, b"abc\xf4\x90\x80\x80");
    assert_eq!(feed(&bytes, 1).1, Some((Failure::Utf8, header_len + 5)));
}

#[test]
fn an_incomplete_character_at_the_end_is_invalid() {
    let bytes = [frame(0x01, b"a\xe2\x82"), frame(0x80, b"")].concat();
    check(&bytes, &[], Some(Failure::Utf8));
    let bytes = [frame(0x01, b"a\xe2\x82"), frame(0x80, b"\xac")].concat();
    check(&bytes, &[text("a€")], None);
}

#[test]
fn invalid_text_is_found_with_any_split() {
    for bad in [
        &b"\xff"[..],
        b"\xc0\x80",
        b"\xc1\xbf",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\x80",
        b"\xe2\x28",
        b"\xf8\x88\x80\x80\x80",
    ] {
        let data = [b"ok \xc3\xa9 ", bad, b" more"].concat();
        for cut in 0..=data.len() {
            let (a, b) = data.split_at(cut);
            let bytes = [frame(0x01, a), frame(0x80, b)].concat();
            check(&bytes, &[], Some(Failure::Utf8));
        }
    }
}

#[test]
fn close_frames_are_checked() {
    check(&frame(0x88, b""), &[Event::Close(None)], None);
    check(&frame(0x88, b"\x03"), &[], Some(Failure::ClosePayload));
    check(&frame(0x88, b"\x03\xec"), &[], Some(Failure::CloseCode));
    check(&frame(0x88, b"\x03\xe8\xc3"), &[], Some(Failure::Utf8));
}

#[test]
fn no_memory_is_held_between_messages() {
    let mut assembler = Assembler::default();
    let mut bytes = frame(0x81, &[b'x'; 900]);
    let mut at = 0;
    while at < bytes.len() {
        let end = (at + 100).min(bytes.len());
        let (taken, _) = assembler.step(&mut bytes[at..end], LEN_MAX).unwrap();
        at += taken;
    }
    assert!(!assembler.is_partial());
    assert_eq!(assembler.message.capacity(), 0);
}
