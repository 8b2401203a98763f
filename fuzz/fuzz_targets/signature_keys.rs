//! Parsers of signatures and keys: a parsed signature is written as the same text, and a public
//! key verifies what its secret key has signed.
#![no_main]

use samovar_nix::{PublicKey, SecretKey, Signature};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(signature) = Signature::parse(text) {
        assert_eq!(signature.to_string(), text);
    }
    if let Ok(public) = PublicKey::parse(text) {
        assert_eq!(PublicKey::parse(&public.to_string()), Ok(public));
    }
    if let Ok(secret) = SecretKey::parse(text) {
        assert!(secret.public().verify(b"", &secret.sign(b"")));
    }
});
