//! Paths that a policy hides, and NARs that only these use.

use std::sync::Arc;

use samovar_nix::HashPart;

use crate::error::StorageError;
use crate::metadata::{StoredPath, nars, paths};
use crate::storage::cache::{Hides, StoredCache};

impl StoredCache {
    /// Sets the function that returns whether a policy hides a path from clients. A NAR that only
    /// hidden paths use exists only for the tokens that have sent it, and a push is told nothing
    /// about a hidden path. Look-ups of paths are not affected: their caller applies the policy.
    #[must_use]
    pub fn hiding(mut self, hides: impl Fn(&StoredPath) -> bool + Send + Sync + 'static) -> Self {
        self.hides = Some(Hides(Arc::new(hides)));
        self
    }

    /// Returns whether the policy hides the path with this hash part.
    pub(crate) fn hides(&self, hash_part: HashPart) -> Result<bool, StorageError> {
        let Some(Hides(hides)) = &self.hides else {
            return Ok(false);
        };
        let path = paths::peek(&self.storage.metadata, self.id, hash_part)?;
        Ok(path.is_some_and(|path| hides(&path)))
    }

    /// Returns whether a client may use a NAR of the storage: it was sent with the client's token,
    /// or a path that the policy does not hide uses it.
    pub(crate) fn shows_nar(&self, token: Option<i64>, nar: i64) -> Result<bool, StorageError> {
        let metadata = &self.storage.metadata;
        if self.hides.is_none() {
            return Ok(true);
        }
        if let Some(token) = token
            && nars::has_sent(metadata, token, nar)?
        {
            return Ok(true);
        }
        for user in paths::of_nar(metadata, self.id, nar)? {
            if !self.hides(user)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
