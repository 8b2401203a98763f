//! Parsers of realisation IDs: a parsed ID is written in its canonical form, without `/`, NUL
//! and newline.
#![no_main]

use samovar_store::RealisationId;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(id) = RealisationId::parse_hash_form(text) {
        let written = id.to_string();
        assert_eq!(RealisationId::parse_hash_form(&written), Ok(id));
        assert!(!written.contains(['/', '\0', '\n']));
    }
    if let Some((derivation, output)) = text.split_once('/')
        && let Ok(id) = RealisationId::parse_derivation_form(derivation, output)
    {
        assert_eq!(id.to_string(), format!("{derivation}^{output}"));
    }
});
