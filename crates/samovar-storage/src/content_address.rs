//! Computes the store path of a content address, to refuse a narinfo whose `CA` does not match.
//!
//! # Source
//!
//! Nix 2.36, `src/libstore/store-dir-config.cc`: `makeStorePath`, `makeFixedOutputPath`.

use samovar_nix::{Algorithm, ContentAddress, Hash, HashPart, Method, StoreDir, StorePath};
use sha2::{Digest as _, Sha256};

/// Returns whether `path` is the store path of this content address with these references.
pub(crate) fn is_path_of(
    address: &ContentAddress,
    dir: &StoreDir,
    path: &StorePath,
    references: &[StorePath],
) -> bool {
    let hash = address.hash();
    let is_nar = address.method() == Method::Nar && hash.algorithm() == Algorithm::Sha256;
    let (mut kind, inner) = match address.method() {
        Method::Text => ("text".to_owned(), hash.base16()),
        Method::Nar if is_nar => ("source".to_owned(), hash.base16()),
        method => {
            let prefix = match method {
                Method::Nar => "r:",
                Method::Git => "git:",
                _ => "",
            };
            let algorithm = hash.algorithm().name();
            let text = format!("fixed:out:{prefix}{algorithm}:{}:", hash.base16());
            let inner = Hash::sha256(&Sha256::digest(text).into());
            ("output:out".to_owned(), inner.base16())
        }
    };
    let mut references: Vec<_> = references.to_vec();
    references.sort();
    let mut refers_to_itself = false;
    for reference in &references {
        if reference == path {
            refers_to_itself = true;
        } else {
            kind.push(':');
            kind += &reference.full(dir);
        }
    }
    if refers_to_itself {
        kind += ":self";
    }
    // Only paths with a `text` or NAR content address may have references.
    let may_refer = is_nar || address.method() == Method::Text;
    if !(may_refer || references.is_empty()) {
        return false;
    }
    let fingerprint = format!("{kind}:sha256:{inner}:{}:{}", dir.as_str(), path.name());
    folded(&Sha256::digest(fingerprint)) == path.hash_part()
}

/// Compresses a digest to the 20 bytes of a hash part by XOR.
fn folded(digest: &[u8]) -> HashPart {
    let mut folded = [0_u8; 20];
    for (at, byte) in digest.iter().enumerate() {
        folded[at % 20] ^= byte;
    }
    HashPart::from_bytes(folded)
}
