//! Parser of manifests: each accepted text is the only one of its manifest, and its entries have a
//! NAR of the stated length.
#![no_main]

use samovar_workspace::Manifest;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(manifest) = Manifest::parse(text) {
        assert_eq!(manifest.text(), text);
        assert!(manifest.entries.nar_size() >= 96);
    }
});
