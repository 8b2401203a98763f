//! Digests that tie a verification record to a registration and its files.

use samovar_store::Identity;
use sha2::{Digest, Sha256};

use crate::known::row::Row;

/// A digest of a path's registration and, if known, of the root of its files. The digest changes
/// when one of the two changes.
///
/// A stamp has eight bytes, because a million stamps may be in memory. A collision, with a
/// probability of one in 2^64, skips one verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp([u8; 8]);

impl Stamp {
    /// Computes the stamp of a row without files.
    pub(super) fn of_row(row: &Row) -> Self {
        Self::finish(digest(row))
    }

    /// Computes the stamp of a row and of the root from which its files are read.
    pub(super) fn of_files(row: &Row, root: &Identity) -> Self {
        Self::finish(digest(row).chain_update(root.lasting_bytes()))
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

fn digest(row: &Row) -> Sha256 {
    let registration = row.registration.unwrap_or(-1);
    Sha256::new()
        .chain_update(row.path.hash_part().as_bytes())
        .chain_update(registration.to_le_bytes())
        .chain_update(row.registration_time.to_le_bytes())
        .chain_update(row.nar_hash.as_bytes())
        .chain_update(row.nar_size.to_le_bytes())
}
