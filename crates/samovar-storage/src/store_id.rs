//! The identifier of a storage, which is beside its objects and in its database: a wrong pair is
//! refused before anything is changed.

use std::io::{Read as _, Write as _};

use crate::error::StorageError;
use crate::layout::{CONFIRMATION, STORE_ID};
use crate::metadata::{Database, check};
use crate::objects::Objects;

/// Maximum length of the text of a storage identifier, in bytes.
const LEN_MAX: u64 = 1024;

/// Compares the identifiers beside the objects and in the database. Returns whether there is one
/// beside the objects: there is none in a new storage.
///
/// # Errors
///
/// [`StorageError::StoreId`] if the objects are in another directory, and
/// [`StorageError::OtherBucket`] if they are in another bucket; [`StorageError::EmptyBucket`] if
/// the bucket has no identifier, the database has files, and the operator has not confirmed that
/// they are lost. Other errors.
pub(crate) fn compare(objects: &Objects, metadata: &Database) -> Result<bool, StorageError> {
    let database = metadata.store_id()?;
    match (read(objects)?, objects.bucket()) {
        (Some(found), _) if found == database => Ok(true),
        (Some(_), Some(_)) => Err(StorageError::OtherBucket),
        (Some(directory), None) => Err(StorageError::StoreId {
            directory,
            database,
        }),
        (None, Some(bucket)) => {
            match check::has_files(metadata)? && objects.state(CONFIRMATION)?.is_none() {
                true => Err(StorageError::EmptyBucket(bucket.location.to_string())),
                false => Ok(false),
            }
        }
        (None, None) => Ok(false),
    }
}

/// Compares the identifiers, and writes that of the database beside the objects if there is none.
///
/// # Errors
///
/// As [`compare`].
pub(crate) fn establish(objects: &Objects, metadata: &Database) -> Result<(), StorageError> {
    if compare(objects, metadata)? {
        return Ok(());
    }
    let mut object = objects.create()?;
    writeln!(object, "{}", metadata.store_id()?)
        .map_err(|error| StorageError::file("cannot write", STORE_ID, error))?;
    object.publish(STORE_ID)?;
    match objects.bucket() {
        // It confirms the loss of these files only, not a later one.
        Some(_) => objects.remove(CONFIRMATION),
        None => Ok(()),
    }
}

/// Returns the identifier beside the objects, or `None` if there is none.
pub(crate) fn read(objects: &Objects) -> Result<Option<String>, StorageError> {
    let Some(file) = objects.read(STORE_ID)? else {
        return Ok(None);
    };
    let failed = |error| StorageError::file("cannot read", STORE_ID, error);
    let mut id = String::new();
    file.take(LEN_MAX).read_to_string(&mut id).map_err(failed)?;
    Ok(Some(id.trim().to_owned()))
}
