//! Parser of uploaded files' names: the plain name of a file, without the number of a copy, is
//! parsed to the same value.
#![no_main]

use samovar_protocol::names::FileName;

libfuzzer_sys::fuzz_target!(|name: &[u8]| {
    if let Some(parsed) = FileName::parse(name) {
        let plain = parsed.to_string();
        assert_eq!(FileName::parse(plain.as_bytes()), Some(parsed));
        let (hash, suffix) = plain.split_once('.').unwrap();
        assert!(name.starts_with(hash.as_bytes()));
        assert!(name.ends_with(suffix.as_bytes()));
        assert!(
            name.iter()
                .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'.')
        );
    }
});
