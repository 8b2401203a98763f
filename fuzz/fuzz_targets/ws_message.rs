//! Decoder of WebSocket messages: events and limits do not depend on where the input is split. The
//! first byte selects the split.
#![no_main]

use samovar_http_proto::ws::Failure;
use samovar_http_proto::ws::message::{Assembler, Event};

/// Limit of a message, in bytes.
const LEN_MAX: usize = 1 << 13;

type Trace = (Vec<(char, Vec<u8>)>, Option<Failure>);

fn trace(input: &[u8], cut: usize) -> Trace {
    let (mut assembler, mut events) = (Assembler::default(), Vec::new());
    let mut input = input.to_vec();
    let mut at = 0;
    for end in [cut.min(input.len()), input.len()] {
        while at < end {
            match assembler.step(&mut input[at..end], LEN_MAX) {
                Err(failure) => return (events, Some(failure)),
                Ok((taken, event)) => {
                    assert!(taken > 0);
                    at += taken;
                    events.extend(event.map(|event| match event {
                        Event::Text(text) => ('t', text.into_owned().into_bytes()),
                        Event::Binary(data) => ('b', data.into_owned()),
                        Event::Ping(data) => ('i', data.into_owned()),
                        Event::Pong(data) => ('o', data.into_owned()),
                        Event::Close(said) => ('c', format!("{said:?}").into_bytes()),
                    }));
                    if let Some((kind, data)) = events.last() {
                        assert!(*kind == 'c' || data.len() <= LEN_MAX);
                    }
                }
            }
        }
    }
    (events, None)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((&first, input)) = bytes.split_first() {
        let whole = trace(input, input.len());
        assert_eq!(trace(input, usize::from(first)), whole);
    }
});
