//! What a verdict is about.

use samovar_nix::PathInfo;
use samovar_store::Identity;
use sha2::{Digest, Sha256};

/// One registration of one path, and one root on the disk if there is a say in that: while both
/// are the same, so is this.
///
/// Eight bytes of a hash, because there may be a million of them in memory: what happens to have
/// the same stamp is not hashed once more, which one in 2^64 may not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp([u8; 8]);

impl Stamp {
    /// Of the row alone.
    pub(super) fn of_row(info: &PathInfo) -> Self {
        Self::finish(row(info))
    }

    /// Of the row and the root its files are read from.
    pub(super) fn of_files(info: &PathInfo, root: &Identity) -> Self {
        Self::finish(row(info).chain_update(root.lasting_bytes()))
    }

    pub(super) const fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }

    fn finish(hash: Sha256) -> Self {
        let hash: [u8; 32] = hash.finalize().into();
        let mut first = [0; 8];
        first.copy_from_slice(&hash[..8]);
        Self(first)
    }
}

fn row(info: &PathInfo) -> Sha256 {
    let registration = info.registration.unwrap_or(-1);
    Sha256::new()
        .chain_update(info.path.hash_part().as_bytes())
        .chain_update(registration.to_le_bytes())
        .chain_update(info.registration_time.to_le_bytes())
        .chain_update(info.nar_hash.as_bytes())
        .chain_update(info.nar_size.to_le_bytes())
}
