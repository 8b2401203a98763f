//! Decides which build logs and realisations the collector deletes.
//!
//! A build log belongs to the paths of its cache that its derivation has built, and a realisation
//! to its output. Build logs and realisations of a path that is kept are kept, too. A realisation
//! is always deleted with its output. This module decides about build logs and realisations without
//! a path.

use std::collections::HashMap;

use crate::error::StorageError;
use crate::gc::{Retentions, Rules};
use crate::metadata::{CacheId, Database, Extra, extras, limits};

/// Returns the build logs and realisations without a path that the next run of the collector
/// deletes: those whose path was deleted, those that are older than the retention time, and the
/// oldest ones of a cache that exceeds its retention size. Those of the last day are kept.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn unused_extras(
    metadata: &Database,
    rules: &Rules,
    retentions: &Retentions,
) -> Result<Vec<Extra>, StorageError> {
    let now = metadata.now();
    let (mut unused, mut others) = (Vec::new(), Vec::new());
    for extra in extras::without_path(metadata, now - rules.young)? {
        let time = retentions.of(&extra.cache_name).time_of(&extra.name);
        let is_old = time.is_some_and(|time| extra.uploaded_at <= now - time);
        match extra.is_left || is_old {
            true => unused.push(extra),
            false => others.push(extra),
        }
    }
    // Number of bytes by which each cache exceeds its retention size.
    let mut excess: HashMap<CacheId, u64> = HashMap::new();
    others.sort_by_key(|extra| extra.uploaded_at);
    for extra in others {
        let Some(max) = retentions.of(&extra.cache_name).size else {
            continue;
        };
        let excess = match excess.get_mut(&extra.cache) {
            Some(excess) => excess,
            None => {
                let of_cache = unused
                    .iter()
                    .filter(|other: &&Extra| other.cache == extra.cache);
                let freed: u64 = of_cache.map(|other| other.size).sum();
                let used = limits::used_bytes(metadata, extra.cache)?.saturating_sub(freed);
                excess
                    .entry(extra.cache)
                    .or_insert(used.saturating_sub(max))
            }
        };
        if *excess > 0 {
            *excess = excess.saturating_sub(extra.size);
            unused.push(extra);
        }
    }
    Ok(unused)
}
