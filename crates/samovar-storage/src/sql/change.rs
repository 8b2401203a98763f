//! [`Change`]: what other nodes must learn about a transaction.

use samovar_nix::HashPart;

/// Number that identifies a cache in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub(crate) i64);

/// A change of what nodes keep in memory. A transaction notes its changes with
/// `Transaction::note`. A node that has learned a change forgets what it
/// knew about its subject; it learns the present state from the database.
///
/// A node that has a path in memory answers for it without asking the database. So each transaction
/// notes what makes such an answer wrong, or must keep nodes from answering so. A path that is
/// revived is not noted: no node has it in memory, because its condemnation was noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Change {
    /// The cache has a path with this hash part from now on.
    PathAdded(CacheId, HashPart),
    /// The path is condemned, its NAR is lost or is another one, or it has more signatures.
    PathChanged(CacheId, HashPart),
    /// The cache has no path with this hash part from now on.
    PathRemoved(CacheId, HashPart),
    /// The cache was added, hidden, purged or added again.
    CacheChanged(CacheId),
    /// Generations of pins of the cache were added or removed, or have another time of expiry.
    PinsChanged(CacheId),
    /// Tokens were added or revoked.
    TokensChanged,
    /// Another cache is mirrored from now on.
    MirroredChanged,
}

impl Change {
    /// Returns the number of the kind, the cache and the hash part, as the table `change` has them.
    pub(crate) const fn columns(&self) -> (i64, Option<CacheId>, Option<&HashPart>) {
        match self {
            Self::PathAdded(cache, hash_part) => (1, Some(*cache), Some(hash_part)),
            Self::PathChanged(cache, hash_part) => (2, Some(*cache), Some(hash_part)),
            Self::PathRemoved(cache, hash_part) => (3, Some(*cache), Some(hash_part)),
            Self::CacheChanged(cache) => (4, Some(*cache), None),
            Self::PinsChanged(cache) => (5, Some(*cache), None),
            Self::TokensChanged => (6, None, None),
            Self::MirroredChanged => (7, None, None),
        }
    }

    /// Returns the change in the columns of a row of the table `change`. `None`: this version does
    /// not know the kind.
    pub(crate) const fn of_columns(
        kind: i64,
        cache: Option<CacheId>,
        hash_part: Option<HashPart>,
    ) -> Option<Self> {
        Some(match (kind, cache, hash_part) {
            (1, Some(cache), Some(hash_part)) => Self::PathAdded(cache, hash_part),
            (2, Some(cache), Some(hash_part)) => Self::PathChanged(cache, hash_part),
            (3, Some(cache), Some(hash_part)) => Self::PathRemoved(cache, hash_part),
            (4, Some(cache), None) => Self::CacheChanged(cache),
            (5, Some(cache), None) => Self::PinsChanged(cache),
            (6, None, None) => Self::TokensChanged,
            (7, None, None) => Self::MirroredChanged,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_they_were_written() {
        let (cache, hash_part) = (CacheId(3), HashPart::from_bytes([7; 20]));
        for change in [
            Change::PathAdded(cache, hash_part),
            Change::PathChanged(cache, hash_part),
            Change::PathRemoved(cache, hash_part),
            Change::CacheChanged(cache),
            Change::PinsChanged(cache),
            Change::TokensChanged,
            Change::MirroredChanged,
        ] {
            let (kind, cache, hash_part) = change.columns();
            let read = Change::of_columns(kind, cache, hash_part.copied());
            assert_eq!(read, Some(change));
        }
        assert_eq!(Change::of_columns(8, None, None), None);
    }
}
