//! Decoder of chunked bodies: the result does not depend on where the input is split. The first
//! byte selects the split.
#![no_main]

use samovar_http_proto::h1::Refusal;
use samovar_http_proto::h1::chunk::{ChunkDecoder, ChunkEvent};

type Decoded = Result<(Vec<u8>, Option<usize>), Refusal>;

fn decode(input: &[u8], cut: usize) -> Decoded {
    let (mut decoder, mut data, mut at) = (ChunkDecoder::default(), Vec::new(), 0);
    for end in [cut.min(input.len()), input.len()] {
        loop {
            let (taken, event) = decoder.step(&input[at..end])?;
            match event {
                ChunkEvent::Incomplete => break,
                ChunkEvent::Data => data.extend_from_slice(&input[at..at + taken]),
                ChunkEvent::Framing => assert!(taken > 0),
                ChunkEvent::End => return Ok((data, Some(at + taken))),
            }
            at += taken;
        }
    }
    Ok((data, None))
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((&cut, input)) = bytes.split_first() {
        assert_eq!(decode(input, usize::from(cut)), decode(input, input.len()));
    }
});
