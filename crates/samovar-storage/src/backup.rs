//! The daily backup: data that only the database has, not the files of the storage directory.
//!
//! One file per day contains the tokens (as hashes), the pins, the last uses, the name of the
//! mirrored cache, and the narinfos of the others, as lines of JSON that are compressed with zstd.
//! It is written again if they change. `samovar import --rebuild` restores them from the
//! newest file.

use std::io::{BufRead as _, BufReader, Write as _};
use std::time::Instant;

use crate::counters::locked;
use crate::error::StorageError;
use crate::storage::Storage;

/// Prefix of the keys of backups.
const PREFIX: &str = ".samovar/backup/";

const SUFFIX: &str = ".jsonl.zst";

/// Maximum number of backups; older ones are deleted.
const COUNT_MAX: usize = 7;

const LEVEL: i32 = 3;

/// Minimum time until today's backup is written again, as a multiple of the time that writing it
/// took.
const PAUSE_FACTOR: u32 = 100;

impl Storage {
    /// Writes today's backup if it is missing or outdated, and deletes the oldest backups above the
    /// maximum.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`]. After [`StorageError::Damaged`], the backup may lack damaged paths
    /// only.
    pub fn back_up(&self) -> Result<(), StorageError> {
        let key = format!("{PREFIX}{}{SUFFIX}", self.metadata.today()?);
        let state = self.metadata.dump_state()?;
        let started = Instant::now();
        let is_current =
            |(last, pause_end): &(String, Instant)| *last == state || started < *pause_end;
        if self.objects.state(&key)?.is_some()
            && locked(&self.last_backup).as_ref().is_some_and(is_current)
        {
            return Ok(());
        }
        let failed = |error| StorageError::file("cannot write", &key, error);
        let object = self.objects.create()?;
        let mut encoder = zstd::Encoder::new(object, LEVEL).map_err(failed)?;
        let fault = self
            .metadata
            .dump(&mut |line| writeln!(encoder, "{line}").map_err(failed))?;
        encoder.finish().map_err(failed)?.publish(&key)?;
        let pause_end = Instant::now() + started.elapsed() * PAUSE_FACTOR;
        *locked(&self.last_backup) = Some((state, pause_end));
        let mut keys = self.backups()?;
        keys.truncate(keys.len().saturating_sub(COUNT_MAX));
        keys.iter().try_for_each(|key| self.objects.remove(key))?;
        fault.map_or(Ok(()), Err)
    }

    /// Restores tokens, pins and last uses from the newest backup. Returns the key of the backup,
    /// or `None` if there is no backup.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn restore_backup(&self) -> Result<Option<String>, StorageError> {
        let Some((key, lines)) = self.newest_backup()? else {
            return Ok(None);
        };
        self.metadata.restore(&lines)?;
        Ok(Some(key))
    }

    /// Returns the narinfos of the caches that are not mirrored from the newest backup, each with
    /// the name of its cache. A path comes after its references.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn backed_up_narinfos(&self) -> Result<Vec<(String, String)>, StorageError> {
        match self.newest_backup()? {
            Some((_, lines)) => self.metadata.dumped_narinfos(&lines),
            None => Ok(Vec::new()),
        }
    }

    /// Reads the newest backup. Returns its key and its lines.
    pub(crate) fn newest_backup(&self) -> Result<Option<(String, Vec<String>)>, StorageError> {
        let Some(key) = self.backups()?.pop() else {
            return Ok(None);
        };
        let failed = |error| StorageError::file("cannot read", &key, error);
        let Some(file) = self.objects.open(&key)? else {
            return Ok(None);
        };
        let decoder = zstd::Decoder::new(file).map_err(failed)?;
        let lines: Result<Vec<String>, _> = BufReader::new(decoder).lines().collect();
        let lines = lines.map_err(failed)?;
        Ok(Some((key, lines)))
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
