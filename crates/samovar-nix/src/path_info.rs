//! Metadata of a store path.

use std::borrow::Cow;

use crate::{ContentAddress, NarHash, Signature, StoreDir, StorePath};

/// Metadata of a valid store path, as registered in the store.
///
/// # Examples
///
/// The text that a cache signs:
///
/// ```
/// # use samovar_nix::{NarHash, PathInfo, StoreDir, StorePath};
/// let path = StorePath::from_base_name("vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app-2.0")?;
/// let info = PathInfo {
///     references: vec![path.clone()],
///     path,
///     nar_hash: NarHash::from_bytes([0; 32]),
///     nar_size: 120,
///     deriver: None,
///     signatures: Vec::new(),
///     content_address: None,
///     registration_time: 0,
///     ultimate: false,
///     registration: None,
/// };
/// assert_eq!(
///     info.fingerprint(&StoreDir::default()),
///     "1;/nix/store/vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app-2.0;\
///      sha256:0000000000000000000000000000000000000000000000000000;120;\
///      /nix/store/vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app-2.0",
/// );
/// # Ok::<(), samovar_nix::StorePathError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathInfo {
    /// The store path that this metadata describes.
    pub path: StorePath,
    /// SHA-256 hash of the path's NAR.
    pub nar_hash: NarHash,
    /// Length of the path's NAR, in bytes. Zero means unknown: clients reject a narinfo with it.
    pub nar_size: u64,
    /// The paths to which this path refers, possibly including itself. Sorted and unique by
    /// convention; functions that write them sort them if necessary.
    pub references: Vec<StorePath>,
    /// The derivation that built the path; `None` if it is unknown.
    pub deriver: Option<StorePath>,
    /// The signatures that the store holds for the path.
    pub signatures: Vec<Signature>,
    /// The content address; `None` unless the path is content-addressed.
    pub content_address: Option<ContentAddress>,
    /// Registration time, in seconds since 1970.
    pub registration_time: i64,
    /// Whether the path was built on this machine. Its store then trusts it without signatures.
    pub ultimate: bool,
    /// Row id of the registration. Ids are never reused: if the id is the same at two times, the
    /// path was valid all the time in between, unless the database was replaced. `None` if the
    /// store has no row ids.
    pub registration: Option<i64>,
}

impl PathInfo {
    /// Returns the text that signatures cover.
    ///
    /// # Source
    ///
    /// Nix 2.36, `src/libstore/path-info.cc`, `ValidPathInfo::fingerprint`: `1`, full path, NAR
    /// hash in base-32, NAR size, and the full paths of the references in order, joined by
    /// commas. Without references the text ends in the fourth semicolon.
    #[must_use]
    pub fn fingerprint(&self, dir: &StoreDir) -> String {
        fingerprint(
            dir,
            &self.path,
            &self.nar_hash,
            self.nar_size,
            &self.references,
        )
    }
}

/// Returns the text that signatures cover: see [`PathInfo::fingerprint`].
pub(crate) fn fingerprint(
    dir: &StoreDir,
    path: &StorePath,
    nar_hash: &NarHash,
    nar_size: u64,
    references: &[StorePath],
) -> String {
    let mut text = String::with_capacity(256);
    text.push_str("1;");
    push_full(&mut text, dir, path);
    text.push_str(";sha256:");
    text.extend(nar_hash.nixbase32().map(char::from));
    text.push(';');
    text.push_str(&nar_size.to_string());
    text.push(';');
    for (index, reference) in in_order(references).iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        push_full(&mut text, dir, reference);
    }
    text
}

fn push_full(text: &mut String, dir: &StoreDir, path: &StorePath) {
    text.push_str(dir.as_str());
    text.push('/');
    text.push_str(path.base_name());
}

/// Returns the references in output order: sorted by the bytes of the base name, without
/// duplicates.
///
/// Signature and narinfo depend on this order.
pub(crate) fn in_order(references: &[StorePath]) -> Cow<'_, [StorePath]> {
    if references.is_sorted_by(|a, b| a < b) {
        return Cow::Borrowed(references);
    }
    let mut sorted = references.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    Cow::Owned(sorted)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn path(base_name: &str) -> StorePath {
        StorePath::from_base_name(base_name).unwrap()
    }

    /// Returns the path of a plain file that holds `base\n`.
    pub(crate) fn base() -> PathInfo {
        PathInfo {
            path: path("zs83x50c7jbs0hj70ivx7ykckxh2zzl5-base-1.0"),
            nar_hash: NarHash::parse(
                "sha256:1fd896adaccdc69d44495497c4c43fd4066c46e5e9af1a0e83b3493e143eeaf5",
            )
            .unwrap(),
            nar_size: 120,
            references: Vec::new(),
            deriver: Some(path("vg5fcfpbwrrqdh72g1b6c0s812phcazb-base-1.0.drv")),
            signatures: Vec::new(),
            content_address: None,
            registration_time: 1_795_169_674,
            ultimate: true,
            registration: None,
        }
    }

    /// Returns a path that refers to itself and to [`base`].
    pub(crate) fn app() -> PathInfo {
        PathInfo {
            path: path("vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app-2.0"),
            nar_hash: NarHash::parse(
                "sha256:7a7897a9d7b6117b515ac6a332e237eed6ab902ea351d27a67f04ee2c82561b9",
            )
            .unwrap(),
            nar_size: 224,
            references: vec![
                path("vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app-2.0"),
                path("zs83x50c7jbs0hj70ivx7ykckxh2zzl5-base-1.0"),
            ],
            deriver: Some(path("mlyi5swx7sfafm72592yq5cyslh5xzrb-app-2.0.drv")),
            ..base()
        }
    }

    const BASE: &str = "1;/nix/store/zs83x50c7jbs0hj70ivx7ykckxh2zzl5-base-1.0;sha256:1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z;120;";
    const APP: &str = "1;/nix/store/vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app-2.0;sha256:1fb14p4f4kphcxxd4ld35s8apmpf6zi358y6b98pn4dnsylrfy3s;224;/nix/store/vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-app-2.0,/nix/store/zs83x50c7jbs0hj70ivx7ykckxh2zzl5-base-1.0";

    // Both texts are what Nix 2.8.0 signs.
    #[test]
    fn fingerprints() {
        assert_eq!(base().fingerprint(&StoreDir::default()), BASE);
        assert_eq!(app().fingerprint(&StoreDir::default()), APP);
    }

    #[test]
    fn references_are_ordered_and_unique_whatever_the_caller_does() {
        let mut info = app();
        info.references.reverse();
        assert_eq!(info.fingerprint(&StoreDir::default()), APP);
        info.references.extend(app().references);
        assert_eq!(info.fingerprint(&StoreDir::default()), APP);
    }

    #[test]
    fn the_directory_is_part_of_it() {
        let dir = StoreDir::new("/gnu/store").unwrap();
        assert_eq!(
            app().fingerprint(&dir),
            APP.replace("/nix/store", "/gnu/store")
        );
    }
}
