//! Base-32 decoder: decoded bytes encode to the same text again.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let Ok(bytes) = samovar_nix::nixbase32::decode(text) else {
        return;
    };
    assert_eq!(samovar_nix::nixbase32::encode(&bytes).as_bytes(), text);
});
