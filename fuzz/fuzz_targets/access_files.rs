//! Files of users and of tokens: a line for each, or the number of one that is wrong.
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
