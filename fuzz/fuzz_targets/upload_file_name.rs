//! Parser of uploaded files' names: a parsed name is written as the same bytes.
#![no_main]

use samovar_storage::verify::FileName;

libfuzzer_sys::fuzz_target!(|name: &[u8]| {
    if let Some(parsed) = FileName::parse(name) {
        assert_eq!(parsed.to_string().as_bytes(), name);
        assert!(
            name.iter()
                .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'.')
        );
    }
});
