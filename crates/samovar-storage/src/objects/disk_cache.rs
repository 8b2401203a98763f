//! [`DiskCache`]: local copies of objects of the bucket.
//!
//! The copy of the object `nar/x` is the file `cache/nar/x` of the local directory. A file gets
//! this name when it is complete. It is not synced: after another boot, a copy is hashed before it
//! is used. The least recently used copies are removed when all together exceed the maximum length;
//! a removed file that is being read stays readable.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

use crate::regular::open_regular;

/// Directory of the copies in the local directory.
const CACHE: &str = "cache";

/// File with the ID of the boot in which the copies were made.
const BOOT_ID: &str = "cache/boot-id";

/// Length of the buffer for hashing a copy, in bytes.
const BUFFER_LEN: usize = 256 << 10;

/// The only prefix of keys of cached objects.
const PREFIX: &str = "nar";

/// The state of the disk cache. The counters begin at the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCacheCounts {
    /// Number of copies.
    pub count: u64,
    /// Total length of the copies, in bytes.
    pub len: u64,
    /// Maximum total length, in bytes.
    pub len_max: u64,
    /// Number of files that were read from a copy.
    pub hit_count: u64,
    /// Number of files that had no copy when they were read.
    pub miss_count: u64,
    /// Number of copies that were removed for room.
    pub eviction_count: u64,
}

/// Local copies of objects.
#[derive(Debug)]
pub(super) struct DiskCache {
    root: PathBuf,
    /// Maximum total length of the copies, in bytes.
    len_max: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    copies: HashMap<String, Copy>,
    /// Total length of the copies, in bytes.
    used_len: u64,
    /// Number of uses so far.
    clock: u64,
    hit_count: u64,
    miss_count: u64,
    eviction_count: u64,
}

#[derive(Debug)]
struct Copy {
    len: u64,
    /// Value of [`State::clock`] at the last use.
    used: u64,
    /// Whether the copy was made in this boot, or hashed since.
    is_right: bool,
}

impl DiskCache {
    /// Opens the copies in a local directory.
    pub(super) fn open(root: &Path, len_max: u64) -> io::Result<Self> {
        let directory = root.join(CACHE).join(PREFIX);
        fs::create_dir_all(&directory)?;
        let boot_id = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let known = fs::read(root.join(BOOT_ID)).unwrap_or_default();
        let is_right = !boot_id.is_empty() && boot_id == known;
        let mut found = Vec::new();
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let file = entry.metadata()?;
            if let Some(name) = entry.file_name().to_str()
                && file.is_file()
            {
                let used_at = file.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                found.push((used_at, format!("{PREFIX}/{name}"), file.len()));
            }
        }
        fs::write(root.join(BOOT_ID), boot_id)?;
        found.sort_unstable();
        let mut state = State::default();
        for (_used_at, key, len) in found {
            state.insert(key, len, is_right);
        }
        let cache = Self {
            root: root.to_owned(),
            len_max,
            state: Mutex::new(state),
        };
        cache.evict(0);
        Ok(cache)
    }

    pub(super) fn counts(&self) -> DiskCacheCounts {
        let state = self.state();
        DiskCacheCounts {
            count: state.copies.len() as u64,
            len: state.used_len,
            len_max: self.len_max,
            hit_count: state.hit_count,
            miss_count: state.miss_count,
            eviction_count: state.eviction_count,
        }
    }

    /// Opens the copy of an object with this length and SHA-256. Returns `None` if there is none.
    pub(super) fn find(&self, key: &str, len: u64, sha256: &[u8; 32]) -> Option<File> {
        let found = self.open_copy(key, len, sha256);
        let mut state = self.state();
        match found {
            Some(_) => state.hit_count += 1,
            None => state.miss_count += 1,
        }
        found
    }

    /// Returns the length of the copy of an object, or `None` if there is none.
    pub(super) fn len_of(&self, key: &str) -> Option<u64> {
        Some(self.state().copies.get(key)?.len)
    }

    fn open_copy(&self, key: &str, len: u64, sha256: &[u8; 32]) -> Option<File> {
        let is_right = {
            let mut state = self.state();
            state.clock += 1;
            let used = state.clock;
            let copy = state.copies.get_mut(key)?;
            copy.used = used;
            copy.is_right
        };
        let file = open_regular(&self.path(key)).ok();
        let file = file.filter(|file| file.metadata().is_ok_and(|file| file.len() == len));
        let file = file.filter(|file| is_right || hash_of(file).is_ok_and(|it| it == *sha256));
        match &file {
            Some(file) => {
                // Ignore errors: the order of uses after a restart is a little older.
                file.set_modified(SystemTime::now()).ok();
                if let Some(copy) = self.state().copies.get_mut(key) {
                    copy.is_right = true;
                }
            }
            None => self.remove(key),
        }
        file
    }

    /// Makes a complete file the copy of an object, if there is room for it. Otherwise the file is
    /// removed when it is not read any more.
    pub(super) fn insert(&self, key: &str, file: NamedTempFile, len: u64) -> io::Result<()> {
        if !self.is_cached(key) || len > self.len_max {
            return Ok(());
        }
        file.persist(self.path(key)).map_err(|error| error.error)?;
        self.state().insert(key.to_owned(), len, true);
        self.evict(0);
        Ok(())
    }

    /// Makes a complete file in the local directory the copy of an object, as
    /// [`insert`](Self::insert).
    pub(super) fn insert_file(&self, key: &str, file: &Path) -> io::Result<()> {
        let len = fs::metadata(file)?.len();
        if !self.is_cached(key) || len > self.len_max {
            return fs::remove_file(file);
        }
        fs::rename(file, self.path(key))?;
        self.state().insert(key.to_owned(), len, true);
        self.evict(0);
        Ok(())
    }

    /// Removes copies so that `len` more bytes have room.
    pub(super) fn evict(&self, len: u64) {
        let evicted = self.state().evict(self.len_max.saturating_sub(len));
        for key in evicted {
            // A file that stays is found when the cache is opened again.
            fs::remove_file(self.path(&key)).ok();
        }
    }

    /// Removes the copy of an object, if there is one.
    pub(super) fn remove(&self, key: &str) {
        if self.state().remove(key) {
            fs::remove_file(self.path(key)).ok();
        }
    }

    /// Returns whether an object of this key may have a copy: it is directly below `nar/`.
    fn is_cached(&self, key: &str) -> bool {
        let name = key
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.strip_prefix('/'));
        name.is_some_and(|name| !name.is_empty() && !name.contains('/'))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.root.join(CACHE).join(key)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn insert(&mut self, key: String, len: u64, is_right: bool) {
        self.remove(&key);
        self.clock += 1;
        self.used_len += len;
        let used = self.clock;
        let copy = Copy {
            len,
            used,
            is_right,
        };
        self.copies.insert(key, copy);
    }

    fn remove(&mut self, key: &str) -> bool {
        let removed = self.copies.remove(key);
        self.used_len -= removed.as_ref().map_or(0, |copy| copy.len);
        removed.is_some()
    }

    /// Forgets the least recently used copies until the others have at most this length. Returns
    /// the keys of the forgotten ones.
    fn evict(&mut self, len_max: u64) -> Vec<String> {
        if self.used_len <= len_max {
            return Vec::new();
        }
        let copies = self.copies.iter();
        let mut by_use: Vec<(u64, String)> =
            copies.map(|(key, copy)| (copy.used, key.clone())).collect();
        by_use.sort_unstable();
        let mut evicted = Vec::new();
        for (_used, key) in by_use {
            if self.used_len <= len_max {
                break;
            }
            self.remove(&key);
            self.eviction_count += 1;
            evicted.push(key);
        }
        evicted
    }
}

fn hash_of(mut file: &File) -> io::Result<[u8; 32]> {
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; BUFFER_LEN]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().into()),
            len => hasher.update(&buffer[..len]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(cache: &DiskCache, key: &str, bytes: &[u8]) {
        let file = NamedTempFile::new_in(&cache.root).unwrap();
        fs::write(file.path(), bytes).unwrap();
        cache.insert(key, file, bytes.len() as u64).unwrap();
    }

    fn sha256(bytes: &[u8]) -> [u8; 32] {
        Sha256::digest(bytes).into()
    }

    #[test]
    fn the_least_recently_used_copies_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCache::open(dir.path(), 10).unwrap();
        let has = |key: &str| cache.find(key, 5, &[0; 32]).is_some();
        copy(&cache, "nar/a", b"12345");
        copy(&cache, "nar/b", b"12345");
        assert!(has("nar/a") && has("nar/b") && has("nar/a"));
        copy(&cache, "nar/c", b"12345");
        assert!(has("nar/a") && !has("nar/b") && has("nar/c"));
        copy(&cache, "nar/long", b"12345678901");
        copy(&cache, "log/x", b"1");
        assert!(has("nar/a") && has("nar/c"));
        assert!(cache.find("nar/a", 6, &[0; 32]).is_none(), "wrong length");
        assert!(!has("nar/a"));
    }

    #[test]
    fn a_copy_of_an_earlier_boot_is_hashed_before_it_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCache::open(dir.path(), 100).unwrap();
        copy(&cache, "nar/right", b"12345");
        copy(&cache, "nar/wrong", b"12345");
        drop(cache);
        fs::write(dir.path().join("cache/nar/wrong"), "12340").unwrap();
        fs::write(dir.path().join(BOOT_ID), "another\n").unwrap();
        let cache = DiskCache::open(dir.path(), 100).unwrap();
        assert!(cache.find("nar/right", 5, &sha256(b"12345")).is_some());
        assert!(cache.find("nar/wrong", 5, &sha256(b"12345")).is_none());
        assert!(!dir.path().join("cache/nar/wrong").exists());
        // In the same boot, copies are right.
        let cache = DiskCache::open(dir.path(), 100).unwrap();
        assert!(cache.find("nar/right", 5, &[0; 32]).is_some());
    }
}
