//! Parsers of ID tokens, keys and descriptions of issuers: without a signature by one of the keys,
//! no token is verified, and conditions match as patterns do.
#![no_main]

use samovar_oidc::discovery::keys_url;
use samovar_oidc::id_token::{Fault, IdToken};
use samovar_oidc::keys::KeySet;
use samovar_oidc::pattern::Pattern;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (first, second) = match data.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &b""[..]),
    };
    if let (Ok(token), Ok(keys)) = (IdToken::parse(first), KeySet::parse(second)) {
        let verified = token.verify(&keys, "https://a", "https://b", 0);
        // Nobody here can sign.
        assert!(matches!(verified, Err(Fault::Signature | Fault::UnknownKey)));
    }
    if let Ok(url) = keys_url(first, "https://a") {
        assert!(url.starts_with("https://"));
    }
    if let (Ok(pattern), Ok(value)) = (std::str::from_utf8(first), std::str::from_utf8(second)) {
        let made = Pattern::new(pattern);
        assert_eq!(made.to_string(), pattern);
        if made.is_literal() {
            assert_eq!(made.matches(value), pattern == value);
        }
        assert!(Pattern::new("**").matches(value));
    }
});
