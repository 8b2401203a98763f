//! Notices that the directory of NAR files is another directory than before, or empty, because its
//! disk is not mounted. In this case, no file must be recorded as lost.
//!
//! # Theory of operation
//!
//! [`KEY`] identifies the directory in which most of the files were found last. In that directory,
//! missing files are recorded as lost, unless all files are missing and there were many. In any
//! other directory, no file is recorded as lost until most of the files are found there, for
//! example after the storage was copied to another disk. A few files prove nothing: somebody may
//! have written them while the disk was away.

use std::io::Read as _;

use crate::error::StorageError;
use crate::layout::CONFIRMATION;
use crate::metadata::{Database, ListedNar, check};
use crate::objects::Objects;
use crate::store_id;

/// Directory of NAR files.
const NARS: &str = "nar";

/// Key of the file with the identity of the directory of NAR files.
const KEY: &str = ".samovar/nar-place";

/// Maximum length of the identity, in bytes.
const IDENTITY_LEN_MAX: u64 = 100;

/// Number of files up to which all may be missing from the known directory: in a small storage,
/// they may have been deleted one by one.
const FEW_COUNT: usize = 16;

/// Number of rows that are read to look for files.
const ROW_COUNT: u32 = 500;

/// Checks that the directory of NAR files is the one in which the files are; in a bucket, that it
/// is the bucket of the storage.
///
/// # Errors
///
/// [`StorageError::NoFiles`], [`StorageError::OtherBucket`], [`StorageError::EmptyBucket`]. Other
/// errors.
pub(crate) fn check_files(metadata: &Database, objects: &Objects) -> Result<(), StorageError> {
    let Some(directory) = objects.directory() else {
        return store_id::compare(objects, metadata).map(drop);
    };
    let known = known_place(objects);
    let is_other = known.is_some() && known != directory.identity(NARS)?;
    if !is_other && has_files(objects)? {
        return Ok(());
    }
    let listed = listed(metadata)?;
    let is_present = match is_other {
        true => has_most(&listed, objects)? || is_confirmed(objects)?,
        false => listed.len() <= FEW_COUNT,
    };
    match is_present {
        true => Ok(()),
        false => Err(StorageError::NoFiles),
    }
}

/// Records the identity of the directory of NAR files, if most of the files are there.
pub(crate) fn record_place(metadata: &Database, objects: &Objects) -> Result<(), StorageError> {
    let Some(directory) = objects.directory() else {
        return Ok(());
    };
    let Some(found) = directory.identity(NARS)? else {
        return Ok(());
    };
    let is_confirmed = is_confirmed(objects)?;
    let is_new = known_place(objects).as_ref() != Some(&found);
    if is_new && (is_confirmed || has_most(&listed(metadata)?, objects)?) {
        objects.write_mirror(KEY, found.as_bytes())?;
    }
    match is_confirmed {
        true => objects.remove(CONFIRMATION),
        false => Ok(()),
    }
}

/// Returns the identity of the directory in which most of the files were found last. `None` if it
/// was never recorded, or cannot be read.
fn known_place(objects: &Objects) -> Option<String> {
    let file = objects.read(KEY).ok()??;
    let mut known = String::new();
    file.take(IDENTITY_LEN_MAX)
        .read_to_string(&mut known)
        .ok()?;
    // After a power cut, the file may be empty.
    (!known.is_empty()).then_some(known)
}

fn is_confirmed(objects: &Objects) -> Result<bool, StorageError> {
    Ok(objects.state(CONFIRMATION)?.is_some())
}

/// Returns the first NARs of the database, without those that are recorded as lost.
fn listed(metadata: &Database) -> Result<Vec<ListedNar>, StorageError> {
    let mut rows = check::nars_after(metadata, 0, ROW_COUNT)?;
    rows.retain(|row| !row.is_lost);
    Ok(rows)
}

/// Returns whether at least half of these files exist.
fn has_most(listed: &[ListedNar], objects: &Objects) -> Result<bool, StorageError> {
    let mut count = 0;
    for row in listed {
        let state = objects.state(&row.nar.object_key)?;
        count += usize::from(state.is_some_and(|state| state.len == row.nar.file_size));
    }
    Ok(2 * count >= listed.len())
}

fn has_files(objects: &Objects) -> Result<bool, StorageError> {
    let mut is_found = false;
    let listed = objects.list("nar/", &mut |_key| {
        is_found = true;
        // Ends the list after its first file.
        Err(StorageError::NoFiles)
    });
    match listed {
        Err(_) if is_found => Ok(true),
        listed => listed.map(|()| false),
    }
}
