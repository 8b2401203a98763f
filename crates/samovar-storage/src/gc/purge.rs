//! Deletes what a deleted cache leaves behind: rows, build logs, and narinfos in the directory.

use crate::error::StorageError;
use crate::layout::{LOGS, log_prefix};
use crate::metadata::{CacheId, Database, caches};
use crate::objects::Objects;

/// Maximum number of rows that one step deletes. Uploads wait about 20 ms for such a step.
const BATCH_COUNT: u32 = 500;

/// Runs one step of the deletion of hidden caches. Returns whether more steps may follow. The
/// process may be killed after each step: the next one continues the work.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn purge_step(metadata: &Database, objects: &Objects) -> Result<bool, StorageError> {
    let Some(cache) = caches::to_purge(metadata)? else {
        return Ok(false);
    };
    // Delete logs first, also those that are not recorded: after the last row, the deletion counts
    // as complete, and nothing looks for files of the cache again.
    remove_logs(metadata, objects, cache)?;
    objects.removing(|mirror| caches::purge(metadata, cache, BATCH_COUNT, mirror))?;
    Ok(true)
}

fn remove_logs(metadata: &Database, objects: &Objects, cache: CacheId) -> Result<(), StorageError> {
    let mirrored = caches::mirrored(metadata)?.map(|mirrored| mirrored.id);
    let of_mirrored = (mirrored == Some(cache)).then(|| LOGS.to_owned());
    for prefix in of_mirrored.into_iter().chain([log_prefix(cache.0)]) {
        let mut keys = Vec::new();
        objects.list(&prefix, &mut |key| {
            keys.push(key.to_owned());
            Ok(())
        })?;
        objects.remove_all(&keys)?;
    }
    Ok(())
}
