//! Parsers of store paths, hashes, content addresses and store directories: each parsed value,
//! when written, parses to the same value again.
#![no_main]

use samovar_nix::{ContentAddress, Hash, StoreDir, StorePath};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let dir = StoreDir::default();
    if let Ok(path) = StorePath::parse(&dir, text) {
        assert_eq!(path.full(&dir), text);
    }
    if let Ok(hash) = Hash::parse(text) {
        assert_eq!(Hash::parse(&hash.sri()), Ok(hash));
    }
    if let Ok(address) = ContentAddress::parse(text) {
        assert_eq!(ContentAddress::parse(&address.to_string()), Ok(address));
    }
    if let Ok(dir) = StoreDir::new(text) {
        assert_eq!(StoreDir::new(dir.as_str()), Ok(dir));
    }
});
