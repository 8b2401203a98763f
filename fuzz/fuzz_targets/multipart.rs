//! Multipart bodies: a body that is split once has the same parts as the whole body. The first byte
//! is the index of the split.
#![no_main]

use samovar_http_proto::multipart::{Event, MultipartError, Parser, PartHead};

type Parts = (Vec<(Vec<u8>, Vec<u8>)>, Result<bool, MultipartError>);

fn parts(input: &[u8], cut: usize) -> Parts {
    let mut parser = Parser::new("b").expect("a boundary");
    let (mut parts, mut head, mut data, mut at) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for end in [cut.min(input.len()), input.len()] {
        loop {
            let rest = &input[at..end];
            let (taken, event) = match parser.step(rest) {
                Ok(step) => step,
                Err(error) => return (parts, Err(error)),
            };
            match event {
                Event::Incomplete => {
                    assert!(rest.len() <= parser.pending_len_max());
                    break;
                }
                Event::Framing => {}
                Event::Head => {
                    head = rest[..taken].to_vec();
                    PartHead::parse(&head).ok();
                }
                Event::Data => data.extend_from_slice(&rest[..taken]),
                Event::PartEnd => {
                    parts.push((std::mem::take(&mut head), std::mem::take(&mut data)));
                }
                Event::End => return (parts, Ok(true)),
            }
            at += taken;
        }
    }
    (parts, Ok(false))
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((&first, input)) = bytes.split_first() {
        assert_eq!(parts(input, usize::from(first)), parts(input, input.len()));
    }
});
