//! Writes the narinfos of the mirrored cache into the directory, after the database has the paths.

use samovar_nix::HashPart;

use crate::error::StorageError;
use crate::layout::narinfo_key;
use crate::mirror::Render;
use crate::storage::StoredCache;

impl StoredCache {
    /// Writes the narinfos that the directory lacks because an earlier process was killed after
    /// publishing them, or because they could not be written. Does nothing if the cache is not
    /// mirrored.
    ///
    /// # Errors
    ///
    /// The first [`StorageError`]; the other narinfos are written. The repair will be repeated.
    pub fn repair_mirror(&self, render: &Render<'_>) -> Result<(), StorageError> {
        if !self.is_mirrored {
            return Ok(());
        }
        let mut failed = Ok(());
        for (cache, hash_part) in self.storage.metadata.hash_parts()? {
            if cache != self.id {
                continue;
            }
            let state = self.storage.objects.state(&narinfo_key(hash_part))?;
            if state.is_none_or(|state| state.len == 0)
                && let Err(error) = self.mirror(hash_part, render)
            {
                failed = failed.and(Err(error));
            }
        }
        if failed.is_err() {
            self.storage.check_mirror();
        }
        failed
    }

    /// Writes the narinfo of a published path into the directory, if the cache is mirrored. The
    /// path is published whether or not that succeeds: the background thread tries again, and
    /// reports the error if it persists.
    pub(crate) fn follow(&self, hash_part: HashPart, render: &Render<'_>) {
        if self.mirror(hash_part, render).is_err() {
            self.storage.check_mirror();
        }
    }

    /// Writes the narinfo of a path into the directory, if the cache is mirrored.
    fn mirror(&self, hash_part: HashPart, render: &Render<'_>) -> Result<(), StorageError> {
        if self.is_mirrored
            && let Some(path) = self.peek(hash_part)?
        {
            let text = render(&path);
            self.storage
                .objects
                .write_mirror(&narinfo_key(hash_part), &text)?;
        }
        Ok(())
    }
}
