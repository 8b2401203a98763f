//! Deletes what pushes that have expired leave behind: rows, and parts of files.

use std::collections::HashSet;

use crate::error::StorageError;
use crate::layout::PART_PREFIX;
use crate::metadata::{Database, pushes};
use crate::objects::Objects;

/// Ends pushes that have expired, and removes parts that belong to no push.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn sweep_pushes(metadata: &Database, objects: &Objects) -> Result<(), StorageError> {
    pushes::remove_expired(metadata)?;
    // List directories before pushes: then a directory that is listed belongs to a push that is
    // listed, too, unless the push has ended.
    let directories = objects.directories(PART_PREFIX)?;
    if directories.is_empty() {
        return Ok(());
    }
    let pushes: HashSet<String> = pushes::all(metadata, None)?.into_iter().collect();
    let is_over = |key: &&String| {
        let push = key.strip_prefix(PART_PREFIX).unwrap_or_default();
        !pushes.contains(push)
    };
    let mut over = directories.iter().filter(is_over);
    over.try_for_each(|key| objects.remove_directory(key))
}
