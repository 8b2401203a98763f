//! Public keys on the command line, and the signatures that they verify.

use samovar_nix::narinfo::NarInfo;
use samovar_nix::{PublicKey, StoreDir};

/// Parses public keys, separated by white space.
pub(crate) fn keys(text: &str) -> Result<Vec<PublicKey>, String> {
    let key = |text: &str| {
        PublicKey::parse(text)
            .map_err(|_error| format!("{text:?} is not a public key; expected NAME:BASE64"))
    };
    text.split_ascii_whitespace().map(key).collect()
}

/// Whether one of `keys` has signed the path, or there are no keys.
pub(crate) fn is_signed(keys: &[&PublicKey], narinfo: &NarInfo, dir: &StoreDir) -> bool {
    let fingerprint = narinfo.fingerprint(dir);
    let is_signed_by = |key: &&PublicKey| {
        let mut signatures = narinfo.signatures.iter();
        signatures.any(|signature| key.verify(fingerprint.as_bytes(), signature))
    };
    keys.is_empty() || keys.iter().any(is_signed_by)
}
