//! Computes store paths from content addresses.
//!
//! # Source
//!
//! Nix 2.36, `src/libstore/store-dir-config.cc`: `makeStorePath`, `makeFixedOutputPath`.

use sha2::{Digest as _, Sha256};

use crate::{
    Algorithm, ContentAddress, Hash, HashPart, Method, NarHash, StoreDir, StorePath, StorePathError,
};

/// Returns the store path of a NAR with this name and these references, none of which is the path
/// itself.
///
/// # Errors
///
/// The name is not allowed for a store path.
///
/// # Examples
///
/// ```
/// use samovar_nix::{NarHash, StoreDir, path_of_nar};
///
/// let path = path_of_nar(&NarHash::from_bytes([7; 32]), &[], "app", &StoreDir::default())?;
/// assert_eq!(path.base_name(), "nwrzdrr7yqjxixg97ghpxmi0yimacj7c-app");
/// # Ok::<(), samovar_nix::StorePathError>(())
/// ```
pub fn path_of_nar(
    nar_hash: &NarHash,
    references: &[StorePath],
    name: &str,
    dir: &StoreDir,
) -> Result<StorePath, StorePathError> {
    let mut kind = "source".to_owned();
    let mut references: Vec<_> = references.to_vec();
    references.sort();
    for reference in &references {
        kind.push(':');
        kind += &reference.full(dir);
    }
    let hash_part = hash_part_of(&kind, &nar_hash.to_hash().base16(), name, dir);
    StorePath::from_base_name(&format!("{hash_part}-{name}"))
}

/// Returns whether `path` is the store path of this content address with these references.
#[must_use]
pub fn is_path_of(
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
        method @ (Method::Flat | Method::Nar | Method::Git) => {
            let prefix = match method {
                Method::Nar => "r:",
                Method::Git => "git:",
                Method::Text | Method::Flat => "",
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
    hash_part_of(&kind, &inner, path.name(), dir) == path.hash_part()
}

fn hash_part_of(kind: &str, inner: &str, name: &str, dir: &StoreDir) -> HashPart {
    let fingerprint = format!("{kind}:sha256:{inner}:{}:{name}", dir.as_str());
    folded(&Sha256::digest(fingerprint))
}

/// Compresses a digest to the 20 bytes of a hash part by XOR.
fn folded(digest: &[u8]) -> HashPart {
    let mut folded = [0_u8; 20];
    for bytes in digest.chunks(folded.len()) {
        for (folded, byte) in folded.iter_mut().zip(bytes) {
            *folded ^= byte;
        }
    }
    HashPart::from_bytes(folded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_nar_has_its_content_address() {
        let dir = StoreDir::default();
        let nar_hash = NarHash::from_bytes([7; 32]);
        let address = ContentAddress::new(Method::Nar, nar_hash.to_hash()).unwrap();
        let first = path_of_nar(&nar_hash, &[], "a", &dir).unwrap();
        let second = path_of_nar(&nar_hash, std::slice::from_ref(&first), "a", &dir).unwrap();
        assert!(is_path_of(&address, &dir, &first, &[]));
        assert!(is_path_of(
            &address,
            &dir,
            &second,
            std::slice::from_ref(&first)
        ));
        assert_ne!(first, second);
        assert!(path_of_nar(&nar_hash, &[], "a/b", &dir).is_err());
    }
}
