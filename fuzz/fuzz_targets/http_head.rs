//! Request heads give the same result byte by byte and at once, with small limits.
#![no_main]

use samovar_http_proto::h1::head::{HeadIndex, HeadLimits, parse};

const LIMITS: HeadLimits = HeadLimits {
    head_len_max: 256,
    target_len_max: 64,
    header_count_max: 6,
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
