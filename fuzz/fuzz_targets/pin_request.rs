//! Requests about pins. The first byte selects the part of a request: the body of a PUT, a list of
//! entity tags, or the URL. What is accepted has one canonical form, with the same meaning.
#![no_main]

use samovar_cache::fuzzing::{pin_body, pin_name, pin_tags};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, text)) = data.split_first() else {
        return;
    };
    match first % 3 {
        0 => {
            let Some(written) = pin_body(text) else {
                return;
            };
            assert_eq!(pin_body(written.as_bytes()), Some(written.clone()));
            assert!(written.lines().count() <= 3 && written.is_ascii());
            assert!(written.len() <= 245 + 2 * (9 + 3 * 1024));
        }
        1 => {
            let (strong, weak) = (pin_tags(text, true), pin_tags(text, false));
            assert_eq!(strong.is_some(), weak.is_some());
            if let (Some(Some(strong)), Some(Some(weak))) = (strong, weak) {
                assert!(strong.iter().all(|tag| weak.contains(tag)));
                let tags: Vec<String> = weak.iter().map(|tag| format!("\"{tag}\"")).collect();
                if !tags.is_empty() {
                    let again = pin_tags(tags.join(", ").as_bytes(), true);
                    assert_eq!(again, Some(Some(weak)));
                }
            }
        }
        _ => {
            let path = [b"/upload/pin/", text].concat();
            let Some(name) = pin_name(&path) else {
                return;
            };
            assert!((1..=255).contains(&name.len()) && !name.contains(char::is_control));
            let encoded: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let encoded = format!("/upload/pin/{encoded}");
            assert_eq!(pin_name(encoded.as_bytes()), Some(name));
        }
    }
});
