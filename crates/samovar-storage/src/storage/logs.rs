//! Receives and returns build logs.
//!
//! The database records the name and the length of each log, which count towards the quota. A log
//! is recorded before its file gets its name, so the record of a killed upload may lack its file.
//! `log_files::compare` corrects that, and records logs that other programs have written.

use std::fs::File;
use std::io::{Read, Write as _};

use samovar_nix::StorePath;

use crate::error::StorageError;
use crate::layout::{LOGS, log_prefix};
use crate::metadata::{CacheId, LogFile, extras};
use crate::receive::PutError;
use crate::receive::publish::{Refusal, check_name};
use crate::storage::StoredCache;
use crate::storage::counters::Kind;
use crate::storage::realisations::check_recorded;
use crate::token::Token;

/// Length of the buffer for receiving a build log, in bytes.
const BUFFER_LEN: usize = 64 * 1024;

/// Receives a build log of at most `len_max` bytes. It replaces an earlier log with the same name.
///
/// # Errors
///
/// Any [`PutError`]. Nothing of the upload is kept then.
pub fn put(
    stored: &StoredCache,
    token: &Token,
    path: &StorePath,
    source: &mut dyn Read,
    len_max: u64,
) -> Result<(), PutError> {
    let outcome = receive(stored, token, path, source, len_max);
    stored.storage.counters.count(Kind::Log, outcome)
}

fn receive(
    stored: &StoredCache,
    token: &Token,
    path: &StorePath,
    source: &mut dyn Read,
    len_max: u64,
) -> Result<(), PutError> {
    // A build log has the name of its derivation.
    check_name(
        token,
        path.name().strip_suffix(".drv").unwrap_or(path.name()),
    )?;
    let metadata = &stored.storage.metadata;
    let mut object = stored.storage.objects.create()?;
    let mut piece = vec![0; BUFFER_LEN];
    let mut size = 0_u64;
    loop {
        let read = source.read(&mut piece).map_err(PutError::of_source)?;
        if read == 0 {
            break;
        }
        size += read as u64;
        if size > len_max {
            return Err(Refusal::LogTooLong(len_max).into());
        }
        object
            .write_all(&piece[..read])
            .map_err(|error| StorageError::file("cannot write", path.base_name(), error))?;
    }
    let log = LogFile {
        name: path.base_name().to_owned(),
        size,
        uploaded_at: metadata.now(),
    };
    let recorded = extras::record_log(metadata, stored.id, token.id, &log, stored.limit())?;
    check_recorded(stored, &recorded)?;
    let mirror = stored.storage.mirror();
    let own = log_key(stored.id, path);
    if mirror.writes(stored.id) {
        object.publish(&mirrored_key(path))?;
        // Another process may have written an older one during an upgrade.
        stored.storage.objects.remove(&own)?;
    } else {
        object.publish(&own)?;
    }
    Ok(())
}

/// Opens an uploaded build log, or returns `None` if it does not exist.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn open(stored: &StoredCache, path: &StorePath) -> Result<Option<File>, StorageError> {
    let objects = &stored.storage.objects;
    let mut opened = objects.read(&log_key(stored.id, path))?;
    let mirror = stored.storage.mirror();
    if opened.is_none() && mirror.is_of(stored.id) {
        opened = objects.read(&mirrored_key(path))?;
    }
    if opened.is_none() {
        stored.storage.check_presence()?;
    }
    Ok(opened)
}

/// Returns the key of a log of a cache that is not mirrored.
fn log_key(cache: CacheId, path: &StorePath) -> String {
    format!("{}{}", log_prefix(cache.0), path.base_name())
}

/// Returns the key of a log of the mirrored cache. No other cache uses `log/`, so that a token for
/// one cache cannot change the logs of another.
fn mirrored_key(path: &StorePath) -> String {
    format!("{LOGS}{}", path.base_name())
}
