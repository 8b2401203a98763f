//! Keeps paths of upstream caches.
//!
//! The storage has a separate cache for the paths of each upstream, named
//! [`upstream:NAME`](cache_name), to which no client uploads. A path may be kept there without its
//! references: a reference that is not kept is marked as
//! [elsewhere](crate::metadata::NewReference::is_elsewhere). If the cache exceeds its retention
//! size, the collector deletes its least recently used paths, except those in the closure of an
//! uploaded path.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use samovar_nix::HashPart;
use samovar_nix::narinfo::NarInfo;
use samovar_protocol::names::FileName;
use samovar_text::human;

use crate::error::StorageError;
use crate::gc::Retention;
use crate::layout::TMP;
use crate::metadata::{NewNar, SizeLimit, StoredPath, limits, nars, paths};
use crate::objects::{NarFile, NewObject, Space};
use crate::storage::arriving::Arriving;
use crate::storage::nar::{NewFile, object_key, store};
use crate::storage::{StoredCache, narinfo};
use crate::verify::Verified;

pub use crate::layout::{cache_name, is_of_upstream};

/// Free space on the disk below which nothing is kept, in bytes: it is left for uploads. On a small
/// disk, the size of the disk divided by [`FREE_SHARE`].
const FREE_MIN: u64 = 10 << 30;

/// See [`FREE_MIN`].
const FREE_SHARE: u64 = 20;

/// Returns the retention of kept paths. `size`: maximum total length of their files, in bytes;
/// `None`: no limit. The collector leaves room for new paths.
#[must_use]
pub fn retention(size: Option<u64>) -> Retention {
    Retention {
        size: size.map(|size| size / 10 * 9),
        ..Retention::default()
    }
}

/// A NAR file that is being received from an upstream and will be kept. Dropping it before
/// [`finish`](Self::finish) removes the file.
#[derive(Debug)]
pub struct Keeping {
    stored: StoredCache,
    object: NewObject,
    /// The same file, for readers.
    file: Arc<File>,
    arriving: Arriving,
}

/// Reason why a path of an upstream is not kept. `Display` prints a fragment for messages.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotKept {
    /// The kept paths have their maximum total length. The collector soon makes room.
    #[error("keep-size is used up")]
    Size,
    /// The disk has less free space than uploads need.
    #[error("the disk of the storage has only {} free", human(*.0))]
    Disk(u64),
    /// The disk hangs.
    #[error("the disk of the storage hangs")]
    Hangs,
    /// The path or its file was deleted meanwhile.
    #[error("it was deleted meanwhile")]
    Deleted,
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Whether a NAR file would be kept now. `file_size`: its length in bytes, if it is known.
///
/// # Errors
///
/// Any [`NotKept`].
pub fn check(stored: &StoredCache, file_size: Option<u64>) -> Result<(), NotKept> {
    let arriving = stored.storage.arriving.lens(stored.id);
    check_room(stored, file_size.unwrap_or(1), arriving)
}

/// Begins to keep a NAR file. `len_max`: its maximum length, in bytes. `is_needed`: whether an
/// uploaded path needs the path, which is then kept whatever the size of the kept paths is.
///
/// # Errors
///
/// Any [`NotKept`].
pub fn begin(stored: &StoredCache, len_max: u64, is_needed: bool) -> Result<Keeping, NotKept> {
    let mut stored = stored.clone();
    if is_needed {
        stored.quota = None;
    }
    let storage = &*stored.storage;
    let check = |arriving| check_room(&stored, len_max, arriving);
    let arriving = storage.arriving.count(stored.id, len_max, check)?;
    let object = storage.objects.create()?;
    let file = object
        .file()
        .map_err(|error| StorageError::file("cannot open a file in", TMP, error))?;
    Ok(Keeping {
        object,
        file: Arc::new(file),
        arriving,
        stored,
    })
}

/// Checks whether a file of this length may be kept beside those that arrive, whose total lengths
/// are given for this cache and for all.
fn check_room(stored: &StoredCache, len: u64, (of_cache, all): (u64, u64)) -> Result<(), NotKept> {
    if stored.disk_hangs() {
        return Err(NotKept::Hangs);
    }
    check_size(stored, of_cache.saturating_add(len))?;
    let Some(Space { free, total }) = stored.storage.objects.space()? else {
        return Ok(());
    };
    let left = FREE_MIN.min(total / FREE_SHARE);
    match free < left.saturating_add(len).saturating_add(all) {
        true => Err(NotKept::Disk(free)),
        false => Ok(()),
    }
}

/// Checks the total length of files, as the collector counts it.
fn check_size(stored: &StoredCache, len: u64) -> Result<(), NotKept> {
    match stored.quota {
        Some(max) if file_bytes(stored)?.saturating_add(len) > max => {
            stored.storage.is_over_quota.store(true, Ordering::Relaxed);
            Err(NotKept::Size)
        }
        _ => Ok(()),
    }
}

fn file_bytes(stored: &StoredCache) -> Result<u64, StorageError> {
    limits::file_bytes(&stored.storage.metadata, stored.id)
}

/// Returns the hash parts of the paths to which uploaded paths of a cache refer and that it lacks.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn outer_references(uploads: &StoredCache) -> Result<Vec<HashPart>, StorageError> {
    paths::outer_references(&uploads.storage.metadata, uploads.id)
}

/// Opens the NAR file of a kept path. Returns `None` if it is missing or has a wrong length; then
/// it is recorded as lost.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn open(stored: &StoredCache, path: &StoredPath) -> Result<Option<NarFile>, StorageError> {
    stored.storage.open_whole(&path.nar)
}

impl Keeping {
    /// Returns the file, from which what was written can be read.
    #[must_use]
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Makes the file durable and publishes the path. The file has passed verification against
    /// `info`, which is trusted.
    ///
    /// # Errors
    ///
    /// Any [`NotKept`].
    pub fn finish(self, verified: Verified, info: NarInfo) -> Result<(), NotKept> {
        let Self {
            stored,
            mut object,
            arriving,
            ..
        } = self;
        object.set_sha256(verified.file_hash);
        let storage = &*stored.storage;
        check_size(&stored, verified.file_size)?;
        let name = FileName::new(verified.file_hash, verified.compression);
        let (key, is_stored) = object_key(&storage.metadata, &name)?;
        let new = NewNar::new(verified, key, is_stored);
        let file = NewFile {
            object,
            token: None,
            in_flight: None,
        };
        store(storage, new, file)?;
        let nar_id = nars::row(&storage.metadata, name.file_hash())?.ok_or(NotKept::Deleted)?;
        let mut path = narinfo::of_narinfo(&stored, nar_id, info, &|_| true);
        // Only files count, and were counted above.
        path.limit = SizeLimit {
            quota: None,
            extra_max: u64::MAX,
        };
        let published = narinfo::publish(&stored, Arc::new(vec![path]), &|_| true)?;
        drop(arriving);
        if let Some(quota) = stored.quota
            && file_bytes(&stored)? > quota - quota / 20
        {
            storage.is_over_quota.store(true, Ordering::Relaxed);
        }
        match published.first() {
            Some(published) if published.is_success() => Ok(()),
            _ => Err(NotKept::Deleted),
        }
    }
}

impl Write for Keeping {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.object.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.object.flush()
    }
}
