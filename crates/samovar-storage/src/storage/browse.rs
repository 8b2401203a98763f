//! Queries of one cache, mostly for its web interface. They record no use and revive nothing.

use std::collections::HashSet;
use std::io::{self, Read};

use samovar_nix::narinfo::Compression;
use samovar_nix::{HashPart, StorePath};

use crate::error::StorageError;
use crate::metadata::{
    CLOSURE_COUNT_MAX, CacheId, ClosureSize, Database, Details, Named, Pin, StoredPath, nars,
    overview, paths, pins,
};
use crate::objects::NarReader;
use crate::storage::cache::{Hides, StoredCache};
use crate::verify::frames_of;

/// The file of a NAR, opened at a place from which the rest can be decompressed.
#[derive(Debug)]
pub struct OpenedNar {
    /// The file, at that place.
    pub file: NarReader,
    /// Compression of the file.
    pub compression: Compression,
    /// Offset of the place in the NAR, in bytes.
    pub position: u64,
}

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
    metadata: &Database,
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

/// Reads the next few thousand paths of the cache in the order of their numbers, and returns those
/// whose name `accepts` accepts. `after` is exclusive, and 0 for the first path. A path that is
/// published later has a higher number.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn named(
    stored: &StoredCache,
    after: i64,
    accepts: &dyn Fn(&str) -> bool,
) -> Result<Named, StorageError> {
    overview::named(&stored.storage.metadata, stored.id, after, accepts)
}

/// Opens the NAR of an uploaded path, to read it from `offset` on. Records a use of the path's NAR.
/// `None`: its file is lost.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn open_at(
    stored: &StoredCache,
    path: &StoredPath,
    offset: u64,
) -> Result<Option<OpenedNar>, StorageError> {
    let (storage, nar) = (&*stored.storage, &path.nar);
    let Some(file) = storage.open_whole(nar)? else {
        return Ok(None);
    };
    storage.uses().nars.insert((stored.id, nar.id));
    let (file_offset, position) = match nar.compression {
        Compression::None => (offset, offset),
        Compression::Zstd => {
            let index = nars::frames(&storage.metadata, nar.id)?;
            let frames = index.as_deref().and_then(frames_of);
            frames.map_or((0, 0), |frames| start_of(&frames, offset))
        }
        _ => (0, 0),
    };
    Ok(Some(OpenedNar {
        file: file.reader(file_offset),
        compression: nar.compression,
        position,
    }))
}

/// Returns the offset in the file, and in the NAR, of the frame that has the byte of the NAR at
/// `offset`. `frames`: the compressed length and the content length of each frame.
fn start_of(frames: &[(u64, u64)], offset: u64) -> (u64, u64) {
    let (mut in_file, mut in_nar) = (0_u64, 0_u64);
    for (len, content_len) in frames {
        let next = in_nar.saturating_add(*content_len);
        if next > offset {
            break;
        }
        (in_file, in_nar) = (in_file.saturating_add(*len), next);
    }
    (in_file, in_nar)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nar_is_decompressed_from_the_frame_with_the_offset() {
        // A frame, a skippable frame, two frames.
        let frames = [(100, 1000), (20, 0), (50, 500), (60, 600)];
        for (offset, expected) in [
            (0, (0, 0)),
            (999, (0, 0)),
            (1000, (120, 1000)),
            (1499, (120, 1000)),
            (1500, (170, 1500)),
            (2100, (230, 2100)),
        ] {
            assert_eq!(start_of(&frames, offset), expected, "{offset}");
        }
    }
}
