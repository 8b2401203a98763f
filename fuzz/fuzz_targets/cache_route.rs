//! Router of the cache: hash parts and log names occur in the request target, and names from
//! the path contain no `/` and no NUL.
#![no_main]

use samovar_cache::fuzzing::route;
use samovar_http::http::percent;

libfuzzer_sys::fuzz_target!(|target: &[u8]| {
    let mut parts = target.splitn(2, |byte| *byte == b'?');
    let (path, query) = (parts.next().unwrap_or_default(), parts.next());
    let found = route(path, query);
    let decoded = percent::decode(path);
    let holds = |text: &str| {
        let within = |bytes: &[u8]| {
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        };
        decoded.as_deref().is_some_and(within) || query.is_some_and(within)
    };
    if let Some(hash_part) = found.hash_part {
        assert!(holds(&hash_part.to_string()));
    }
    // These become parts of file names.
    if let Some(name) = found.log {
        assert!(holds(&name) && name.len() > 33);
        assert!(!name.contains(['/', '\0']) && !name.starts_with('.'));
    }
    if let Some(id) = found.realisation {
        assert!(!id.contains(['/', '\0']));
    }
    for name in found.source {
        assert!(!matches!(&*name, b"" | b"." | b"..") && !name.contains(&b'/'));
        assert!(!name.contains(&0));
    }
    // Known paths contain no encoded slash, so a proxy that does not decode them sees the same
    // segments.
    if found.is_known {
        let count = |bytes: &[u8]| bytes.iter().filter(|byte| **byte == b'/').count();
        assert_eq!(decoded.as_deref().map(count), Some(count(path)));
        // The decoded path has the same route as the encoded one, unless it contains a `%`.
        let again = decoded.as_deref().unwrap_or_default();
        if !again.contains(&b'%') {
            assert_eq!(route(again, query).is_known, true);
        }
    }
});
