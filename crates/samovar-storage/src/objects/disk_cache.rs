//! [`DiskCache`]: local copies of objects of the bucket.
//!
//! The copy of the object `nar/x` is the file `cache/nar/x` of the local directory. A file gets
//! this name when it is complete. It is not synced: after another boot, all copies are moved to
//! `cache/unchecked/nar/`. There, a copy is hashed before it is used, and moved back. The least
//! recently used copies are removed when all together exceed the maximum length; a removed file
//! that is being read stays readable.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use samovar_nix::NarHash;
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

use super::pack;
use crate::regular::open_regular;

/// Directory of the copies in the local directory.
const CACHE: &str = "cache";

/// Directory of the copies that are hashed before they are used.
const UNCHECKED: &str = "cache/unchecked";

/// File with the ID of the boot in which the copies outside of [`UNCHECKED`] were made or hashed.
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
        let (checked, unchecked) = (
            root.join(CACHE).join(PREFIX),
            root.join(UNCHECKED).join(PREFIX),
        );
        fs::create_dir_all(&checked)?;
        fs::create_dir_all(&unchecked)?;
        let boot_id = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let known = fs::read(root.join(BOOT_ID)).unwrap_or_default();
        if boot_id.is_empty() || boot_id != known {
            for (_used_at, name, _len) in files_in(&checked)? {
                match fs::rename(checked.join(&name), unchecked.join(&name)) {
                    // Another process, which uses the same directory, has removed or moved it.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    moved => moved?,
                }
            }
        }
        // After the files were moved: if this process is killed meanwhile, the next one moves the
        // rest.
        fs::write(root.join(BOOT_ID), boot_id)?;
        let mut found = Vec::new();
        for (directory, is_right) in [(&unchecked, false), (&checked, true)] {
            let files = files_in(directory)?.into_iter();
            found.extend(files.map(|(used_at, name, len)| (used_at, is_right, name, len)));
        }
        found.sort_unstable();
        let cache = Self {
            root: root.to_owned(),
            len_max,
            state: Mutex::default(),
        };
        for (_used_at, is_right, name, len) in found {
            cache.add(&format!("{PREFIX}/{name}"), len, is_right);
        }
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
        let file = open_regular(&self.path(key, is_right)).ok();
        let file = file.filter(|file| file.metadata().is_ok_and(|file| file.len() == len));
        let file = file.filter(|file| is_right || hash_of(file).is_ok_and(|it| it == *sha256));
        match &file {
            Some(file) => {
                // Ignore errors: the order of uses after a restart is a little older.
                file.set_modified(SystemTime::now()).ok();
                if !is_right {
                    self.set_right(key);
                }
            }
            None => self.remove(key),
        }
        file
    }

    /// Moves a copy that was hashed to the others.
    fn set_right(&self, key: &str) {
        let moved = fs::rename(self.path(key, false), self.path(key, true));
        // Otherwise it is hashed again, or another thread has moved it.
        if moved.is_ok()
            && let Some(copy) = self.state().copies.get_mut(key)
        {
            copy.is_right = true;
        }
    }

    /// Makes a complete file the copy of an object, if there is room for it. Otherwise the file is
    /// removed when it is not read any more.
    pub(super) fn insert(&self, key: &str, file: NamedTempFile, len: u64) -> io::Result<()> {
        if !self.is_cached(key) || len > self.len_max {
            return Ok(());
        }
        file.persist(self.path(key, true))
            .map_err(|error| error.error)?;
        self.add(key, len, true);
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
        fs::rename(file, self.path(key, true))?;
        self.add(key, len, true);
        self.evict(0);
        Ok(())
    }

    /// Records a copy that has its name. Removes the file of a copy that it replaces.
    fn add(&self, key: &str, len: u64, is_right: bool) {
        let replaced = self.state().insert(key.to_owned(), len, is_right);
        if let Some(replaced) = replaced.filter(|it| it.is_right != is_right) {
            fs::remove_file(self.path(key, replaced.is_right)).ok();
        }
    }

    /// Removes copies so that `len` more bytes have room.
    pub(super) fn evict(&self, len: u64) {
        let evicted = self.state().evict(self.len_max.saturating_sub(len));
        for (key, copy) in evicted {
            // A file that stays is found when the cache is opened again.
            fs::remove_file(self.path(&key, copy.is_right)).ok();
        }
    }

    /// Removes the copy of an object, if there is one.
    pub(super) fn remove(&self, key: &str) {
        let removed = self.state().remove(key);
        if let Some(copy) = removed {
            fs::remove_file(self.path(key, copy.is_right)).ok();
        }
    }

    /// Returns the keys of the copies whose bytes are not those of their objects. `removes`:
    /// removes these copies. A copy that is not hashed before its use may have been changed by
    /// another program, or by a fault of the disk.
    pub(super) fn wrong(&self, removes: bool) -> io::Result<Vec<String>> {
        let mut wrong = Vec::new();
        for (_used_at, name, _len) in files_in(&self.root.join(CACHE).join(PREFIX))? {
            let key = format!("{PREFIX}/{name}");
            let path = self.path(&key, true);
            // A file that cannot be opened was removed meanwhile.
            let (Some(sha256), Ok(file)) = (sha256_of(&key), open_regular(&path)) else {
                continue;
            };
            if hash_of(&file)? == sha256 {
                continue;
            }
            if removes {
                fs::remove_file(&path)?;
                self.remove(&key);
            }
            wrong.push(key);
        }
        Ok(wrong)
    }

    /// Returns whether an object of this key may have a copy: it is directly below `nar/`.
    fn is_cached(&self, key: &str) -> bool {
        let name = key
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.strip_prefix('/'));
        name.is_some_and(|name| !name.is_empty() && !name.contains('/'))
    }

    fn path(&self, key: &str, is_right: bool) -> PathBuf {
        let directory = if is_right { CACHE } else { UNCHECKED };
        self.root.join(directory).join(key)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds a copy. Returns the one that it replaces.
    fn insert(&mut self, key: String, len: u64, is_right: bool) -> Option<Copy> {
        let replaced = self.remove(&key);
        self.clock += 1;
        self.used_len += len;
        let used = self.clock;
        let copy = Copy {
            len,
            used,
            is_right,
        };
        self.copies.insert(key, copy);
        replaced
    }

    fn remove(&mut self, key: &str) -> Option<Copy> {
        let removed = self.copies.remove(key);
        self.used_len -= removed.as_ref().map_or(0, |copy| copy.len);
        removed
    }

    /// Forgets the least recently used copies until the others have at most this length. Returns
    /// the forgotten ones with their keys.
    fn evict(&mut self, len_max: u64) -> Vec<(String, Copy)> {
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
            self.eviction_count += 1;
            let copy = self.remove(&key);
            evicted.extend(copy.map(|copy| (key, copy)));
        }
        evicted
    }
}

/// Returns time of the last use, name and length of each file in a directory.
fn files_in(directory: &Path) -> io::Result<Vec<(SystemTime, String, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // A file without them was removed meanwhile.
        if let Some(name) = entry.file_name().to_str()
            && let Ok(file) = entry.metadata()
            && file.is_file()
        {
            let used_at = file.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            found.push((used_at, name.to_owned(), file.len()));
        }
    }
    Ok(found)
}

/// Returns the SHA-256 of the object with this key, which states it. `None`: it states none.
fn sha256_of(key: &str) -> Option<[u8; 32]> {
    if let Some(sha256) = pack::sha256_of(key) {
        return Some(sha256);
    }
    let name = key.strip_prefix(PREFIX)?.strip_prefix('/')?;
    let (hash, _rest) = name.split_once('.')?;
    let hash = NarHash::parse_nixbase32(hash.as_bytes()).ok()?;
    Some(*hash.as_bytes())
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
        assert!(!dir.path().join("cache/unchecked/nar/wrong").exists());
        // In the same boot, copies are right.
        let cache = DiskCache::open(dir.path(), 100).unwrap();
        assert!(cache.find("nar/right", 5, &[0; 32]).is_some());
    }

    #[test]
    fn a_copy_that_was_not_hashed_is_hashed_after_another_start_in_the_same_boot() {
        let dir = tempfile::tempdir().unwrap();
        copy(
            &DiskCache::open(dir.path(), 100).unwrap(),
            "nar/a",
            b"12345",
        );
        fs::write(dir.path().join("cache/nar/a"), "12340").unwrap();
        fs::write(dir.path().join(BOOT_ID), "another\n").unwrap();
        drop(DiskCache::open(dir.path(), 100).unwrap());
        let cache = DiskCache::open(dir.path(), 100).unwrap();
        assert!(cache.find("nar/a", 5, &sha256(b"12345")).is_none());
        assert_eq!(cache.counts().len, 0);
    }
}
