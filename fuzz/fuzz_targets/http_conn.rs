//! HTTP/1.1 connection: requests and bodies do not depend on where the input is split. The first
//! byte selects the split, and whether responses are sent before the bodies are read.
#![no_main]

use samovar_http_proto::h1::Refusal;
use samovar_http_proto::h1::conn::{Conn, Step};
use samovar_http_proto::h1::head::{HeadIndex, HeadLimits};

#[derive(Debug, PartialEq)]
enum Event {
    Head(usize),
    Body(usize, Vec<u8>),
    Refused(Refusal),
    Closed,
}

fn events(input: &[u8], cut: usize, is_early: bool) -> Vec<Event> {
    let (mut conn, mut index) = (Conn::default(), HeadIndex::default());
    let (mut events, mut data, mut at) = (Vec::new(), Vec::new(), 0);
    for end in [cut.min(input.len()), input.len()] {
        loop {
            let rest = &input[at..end];
            let (taken, step) = conn.advance(rest, &HeadLimits::default(), 1000, &mut index);
            at += taken;
            let is_answered = match step {
                Step::NeedMore => break,
                Step::Head => {
                    events.push(Event::Head(at));
                    is_early || !conn.has_body()
                }
                Step::BodyEnd => {
                    events.push(Event::Body(at, std::mem::take(&mut data)));
                    true
                }
                Step::Data => {
                    data.extend_from_slice(&rest[..taken]);
                    false
                }
                Step::Framing => false,
                Step::Paused => unreachable!("every request is answered"),
                Step::Refused(refusal) => {
                    events.push(Event::Refused(refusal));
                    return events;
                }
                Step::Closed | Step::Http2 => {
                    events.push(Event::Closed);
                    return events;
                }
            };
            if is_answered {
                conn.answered(conn.may_keep());
            }
        }
    }
    events
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((&first, input)) = bytes.split_first() {
        let (cut, is_early) = (usize::from(first >> 1), first & 1 == 1);
        assert_eq!(
            events(input, cut, is_early),
            events(input, input.len(), is_early)
        );
    }
});
