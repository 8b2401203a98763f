//! Parser of user and token files: a valid file has at most one entry per line, and an error
//! has the number of an existing line.
#![no_main]

use samovar_cache::fuzzing::secrets;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let line_count = text.lines().count();
    for is_users in [true, false] {
        match secrets(text, is_users) {
            Ok(count) => assert!(count <= line_count),
            Err(line) => assert!((1..=line_count).contains(&line)),
        }
    }
});
