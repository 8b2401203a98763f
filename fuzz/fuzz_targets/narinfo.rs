//! Parser of narinfos: a parsed narinfo that can be written parses to the same value again.
#![no_main]

use samovar_nix::{StoreDir, narinfo::NarInfo};

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    let (dir, mut written) = (StoreDir::default(), Vec::new());
    let Ok(info) = NarInfo::parse(&dir, text) else {
        return;
    };
    if info.write(&dir, &mut written).is_ok() {
        assert_eq!(NarInfo::parse(&dir, &written), Ok(info));
    }
});
