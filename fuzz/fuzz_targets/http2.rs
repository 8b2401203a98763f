//! An HTTP/2 connection that receives its input in pieces of any size, with an application that
//! responds, reads and resets streams. The first byte selects the application's behaviour; the rest
//! is a list of pieces, each after its length.
#![no_main]

use std::time::Instant;

use samovar_http_proto::h2::{ErrorCode, Event, PREFACE, ResponseHead, Session};
use samovar_http_proto::http::Status;
use samovar_http_proto::h1::head::HeadLimits;

/// Limit of pending output, in bytes: 64 KiB, plus one frame that exceeds it.
const OUTPUT_LEN_MAX: usize = 64 * 1024 + 32 * 1024;

fn answer(session: &mut Session<u8>, stream: u32, how: u8) {
    let head = ResponseHead::read(Status::OK, b"X: y\r\n");
    match how & 7 {
        0 => session.respond(stream, head, true),
        1 => drop(session.reset(stream, ErrorCode::CANCEL)),
        2 => session.inform(stream, Status::EARLY_HINTS, b"Link: x\r\n"),
        3 => session.go_away(),
        _ => {
            session.respond(stream, head, false);
            session.send(stream, vec![how; usize::from(how) * 512].into(), how & 8 == 0);
        }
    }
}

fn act(session: &mut Session<u8>, event: Event, how: u8) {
    match event {
        Event::Request { stream, is_end } => {
            session.read(stream, true);
            if is_end || how & 16 == 0 {
                answer(session, stream, how);
            }
        }
        Event::Refused { stream, .. } => answer(session, stream, 0),
        Event::Data(stream, bytes) => {
            if let Some(count) = session.data(stream) {
                *count = count.wrapping_add(1);
            }
            session.release(stream, bytes.len());
        }
        Event::End(stream) => answer(session, stream, how),
        Event::Drained(stream) if how & 32 == 0 => session.send(stream, Vec::new().into(), true),
        Event::Drained(stream) => session.send(stream, vec![how; 100].into(), true),
        Event::Sent(_) | Event::Reset(_) => {}
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((&how, mut rest)) = bytes.split_first() else {
        return;
    };
    let now = Instant::now();
    let mut session = Session::<u8>::new(100, &HeadLimits::default(), now);
    let mut out = Vec::new();
    if how & 64 == 0 {
        session.receive(PREFACE, now);
        session.receive(b"\0\0\0\x04\0\0\0\0\0", now);
    }
    while let Some((&len, input)) = rest.split_first() {
        let (piece, behind) = input.split_at(usize::from(len).min(input.len()));
        rest = behind;
        if session.wants_input() {
            session.receive(piece, now);
        }
        let mut event_count = 0;
        while let Some(event) = session.poll() {
            act(&mut session, event, how);
            event_count += 1;
            assert!(event_count < 10_000, "it comes to an end");
        }
        if how & 128 == 0 || len & 1 == 0 {
            out.clear();
            session.take_output(&mut out);
            assert!(out.len() <= OUTPUT_LEN_MAX);
        }
    }
});
