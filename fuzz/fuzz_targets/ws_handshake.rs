//! WebSocket handshake: no request makes it panic, and the response contains only parameters
//! that the client offered.
#![no_main]

use samovar_http_proto::http::{Method, Version};
use samovar_http_proto::ws::extension;
use samovar_http_proto::ws::handshake::Handshake;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some(offers) = extension::parse(bytes)
        && let Some(agreement) = extension::accept_deflate(&offers)
    {
        let accepted = extension::parse(agreement.response.as_bytes()).expect("an extension");
        let has_hint = offers
            .iter()
            .flat_map(|offer| &offer.params)
            .any(|(name, value)| *name == "client_max_window_bits" && value.is_some());
        let limits_client = accepted[0]
            .params
            .iter()
            .any(|(name, _)| *name == "client_max_window_bits");
        assert!(!limits_client || has_hint);
    }
    let headers = bytes.split(|byte| *byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    });
    drop(Handshake::check(Method::Get, Version::Http11, headers));
});
