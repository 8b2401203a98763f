//! Notices that the directory of NAR files is empty, because its disk is not mounted.

use crate::error::StorageError;
use crate::metadata::Metadata;
use crate::objects::{Objects, list_if_any};

/// Number of files up to which all may be missing: in a small storage, they may have been deleted
/// one by one.
const FEW_COUNT: usize = 16;

/// Number of rows that are read to count the files.
const ROW_COUNT: u32 = 500;

/// Checks that the directory of NAR files is not empty if the database lists more than a few. An
/// empty directory must not make each file a lost one.
///
/// # Errors
///
/// [`StorageError::NoFiles`]. Other errors.
pub(crate) fn check_files(
    metadata: &dyn Metadata,
    objects: &dyn Objects,
) -> Result<(), StorageError> {
    if has_files(objects)? {
        return Ok(());
    }
    let rows = metadata.nars_after(0, ROW_COUNT)?;
    let count = rows.iter().filter(|row| !row.is_lost).count();
    match count > FEW_COUNT {
        true => Err(StorageError::NoFiles),
        false => Ok(()),
    }
}

fn has_files(objects: &dyn Objects) -> Result<bool, StorageError> {
    let mut is_found = false;
    let listed = list_if_any(objects, "nar/", &mut |_key| {
        is_found = true;
        // Ends the list after its first file.
        Err(StorageError::NoFiles)
    });
    match listed {
        Err(_) if is_found => Ok(true),
        listed => listed.map(|()| false),
    }
}
