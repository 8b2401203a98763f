//! WebSocket handshake: no request makes it panic.
#![no_main]

use samovar_http_proto::http::{Method, Version};
use samovar_http_proto::ws::handshake::Handshake;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let headers = bytes.split(|byte| *byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    });
    drop(Handshake::check(Method::Get, Version::Http11, headers));
});
