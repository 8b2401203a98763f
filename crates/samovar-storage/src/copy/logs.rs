//! Copies build logs.

use samovar_nix::StorePath;

use super::{Copy, Pair};
use crate::error::StorageError;
use crate::layout::{LOGS, log_prefix};
use crate::metadata::transfer::{self, Log};
use crate::receive::PutError;
use crate::storage::logs;

/// Copies the build logs of a cache that the target lacks or has in another length.
pub(super) fn copy(copy: &mut Copy<'_, '_>, at: usize) -> Result<(), StorageError> {
    let ids = copy.pairs[at].ids;
    let known = transfer::logs(&copy.to.metadata, ids.to)?;
    for log in transfer::logs(&copy.from.metadata, ids.from)? {
        let found = known.binary_search_by(|known| known.name.cmp(&log.name));
        if found.is_ok_and(|at| known[at].size == log.size) {
            continue;
        }
        match one(copy, at, &log) {
            Ok(()) => copy.progress.log_count += 1,
            Err(PutError::Storage(error)) => return Err(error),
            Err(error) => {
                let cache = copy.pairs[at].name.clone();
                copy.fault(cache, log.name, error.to_string())?;
            }
        }
    }
    Ok(())
}

fn one(copy: &Copy<'_, '_>, at: usize, log: &Log) -> Result<(), PutError> {
    let Pair {
        ids,
        to,
        is_mirrored,
        ..
    } = &copy.pairs[at];
    let own = format!("{}{}", log_prefix(ids.from.0), log.name);
    let mirrored = format!("{LOGS}{}", log.name);
    let objects = &copy.from.objects;
    let mut opened = objects.read(&own)?;
    if opened.is_none() && *is_mirrored {
        opened = objects.read(&mirrored)?;
    }
    let damaged = |reason: String| StorageError::Damaged(reason);
    let path = StorePath::from_base_name(&log.name)
        .map_err(|error| damaged(format!("{:?}: {error}", log.name)))?;
    // The server removes the record of a log without a file.
    let Some(mut file) = opened else {
        return Ok(());
    };
    logs::put(to, &copy.token, &path, &mut file, u64::MAX)?;
    Ok(transfer::set_log(&copy.to.metadata, ids.to, log)?)
}
