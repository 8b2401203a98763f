//! Queries of one cache, mostly for its web interface. They record no use and revive nothing.

use std::collections::HashSet;
use std::io::{self, Read};

use samovar_nix::{HashPart, StorePath};

use crate::error::StorageError;
use crate::metadata::{
    CLOSURE_COUNT_MAX, CacheId, ClosureSize, Details, Pin, Sqlite, StoredPath, nars, overview,
    paths, pins,
};
use crate::storage::cache::{Hides, StoredCache};

/// Returns the details of an uploaded path, or `None` if the cache does not have it. Its closure
/// has no paths that the policy hides. The caller applies the policy to the path itself, to its
/// references and to its referrers.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn details(stored: &StoredCache, hash_part: HashPart) -> Result<Option<Details>, StorageError> {
    if !stored.may_contain(hash_part) {
        return Ok(None);
    }
    let mut details = overview::details(&stored.storage.metadata, stored.id, hash_part)?;
    if let (Some(details), Some(Hides(hides))) = (&mut details, &stored.hides) {
        details.closure =
            shown_closure(&stored.storage.metadata, stored.id, &details.path, &**hides)?;
    }
    Ok(details)
}

/// Returns the size of the part of a closure that can be reached without a hidden path, or
/// `None` if it has more than [`CLOSURE_COUNT_MAX`] paths.
fn shown_closure(
    metadata: &Sqlite,
    cache: CacheId,
    path: &StoredPath,
    hides: &dyn Fn(&StoredPath) -> bool,
) -> Result<Option<ClosureSize>, StorageError> {
    let mut seen = HashSet::from([path.path.hash_part()]);
    let mut size = ClosureSize {
        path_count: 1,
        nar_size: path.nar.nar_size,
    };
    let mut pending: Vec<HashPart> = path.references.iter().map(StorePath::hash_part).collect();
    while let Some(hash_part) = pending.pop() {
        if !seen.insert(hash_part) {
            continue;
        }
        let member = paths::peek(metadata, cache, hash_part)?;
        let Some(member) = member.filter(|member| !hides(member)) else {
            continue;
        };
        if size.path_count == u64::from(CLOSURE_COUNT_MAX) {
            return Ok(None);
        }
        size.path_count += 1;
        size.nar_size = size.nar_size.saturating_add(member.nar.nar_size);
        pending.extend(member.references.iter().map(StorePath::hash_part));
    }
    Ok(Some(size))
}

/// Returns a reader of the listing of an uploaded path. `None`: its NAR has no listing.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn listing(
    stored: &StoredCache,
    path: &StoredPath,
) -> Result<Option<impl Read + Send + use<>>, StorageError> {
    // The database stores listings compressed with zstd.
    let listing = nars::listing(&stored.storage.metadata, path.nar.id)?;
    let reader = listing.map(|listing| zstd::Decoder::new(io::Cursor::new(listing)));
    let reader = reader.transpose();
    reader.map_err(|error| StorageError::Damaged(error.to_string()))
}

/// Returns the pins of this cache, sorted by name, the newest generation first.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn pins(stored: &StoredCache) -> Result<Vec<Pin>, StorageError> {
    let mut pins = pins::all(&stored.storage.metadata)?;
    pins.retain(|pin| pin.cache == stored.name);
    Ok(pins)
}

/// Returns the paths of the cache that have this deriver. Reads all paths of the cache.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn of_deriver(
    stored: &StoredCache,
    deriver: &StorePath,
) -> Result<Vec<StoredPath>, StorageError> {
    let metadata = &stored.storage.metadata;
    let mut paths = Vec::new();
    for hash_part in paths::of_deriver(metadata, stored.id, deriver)? {
        paths.extend(paths::peek(metadata, stored.id, hash_part)?);
    }
    Ok(paths)
}
