//! Process-wide shared descriptors of SQLite's files.
//!
//! POSIX record locks belong to the process: closing *any* descriptor of a file drops all locks
//! that the process holds on the file, also the locks of SQLite's connections. If a connection has
//! lost its lock, the last writer to exit may remove the WAL while the connection reads;
//! from then on, the connection returns stale data. So this module keeps one descriptor per file
//! for the whole process. The descriptor must outlive every connection to the file: store a
//! [`SharedFile`] beside the connections and drop it after them.
//!
//! # Source
//!
//! "How To Corrupt An SQLite Database File", section 2.2.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::sync::Locked;

static FILES: Mutex<BTreeMap<Key, Entry>> = Mutex::new(BTreeMap::new());

/// Device and inode of a file.
type Key = (u64, u64);

struct Entry {
    file: Arc<File>,
    /// Further descriptors of the file, opened because the path changed between `stat` and `open`.
    /// Closing one of them early would drop the locks of SQLite's connections.
    others: Vec<File>,
    user_count: usize,
}

/// A reference to the shared descriptor of a file.
#[derive(Debug)]
pub(crate) struct SharedFile {
    key: Key,
    /// The shared descriptor; `None` only during drop.
    file: Option<Arc<File>>,
}

impl SharedFile {
    /// Opens a file for reading, or shares the descriptor that this process already has.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut files = FILES.locked();
        let metadata = std::fs::metadata(path)?;
        let key = (metadata.dev(), metadata.ino());
        if let Some(joined) = join(&mut files, key) {
            return Ok(joined);
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        let key = (metadata.dev(), metadata.ino());
        if let Some(joined) = join(&mut files, key) {
            if let Some(entry) = files.get_mut(&key) {
                entry.others.push(file);
            }
            return Ok(joined);
        }
        let file = Arc::new(file);
        files.insert(
            key,
            Entry {
                file: Arc::clone(&file),
                others: Vec::new(),
                user_count: 1,
            },
        );
        Ok(Self {
            key,
            file: Some(file),
        })
    }

    /// Returns the open file; `None` only during drop.
    pub(crate) fn get(&self) -> Option<&File> {
        self.file.as_deref()
    }

    /// Returns the device and inode of the file.
    pub(crate) fn key(&self) -> (u64, u64) {
        self.key
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        let mut files = FILES.locked();
        // Drop this reference first: the last reference is then in the table of files, which closes
        // the file under the table's lock. So no thread can open the file between the decision to
        // close it and the close.
        self.file = None;
        if let Some(entry) = files.get_mut(&self.key) {
            entry.user_count -= 1;
            if entry.user_count == 0 {
                files.remove(&self.key);
            }
        }
    }
}

fn join(files: &mut BTreeMap<Key, Entry>, key: Key) -> Option<SharedFile> {
    let entry = files.get_mut(&key)?;
    entry.user_count += 1;
    Some(SharedFile {
        key,
        file: Some(Arc::clone(&entry.file)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_descriptor_for_all_holders() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "x").unwrap();
        let first = SharedFile::open(&path).unwrap();
        let second = SharedFile::open(&path).unwrap();
        assert!(Arc::ptr_eq(
            first.file.as_ref().unwrap(),
            second.file.as_ref().unwrap()
        ));
        let key = first.key();
        drop(first);
        assert!(FILES.locked().contains_key(&key));
        drop(second);
        assert!(!FILES.locked().contains_key(&key));
    }
}
