//! Requests about pins. The first byte selects the part of a request: the body of a PUT, a list of
//! entity tags, or the URL. What is accepted has one canonical form, with the same meaning.
#![no_main]

use samovar_cache::fuzzing::{pin_body, pin_name};
use samovar_protocol::pins::{Tags, Weak};

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
            let strong = Tags::parse(text, Weak::MatchNothing);
            let weak = Tags::parse(text, Weak::AreStrong);
            assert_eq!(strong.is_some(), weak.is_some());
            if let (Some(Tags::Listed(strong)), Some(Tags::Listed(weak))) = (strong, weak) {
                assert!(strong.iter().all(|tag| weak.contains(tag)));
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
