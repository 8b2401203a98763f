//! Signatures and keys: a signature is written back as it was, and a key verifies its own.
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
