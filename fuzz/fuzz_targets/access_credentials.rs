//! Parser of `Authorization`: user names contain no colon, no control characters are accepted,
//! and tokens are the end of the value.
#![no_main]

use samovar_cache::fuzzing::credentials;

libfuzzer_sys::fuzz_target!(|value: &[u8]| {
    match credentials(value) {
        None => {}
        Some(Ok((user, password))) => {
            assert!(!user.contains(&b':'));
            assert!(!user.iter().chain(&password).any(u8::is_ascii_control));
            // Base64 encodes three bytes as four characters.
            assert!((user.len() + password.len() + 1) * 4 <= value.len() * 3);
        }
        Some(Err(token)) => {
            assert!(value.ends_with(&token) || value.trim_ascii_end().ends_with(&token));
            assert!(!token.is_empty() && token.iter().all(u8::is_ascii_graphic));
        }
    }
});
