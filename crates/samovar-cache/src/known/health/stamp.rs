//! The subject of a verification record.

use samovar_nix::PathInfo;
use samovar_store::Identity;
use sha2::{Digest, Sha256};

/// A digest of a path's registration, and of the root of its files if known. It changes when either
/// does.
///
/// Eight bytes, because a million of them may be in memory. A collision, one in 2^64, skips a
/// verification.
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
