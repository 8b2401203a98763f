//! The daily backup: data that only the database has, not the files of the storage directory.
//!
//! One file per day contains the tokens (as hashes), the pins and the last uses, as lines of JSON
//! that are compressed with zstd. `samovar import --rebuild` restores them from the newest file.

use std::io::{BufRead as _, BufReader, Write as _};

use crate::error::StorageError;
use crate::storage::Storage;

/// Prefix of the keys of backups.
const PREFIX: &str = ".samovar/backup/";

const SUFFIX: &str = ".jsonl.zst";

/// Maximum number of backups; older ones are deleted.
const COUNT_MAX: usize = 7;

const LEVEL: i32 = 3;

impl Storage {
    /// Writes today's backup unless it exists, and deletes the oldest backups above the maximum.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn back_up(&self) -> Result<(), StorageError> {
        let key = format!("{PREFIX}{}{SUFFIX}", self.metadata.today()?);
        if self.objects.state(&key)?.is_some() {
            return Ok(());
        }
        let failed = |error| StorageError::file("cannot write", &key, error);
        let object = self.objects.create()?;
        let mut encoder = zstd::Encoder::new(object, LEVEL).map_err(failed)?;
        self.metadata
            .dump(&mut |line| writeln!(encoder, "{line}").map_err(failed))?;
        encoder.finish().map_err(failed)?.publish(&key)?;
        let mut keys = self.backups()?;
        keys.truncate(keys.len().saturating_sub(COUNT_MAX));
        keys.iter().try_for_each(|key| self.objects.remove(key))
    }

    /// Restores tokens, pins and last uses from the newest backup. Returns the key of the backup,
    /// or `None` if there is no backup.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn restore_backup(&self) -> Result<Option<String>, StorageError> {
        let Some(key) = self.backups()?.pop() else {
            return Ok(None);
        };
        let failed = |error| StorageError::file("cannot read", &key, error);
        let Some(file) = self.objects.open(&key)? else {
            return Ok(None);
        };
        let decoder = zstd::Decoder::new(file).map_err(failed)?;
        let lines: Result<Vec<String>, _> = BufReader::new(decoder).lines().collect();
        self.metadata.restore(&lines.map_err(failed)?)?;
        Ok(Some(key))
    }

    /// Returns the keys of all backups, the newest last.
    fn backups(&self) -> Result<Vec<String>, StorageError> {
        let mut keys = Vec::new();
        let listed = self.objects.list(PREFIX, &mut |key| {
            keys.extend(key.ends_with(SUFFIX).then(|| key.to_owned()));
            Ok(())
        });
        match listed {
            Err(StorageError::File { error, .. })
                if error.kind() == std::io::ErrorKind::NotFound => {}
            listed => listed?,
        }
        keys.sort_unstable();
        Ok(keys)
    }
}
