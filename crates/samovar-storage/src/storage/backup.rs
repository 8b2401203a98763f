//! The daily backup: data that only the database has, not the files of the storage directory.
//!
//! One file per day contains the tokens (as hashes), the pins, the last uses, the name of the
//! mirrored cache, and the narinfos of all other caches, as lines of JSON that are compressed with
//! zstd. The file is written again if these data change. A backup with tokens, pins or paths that
//! the database lacks is kept under another name. `samovar import --rebuild` restores the data from
//! the newest file that can be read.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::time::Instant;

use crate::error::StorageError;
use crate::metadata::{Database, backup};
use crate::objects::Objects;
use crate::storage::Storage;
use crate::storage::counters::locked;

/// Prefix of the keys of backups.
const PREFIX: &str = ".samovar/backup/";

const SUFFIX: &str = ".jsonl.zst";

/// Maximum number of backups, and of kept ones; older ones are deleted.
const COUNT_MAX: usize = 7;

/// Separates the day from the number in the key of a kept backup. It sorts before the suffix, so
/// the kept backups of a day come before the backup of that day.
const KEPT: char = '+';

/// Number of lines of a backup that are compared with the database in one transaction.
const LINES_AT_ONCE: usize = 1000;

const LEVEL: i32 = 3;

/// Minimum time until today's backup is written again, as a multiple of the time that writing it
/// took.
const PAUSE_FACTOR: u32 = 100;

/// A backup that was read.
pub(crate) struct Backup {
    pub(crate) key: String,
    pub(crate) lines: Vec<String>,
    /// The newer backups that cannot be read, each with the reason.
    pub(crate) unreadable: Vec<String>,
}

/// The backup from which the data were restored.
#[derive(Debug)]
pub struct Restored {
    /// Its key.
    pub key: String,
    /// The newer backups that cannot be read, each with the reason.
    pub unreadable: Vec<String>,
}

/// Writes today's backup if it is missing or outdated, and deletes the oldest backups above the
/// maximum. Keeps a backup of another process that has more than the database.
///
/// # Errors
///
/// Any [`StorageError`]. After [`StorageError::BackupKept`], the backup is complete. After
/// [`StorageError::Damaged`], it may lack damaged paths only.
pub fn write(storage: &Storage) -> Result<(), StorageError> {
    let Storage {
        metadata,
        objects,
        last_backup,
        ..
    } = storage;
    let key = format!("{PREFIX}{}{SUFFIX}", backup::today(metadata));
    let state = backup::state(metadata)?;
    let started = Instant::now();
    let is_current = |(last, pause_end): &(String, Instant)| *last == state || started < *pause_end;
    let is_first = locked(last_backup).is_none();
    let exists = objects.state(&key)?.is_some();
    if exists && locked(last_backup).as_ref().is_some_and(is_current) {
        return Ok(());
    }
    let kept = match exists && is_first && lacks_lines_of(metadata, objects, &key)? {
        true => Some(StorageError::BackupKept(keep(objects, &key)?)),
        false => None,
    };
    let failed = |error| StorageError::file("cannot write", &key, error);
    let object = objects.create()?;
    let mut encoder = zstd::Encoder::new(object, LEVEL).map_err(failed)?;
    encoder.include_checksum(true).map_err(failed)?;
    let fault = backup::dump(metadata, &mut |line| {
        writeln!(encoder, "{line}").map_err(failed)
    })?;
    encoder.finish().map_err(failed)?.publish(&key)?;
    let pause_end = Instant::now() + started.elapsed() * PAUSE_FACTOR;
    *locked(last_backup) = Some((state, pause_end));
    let (kept_keys, keys): (Vec<_>, Vec<_>) = backups(objects)?
        .into_iter()
        .partition(|key| key.contains(KEPT));
    for mut keys in [kept_keys, keys] {
        keys.truncate(keys.len().saturating_sub(COUNT_MAX));
        objects.remove_all(&keys)?;
    }
    fault.or(kept).map_or(Ok(()), Err)
}

/// Returns whether a backup has a token, a pin or a path of another cache that the database lacks.
/// Of a backup that is damaged, only the part before the damage counts.
fn lacks_lines_of(metadata: &Database, objects: &Objects, key: &str) -> Result<bool, StorageError> {
    let Some(file) = objects.read(key)? else {
        return Ok(false);
    };
    let Ok(lines) = lines_of(file) else {
        return Ok(false);
    };
    let mut lines = lines.map_while(Result::ok);
    loop {
        let some: Vec<String> = lines.by_ref().take(LINES_AT_ONCE).collect();
        if some.is_empty() {
            return Ok(false);
        }
        if backup::lacks_any(metadata, &some)? {
            return Ok(true);
        }
    }
}

/// Gives a backup another name, under which it stays. Returns that name.
fn keep(objects: &Objects, key: &str) -> Result<String, StorageError> {
    let day = key.strip_suffix(SUFFIX).unwrap_or(key);
    let mut number = 1;
    loop {
        let kept = format!("{day}{KEPT}{number}{SUFFIX}");
        if objects.state(&kept)?.is_none() {
            objects.rename(key, &kept)?;
            return Ok(kept);
        }
        number += 1;
    }
}

/// Restores tokens, pins and last uses from the newest backup that can be read. Returns `None` if
/// there is no backup.
///
/// # Errors
///
/// [`StorageError::NoBackup`] if no backup can be read. Other errors.
pub fn restore(storage: &Storage) -> Result<Option<Restored>, StorageError> {
    let Some(backup) = newest(&storage.objects)? else {
        return Ok(None);
    };
    backup::restore(&storage.metadata, &backup.lines)?;
    Ok(Some(Restored {
        key: backup.key,
        unreadable: backup.unreadable,
    }))
}

/// Returns the narinfos of the caches that are not mirrored from the newest backup, each with the
/// name of its cache. A path comes after its references.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn narinfos(storage: &Storage) -> Result<Vec<(String, String)>, StorageError> {
    match newest(&storage.objects)? {
        Some(backup) => backup::narinfos(&backup.lines),
        None => Ok(Vec::new()),
    }
}

/// Reads the newest backup that can be read. Returns `None` if there is no backup. A power cut or a
/// full disk may have damaged the newest file, while the older ones are intact.
pub(crate) fn newest(objects: &Objects) -> Result<Option<Backup>, StorageError> {
    let mut unreadable = Vec::new();
    for key in backups(objects)?.into_iter().rev() {
        match read(objects, &key) {
            Ok(lines) => {
                return Ok(Some(Backup {
                    key,
                    lines,
                    unreadable,
                }));
            }
            Err(error) => unreadable.push(error.to_string()),
        }
    }
    match unreadable.is_empty() {
        true => Ok(None),
        false => Err(StorageError::NoBackup(unreadable.join("; "))),
    }
}

fn read(objects: &Objects, key: &str) -> Result<Vec<String>, StorageError> {
    let failed = |error| StorageError::file("cannot read", key, error);
    let missing = || failed(io::ErrorKind::NotFound.into());
    let file = objects.read(key)?.ok_or_else(missing)?;
    // An empty file decodes to no lines, but every backup has a frame.
    if file.metadata().map_err(failed)?.len() == 0 {
        return Err(failed(io::ErrorKind::UnexpectedEof.into()));
    }
    let lines = lines_of(file).and_then(Iterator::collect::<io::Result<Vec<String>>>);
    let lines = lines.map_err(failed)?;
    match backup::narinfos(&lines) {
        Ok(_) => Ok(lines),
        Err(error) => Err(failed(io::Error::new(
            io::ErrorKind::InvalidData,
            error.to_string(),
        ))),
    }
}

/// Returns the keys of all backups, the newest last.
fn backups(objects: &Objects) -> Result<Vec<String>, StorageError> {
    let mut keys = Vec::new();
    objects.list(PREFIX, &mut |key| {
        keys.extend(key.ends_with(SUFFIX).then(|| key.to_owned()));
        Ok(())
    })?;
    keys.sort_unstable();
    Ok(keys)
}

fn lines_of(file: File) -> io::Result<impl Iterator<Item = io::Result<String>>> {
    Ok(BufReader::new(zstd::Decoder::new(file)?).lines())
}
