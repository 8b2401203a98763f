//! [`Key`]: the numbers of advisory locks.

use sha2::{Digest as _, Sha256};

use crate::postgres::PostgresSettings;

/// The number of an advisory lock. The locks of other programs in the same database, and of other
/// storages, have other numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(i64);

impl Key {
    /// The lock that each transaction which writes takes first.
    pub(super) fn writer(settings: &PostgresSettings) -> Self {
        Self::named(settings, "writer")
    }

    /// The lock with a name of the caller's.
    pub(super) fn named(settings: &PostgresSettings, name: &str) -> Self {
        let text = format!("samovar/{}/{name}", settings.schema);
        let digest: [u8; 32] = Sha256::digest(text).into();
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        Self(i64::from_be_bytes(first))
    }

    pub(super) const fn number(self) -> i64 {
        self.0
    }
}
