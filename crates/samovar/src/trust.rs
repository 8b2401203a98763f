//! Parses public keys from the command line, and checks signatures with them.

use samovar_nix::narinfo::NarInfo;
use samovar_nix::{PublicKey, StoreDir};

/// Parses public keys that are separated by white space.
pub(crate) fn keys(text: &str) -> Result<Vec<PublicKey>, String> {
    let key = |text: &str| {
        PublicKey::parse(text)
            .map_err(|_error| format!("{text:?} is not a public key; expected NAME:BASE64"))
    };
    text.split_ascii_whitespace().map(key).collect()
}

/// Returns whether one of `keys` has signed the path. With no keys, every path counts as signed.
pub(crate) fn is_signed(keys: &[&PublicKey], narinfo: &NarInfo, dir: &StoreDir) -> bool {
    let fingerprint = narinfo.fingerprint(dir);
    let is_signed_by = |key: &&PublicKey| {
        let mut signatures = narinfo.signatures.iter();
        signatures.any(|signature| key.verify(fingerprint.as_bytes(), signature))
    };
    keys.is_empty() || keys.iter().any(is_signed_by)
}
