//! Descriptors of SQLite's files that must not be closed at the wrong moment.
//!
//! POSIX record locks belong to the process: closing *any* descriptor of a file drops all locks
//! that the process holds on it, those of SQLite's connections included. A connection without its
//! lock reads on, while the last writer to leave removes the WAL under it; from then on it answers
//! from the past. So descriptors of our own are counted for the whole process, one for each file,
//! and must outlive every connection to that file: hold a [`HeldFile`] beside the connections and
//! drop it after them.
//!
//! # Source
//!
//! "How To Corrupt An SQLite Database File", section 2.2.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static HELD: Mutex<BTreeMap<Key, Held>> = Mutex::new(BTreeMap::new());

/// Device and inode.
type Key = (u64, u64);

struct Held {
    file: Arc<File>,
    /// Descriptors of the same file that a race opened; closing them early would be the very harm.
    others: Vec<File>,
    holder_count: usize,
}

/// One holder of a descriptor that is shared in the whole process.
#[derive(Debug)]
pub(crate) struct HeldFile {
    key: Key,
    /// Present until the moment of dropping.
    file: Option<Arc<File>>,
}

impl HeldFile {
    /// Opens a file for reading, or joins those who have it open.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut held = held();
        let metadata = std::fs::metadata(path)?;
        let key = (metadata.dev(), metadata.ino());
        if let Some(joined) = join(&mut held, key) {
            return Ok(joined);
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let key = (metadata.dev(), metadata.ino());
        if let Some(joined) = join(&mut held, key) {
            if let Some(entry) = held.get_mut(&key) {
                entry.others.push(file);
            }
            return Ok(joined);
        }
        let file = Arc::new(file);
        held.insert(
            key,
            Held {
                file: Arc::clone(&file),
                others: Vec::new(),
                holder_count: 1,
            },
        );
        Ok(Self {
            key,
            file: Some(file),
        })
    }

    /// The file.
    pub(crate) fn get(&self) -> Option<&File> {
        self.file.as_deref()
    }

    /// Device and inode.
    pub(crate) fn key(&self) -> (u64, u64) {
        self.key
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        let mut held = held();
        // Ours first, so that the entry's is the last one and is closed while the map is locked:
        // nobody can open the file, and connections to it, between the decision and the close.
        self.file = None;
        if let Some(entry) = held.get_mut(&self.key) {
            entry.holder_count -= 1;
            if entry.holder_count == 0 {
                held.remove(&self.key);
            }
        }
    }
}

fn join(held: &mut BTreeMap<Key, Held>, key: Key) -> Option<HeldFile> {
    let entry = held.get_mut(&key)?;
    entry.holder_count += 1;
    Some(HeldFile {
        key,
        file: Some(Arc::clone(&entry.file)),
    })
}

fn held() -> MutexGuard<'static, BTreeMap<Key, Held>> {
    // No holder panics with the map half changed.
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_descriptor_for_all_holders() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "x").unwrap();
        let first = HeldFile::open(&path).unwrap();
        let second = HeldFile::open(&path).unwrap();
        assert!(Arc::ptr_eq(
            first.file.as_ref().unwrap(),
            second.file.as_ref().unwrap()
        ));
        let key = first.key();
        drop(first);
        assert!(held().contains_key(&key));
        drop(second);
        assert!(!held().contains_key(&key));
    }
}
