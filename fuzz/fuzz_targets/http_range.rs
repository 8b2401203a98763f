//! Parsers of ranges and percent-encoding: ranges lie within the body, and each `%` escape is
//! decoded exactly once.
#![no_main]

use samovar_http_proto::http::percent;
use samovar_http_proto::http::range::{RangeOutcome, resolve};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for total in [0, 1, 10, 4096, u64::MAX] {
        if let RangeOutcome::Part { start, end } = resolve(bytes, total) {
            assert!(start < end && end <= total);
        }
    }
    if let Some(decoded) = percent::decode(bytes) {
        let encoded = bytes.iter().filter(|byte| **byte == b'%').count();
        assert_eq!(decoded.len() + 2 * encoded, bytes.len());
    }
});
