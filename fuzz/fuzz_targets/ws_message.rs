//! Decoder of WebSocket messages: events and limits do not depend on where the input is split. The
//! first byte selects the split; its lowest bit turns compression on.
#![no_main]

use samovar_http_proto::ws::Failure;
use samovar_http_proto::ws::deflate::Inflater;
use samovar_http_proto::ws::message::{Assembler, Event};

/// Limit of a message, in bytes.
const LEN_MAX: usize = 1 << 13;

type Trace = (Vec<(char, Vec<u8>)>, Option<Failure>);

fn trace(input: &[u8], cut: usize, is_compressed: bool) -> Trace {
    let (mut assembler, mut events) = (Assembler::default(), Vec::new());
    let mut inflater = is_compressed.then(Inflater::new).flatten();
    let mut input = input.to_vec();
    let mut at = 0;
    for end in [cut.min(input.len()), input.len()] {
        while at < end {
            match assembler.step(&mut input[at..end], LEN_MAX, inflater.as_mut()) {
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
        let (cut, is_compressed) = (usize::from(first >> 1), first & 1 == 1);
        let (events, failure) = trace(input, input.len(), is_compressed);
        let (cut_events, cut_failure) = trace(input, cut, is_compressed);
        assert_eq!(cut_events, events);
        // Of two errors in a compressed frame, either may be reported first.
        assert_eq!(cut_failure.is_some(), failure.is_some());
    }
});
