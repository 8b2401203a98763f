//! Parser of the body of `POST /narinfos`: it returns one hash part per line, and each is the
//! prefix of its line.
#![no_main]

use samovar_cache::fuzzing::list;

const COUNT_MAX: usize = 100;

libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    let Some(hash_parts) = list(body, COUNT_MAX) else {
        return;
    };
    let body = body.strip_suffix(b"\n").unwrap_or(body);
    let lines: Vec<&[u8]> = match body {
        b"" => Vec::new(),
        body => body.split(|byte| *byte == b'\n').collect(),
    };
    assert!(hash_parts.len() == lines.len() && lines.len() <= COUNT_MAX);
    for (hash_part, line) in hash_parts.iter().zip(lines) {
        let text = hash_part.to_string();
        let base_name = line.strip_prefix(b"/nix/store/").unwrap_or(line);
        assert!(base_name.starts_with(text.as_bytes()));
    }
});
