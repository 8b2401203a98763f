//! The mirrored cache: its narinfos, realisations and logs are also files in the storage directory,
//! so that the directory is a plain binary cache.
//!
//! Readers of the directory, and of the mirrored cache, may not be allowed to read other caches. So
//! these files are written while `Storage::mirror` is held, and another cache becomes the
//! mirrored one while no thread holds this lock. During a zero-downtime upgrade, the old process
//! does not write these files, because the configuration of the new process may have another
//! mirrored cache.

use std::collections::HashSet;
use std::mem;

use samovar_nix::HashPart;

use crate::error::StorageError;
use crate::layout::{LOGS, log_prefix, narinfo_key};
use crate::metadata::{CacheId, Database, caches, extras, paths};
use crate::mirror::Render;
use crate::objects::Objects;
use crate::storage::{Storage, StoredCache};

/// Number of missing narinfos that are written together.
const REPAIR_COUNT: usize = 256;

/// Which cache this process mirrors.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    /// `None` if no cache was made the mirrored one.
    cache: Option<CacheId>,
    /// Whether this process does not write the files: another one does, or a change has failed.
    is_paused: bool,
    /// Whether the background thread makes the cache the mirrored one again, and ends the pause.
    is_due: bool,
}

impl Mirror {
    /// Returns whether this cache is the mirrored one.
    pub(crate) fn is_of(&self, cache: CacheId) -> bool {
        self.cache == Some(cache)
    }

    /// Returns whether this process writes the files of this cache.
    pub(crate) fn writes(&self, cache: CacheId) -> bool {
        self.is_of(cache) && !self.is_paused
    }

    pub(super) fn pause(&mut self) {
        (self.is_paused, self.is_due) = (true, false);
    }

    /// Lets the background thread end the pause.
    pub(super) fn make_due(&mut self) {
        self.is_due = true;
    }
}

/// Makes the directory mirror the mirrored cache of this process again, if that is due.
pub(crate) fn resume(storage: &Storage) {
    let mut mirror = storage.mirror_mut();
    if !mirror.is_due {
        return;
    }
    if mirror
        .cache
        .map_or(Ok(()), |cache| {
            change(&storage.metadata, &storage.objects, cache)
        })
        .is_ok()
    {
        (mirror.is_paused, mirror.is_due) = (false, false);
    } else {
        storage.check_mirror();
    }
}

/// Makes the directory mirror a cache. First removes what the directory has of the cache that was
/// mirrored before; an import of the directory would add its paths to the new one.
///
/// If the process is killed, the next call completes the work.
fn change(metadata: &Database, objects: &Objects, cache: CacheId) -> Result<(), StorageError> {
    let mirrored = caches::mirrored(metadata)?;
    let mirrored = mirrored.map(|mirrored| mirrored.id);
    if let Some(before) = mirrored.filter(|before| *before != cache) {
        let mut of_before = paths::hash_parts(metadata)?;
        of_before.retain(|(of, _)| *of == before);
        let narinfos = of_before
            .iter()
            .map(|(_, hash_part)| narinfo_key(*hash_part));
        objects.remove_all(&narinfos.collect::<Vec<_>>())?;
        objects.remove_all(&extras::realisation_keys(metadata, before)?)?;
        move_logs(objects, LOGS, &log_prefix(before.0))?;
    }
    caches::set_mirrored(metadata, cache)?;
    move_logs(objects, &log_prefix(cache.0), LOGS)
}

fn move_logs(objects: &Objects, from: &str, to: &str) -> Result<(), StorageError> {
    let mut names = Vec::new();
    let mut visit = |key: &str| {
        names.extend(key.strip_prefix(from).map(str::to_owned));
        Ok(())
    };
    objects.list(from, &mut visit)?;
    let mut names = names.iter();
    names.try_for_each(|name| objects.rename(&format!("{from}{name}"), &format!("{to}{name}")))
}

/// Makes this cache the mirrored one, instead of the present one. Does nothing if small files share
/// objects of a bucket, which then is no plain binary cache.
///
/// # Errors
///
/// Any [`StorageError`]. The present cache then stays the mirrored one; the background thread
/// completes its files.
pub fn become_mirrored(stored: &StoredCache) -> Result<(), StorageError> {
    let storage = &*stored.storage;
    if !storage.objects.can_mirror() {
        // The backup has the narinfos of all caches that are not mirrored.
        return caches::clear_mirrored(&storage.metadata);
    }
    let mut mirror = storage.mirror_mut();
    let changed = change(&storage.metadata, &storage.objects, stored.id);
    if changed.is_ok() {
        mirror.cache = Some(stored.id);
    } else {
        // The directory may have files of both caches. The process of an upgrade ends its pause.
        mirror.is_due |= !mirror.is_paused;
        mirror.is_paused = true;
        stored.storage.check_mirror();
    }
    changed
}

/// Writes the narinfos that the directory lacks because an earlier process was killed after
/// publishing them, or because they could not be written. Does nothing if the cache is not
/// mirrored.
///
/// # Errors
///
/// The first [`StorageError`]; the other narinfos are written. The repair will be repeated.
pub fn repair(stored: &StoredCache, render: &Render<'_>) -> Result<(), StorageError> {
    if !stored.storage.mirror().writes(stored.id) {
        return Ok(());
    }
    let objects = &stored.storage.objects;
    // In a bucket, one request lists a thousand objects.
    let listed = match objects.bucket() {
        Some(_) => Some(listed(objects)?),
        None => None,
    };
    let (mut missing, mut failed) = (Vec::new(), Ok(()));
    for (cache, hash_part) in paths::hash_parts(&stored.storage.metadata)? {
        if cache != stored.id {
            continue;
        }
        let is_there = match &listed {
            Some(listed) => listed.contains(&hash_part),
            None => {
                let state = objects.state(&narinfo_key(hash_part))?;
                state.is_some_and(|state| state.len > 0)
            }
        };
        if !is_there {
            missing.push(hash_part);
        }
        if missing.len() >= REPAIR_COUNT {
            failed = failed.and(write(stored, &mem::take(&mut missing), render));
        }
    }
    failed = failed.and(write(stored, &missing, render));
    if failed.is_err() {
        stored.storage.check_mirror();
    }
    failed
}

/// Returns the hash parts of the narinfos beside the objects.
fn listed(objects: &Objects) -> Result<HashSet<HashPart>, StorageError> {
    let mut found = HashSet::new();
    objects.list_states("", &mut |key, state| {
        let hash_part: Option<HashPart> = key
            .strip_suffix(".narinfo")
            .and_then(|text| text.parse().ok());
        found.extend(hash_part.filter(|_| state.len > 0));
        Ok(())
    })?;
    Ok(found)
}

/// Writes the narinfos of published paths beside the objects, if the cache is mirrored. The paths
/// are published whether or not that succeeds: the background thread tries again, and reports the
/// error if it persists.
pub(crate) fn follow(stored: &StoredCache, hash_parts: &[HashPart], render: &Render<'_>) {
    if write(stored, hash_parts, render).is_err() {
        stored.storage.check_mirror();
    }
}

/// Writes the narinfos of paths beside the objects, if the cache is mirrored.
fn write(
    stored: &StoredCache,
    hash_parts: &[HashPart],
    render: &Render<'_>,
) -> Result<(), StorageError> {
    let mirror = stored.storage.mirror();
    if !mirror.writes(stored.id) {
        return Ok(());
    }
    let mut narinfos = Vec::with_capacity(hash_parts.len());
    for hash_part in hash_parts {
        if let Some(path) = stored.peek(*hash_part)? {
            narinfos.push((narinfo_key(*hash_part), render(&path)));
        }
    }
    stored.storage.objects.write_mirrors(&narinfos)
}
