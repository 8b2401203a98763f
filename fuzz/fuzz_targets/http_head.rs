//! Parser of request heads: with small limits, it gives the same result for the whole input as
//! for one byte at a time.
#![no_main]

use samovar_http_proto::h1::head::{HeadIndex, HeadLimits, parse};

const LIMITS: HeadLimits = HeadLimits {
    head_len_max: 256,
    target_len_max: 64,
    header_count_max: 6,
    more: (),
};

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let read = |end: usize| {
        let mut index = HeadIndex::default();
        let len = parse(&text[..end], &LIMITS, &mut index);
        len.map(|len| len.map(|len| (len, format!("{index:?}"))))
    };
    let first = (0..=text.len().min(300))
        .map(read)
        .find(|head| *head != Ok(None));
    assert_eq!(first.unwrap_or(Ok(None)), read(text.len()));
});
