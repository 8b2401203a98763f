//! Compares the build logs in the directory with the database.

use crate::error::StorageError;
use crate::layout::{LOGS, log_prefix};
use crate::metadata::{CacheId, Database, LogFile, caches, extras};
use crate::objects::Objects;

/// Compares the build logs in the directory with their records, and corrects the records. Keeps the
/// records of files that were uploaded after `before`, because these files may be missing for a
/// moment.
pub(crate) fn compare(
    metadata: &Database,
    objects: &Objects,
    before: i64,
) -> Result<(), StorageError> {
    let mirrored = caches::mirrored(metadata)?.map(|cache| cache.id);
    for name in caches::names(metadata)? {
        let Some(cache) = caches::find(metadata, &name)? else {
            continue;
        };
        let found = in_directory(objects, cache.id, mirrored == Some(cache.id))?;
        extras::compare_logs(metadata, cache.id, &found, before)?;
    }
    Ok(())
}

/// Returns the build logs of a cache that the directory has.
fn in_directory(
    objects: &Objects,
    cache: CacheId,
    is_mirrored: bool,
) -> Result<Vec<LogFile>, StorageError> {
    let prefix = match is_mirrored {
        true => LOGS.to_owned(),
        false => log_prefix(cache.0),
    };
    let mut found = Vec::new();
    objects.list_states(&prefix, &mut |key, state| {
        found.push(LogFile {
            name: key.strip_prefix(&*prefix).unwrap_or(key).to_owned(),
            size: state.len,
            uploaded_at: state.modified_at,
        });
        Ok(())
    })?;
    Ok(found)
}
