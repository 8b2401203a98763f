//! Files that are being written, and that become durable.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tempfile::NamedTempFile;

use super::Placed;
use super::bucket::InBucket;
use super::directory::{create_directory, sync_directory};
use crate::disk::Disk;
use crate::error::StorageError;
use crate::layout::{PART_PREFIX, TMP};
use crate::{reserve, sys};

/// Number of bytes after which the kernel is told to start writing a file to the disk.
const WRITEBACK_LEN: u64 = 4 << 20;

/// Number of bytes after which an upload checks again that the disk has space.
const CHECK_LEN: u64 = 1 << 20;

/// Number of files from which a group is synced by one `syncfs`, which writes all changed files of
/// the file system, instead of one `fsync` for each file.
const SYNCFS_COUNT_MIN: usize = 64;

/// Maximum number of threads that sync the files of a group.
const SYNC_THREAD_COUNT: usize = 16;

/// An object that is being written, as a file in `.samovar/tmp/`. Dropping it before `publish` or
/// `place` removes it.
#[derive(Debug)]
pub(crate) struct NewObject {
    file: NamedTempFile,
    root: PathBuf,
    disk: Arc<Disk>,
    /// The bucket to which the object is sent. `None`: it stays in the directory.
    sender: Option<Arc<InBucket>>,
    /// SHA-256 of the object, if it is known.
    sha256: Option<[u8; 32]>,
    /// Number of bytes written.
    len: u64,
    /// Number of bytes of which the kernel was told to start writing them to the disk.
    writeback_len: u64,
}

impl NewObject {
    pub(super) fn new(
        file: NamedTempFile,
        root: PathBuf,
        disk: &Arc<Disk>,
        sender: Option<Arc<InBucket>>,
    ) -> Self {
        Self {
            file,
            root,
            disk: Arc::clone(disk),
            sender,
            sha256: None,
            len: 0,
            writeback_len: 0,
        }
    }

    /// Sets the SHA-256 of the whole object, which need not be computed again then.
    pub(crate) fn set_sha256(&mut self, sha256: [u8; 32]) {
        self.sha256 = Some(sha256);
    }

    /// Returns the open file.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.as_file().try_clone()
    }

    /// Starts to write the latest bytes to the disk, so that the sync at the end need not wait for
    /// the whole file.
    fn start_writeback(&mut self) {
        let len = self.len - self.writeback_len;
        sys::start_writeback(&self.file, self.writeback_len, len);
        self.writeback_len = self.len;
    }

    /// Gives the file its name; see [`NewObject::place`]. Also returns the open file.
    fn named(self, key: &str, is_stored: bool) -> Result<(Placed, File), StorageError> {
        let disk = Arc::clone(&self.disk);
        disk.write(|| match &self.sender {
            Some(_) => self.keep(key),
            None => self.rename(key, is_stored),
        })
    }

    /// Keeps the temporary file until it is sent.
    fn keep(self, key: &str) -> Result<(Placed, File), StorageError> {
        let (len, sha256) = (self.len, self.sha256);
        let kept = self.file.keep();
        let (file, pending) =
            kept.map_err(|error| StorageError::file("cannot write", key, error.error))?;
        let placed = Placed {
            key: key.to_owned(),
            pending: Some(pending),
            len,
            sha256,
            awaits_sending: true,
            sent: OnceLock::new(),
        };
        Ok((placed, file))
    }

    fn rename(self, key: &str, is_stored: bool) -> Result<(Placed, File), StorageError> {
        let failed = |error| StorageError::file("cannot write", key, error);
        let path = self.root.join(key);
        match path.parent() {
            // Parts are not durable.
            Some(parent) if key.starts_with(PART_PREFIX) => fs::create_dir_all(parent),
            Some(parent) => create_directory(parent),
            None => Ok(()),
        }
        .map_err(failed)?;
        let len = self.len;
        let placed = |pending| Placed {
            key: key.to_owned(),
            pending,
            len,
            sha256: None,
            awaits_sending: false,
            sent: OnceLock::new(),
        };
        let error = match self.file.persist_noclobber(&path) {
            Ok(file) => return Ok((placed(None), file)),
            Err(error) => error,
        };
        if error.error.kind() != io::ErrorKind::AlreadyExists {
            return Err(failed(error.error));
        }
        if is_stored && fs::metadata(&path).is_ok_and(|file| file.len() == self.len) {
            let kept = error.file.keep();
            let (file, pending) = kept.map_err(|error| failed(error.error))?;
            return Ok((placed(Some(pending)), file));
        }
        // The existing file may be in use, so only a durable one may replace it.
        error.file.as_file().sync_all().map_err(failed)?;
        let persisted = error.file.persist(&path);
        let file = persisted.map_err(|error| failed(error.error))?;
        Ok((placed(None), file))
    }
}

impl Write for NewObject {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.disk.write(|| self.file.write(bytes))?;
        let checked_len = self.len / CHECK_LEN;
        self.len += len as u64;
        if self.len / CHECK_LEN > checked_len {
            reserve::check_room(&self.root)?;
        }
        if self.sender.is_none() && self.len - self.writeback_len >= WRITEBACK_LEN {
            self.start_writeback();
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl NewObject {
    /// Makes the object visible under `key`. Replaces an existing object with that key. The object
    /// becomes durable with [`ObjectGroup::sync`].
    ///
    /// `is_stored`: whether an object with this key and the same contents is durable. Then this
    /// object becomes visible only when it is synced, which takes as long as for a new object: the
    /// time must not tell a client that somebody else has stored the file.
    pub(crate) fn place(self, key: &str, is_stored: bool) -> Result<Placed, StorageError> {
        Ok(self.named(key, is_stored)?.0)
    }

    /// Like [`place`](Self::place), and waits until the contents are on the disk, or in the bucket
    /// unless they are short. The object becomes durable with [`super::Objects::sync_names`].
    pub(crate) fn place_synced(self, key: &str, is_stored: bool) -> Result<Placed, StorageError> {
        let (disk, sender) = (Arc::clone(&self.disk), self.sender.clone());
        let (placed, file) = self.named(key, is_stored)?;
        if let Some(sender) = sender {
            // A small file waits for others that share an object with it.
            sender.send_large(&placed)?;
            return Ok(placed);
        }
        // A journaling file system that syncs the renamed file makes the name durable, too. Syncing
        // the directory then costs nothing.
        disk.flush(|| file.sync_all())
            .map_err(|error| StorageError::file("cannot sync", key, error))?;
        Ok(placed)
    }

    /// Makes the object visible under `key`. In a directory, it is not durable.
    pub(crate) fn place_alone(self, key: &str) -> Result<(), StorageError> {
        match self.sender {
            Some(_) => self.publish(key),
            None => self.place(key, false).map(drop),
        }
    }

    /// Makes the object durable and visible under `key`. Replaces an existing object with that key.
    pub(crate) fn publish(self, key: &str) -> Result<(), StorageError> {
        if let Some(sender) = &self.sender {
            return sender.put_file(key, self.file.as_file(), self.sha256);
        }
        let (root, disk) = (self.root.clone(), Arc::clone(&self.disk));
        let placed = self.place_synced(key, false)?;
        disk.flush(|| sync_names(&root, &[&placed]))
    }
}

fn sync_file(root: &Path, disk: &Disk, placed: &Placed) -> Result<(), StorageError> {
    let Placed { key, pending, .. } = placed;
    let synced = match pending {
        Some(pending) => File::open(pending),
        None => File::open(root.join(key)),
    };
    let synced = synced.and_then(|file| disk.flush(|| file.sync_all()));
    synced.map_err(|error| StorageError::file("cannot sync", key, error))
}

/// Makes the names of synced files durable.
pub(super) fn sync_names(root: &Path, synced: &[&Placed]) -> Result<(), StorageError> {
    sync_parents(root, synced)?;
    rename_pending(root, synced)
}

fn sync_parents(root: &Path, placed: &[&Placed]) -> Result<(), StorageError> {
    let mut parents: Vec<&Path> = placed
        .iter()
        .map(|placed| match placed.pending {
            Some(_) => Path::new(TMP),
            None => Path::new(&placed.key).parent().unwrap_or(Path::new("")),
        })
        .collect();
    parents.sort_unstable();
    parents.dedup();
    parents.into_iter().try_for_each(|parent| {
        let name = || parent.display().to_string();
        let synced = sync_directory(&root.join(parent));
        synced.map_err(|error| StorageError::file("cannot sync", name(), error))
    })
}

/// Replaces durable files by those that were synced. Their contents are equal, so the new names
/// need not be durable.
fn rename_pending(root: &Path, placed: &[&Placed]) -> Result<(), StorageError> {
    placed.iter().try_for_each(|placed| match &placed.pending {
        Some(pending) => fs::rename(pending, root.join(&placed.key))
            .map_err(|error| StorageError::file("cannot write", &placed.key, error)),
        None => Ok(()),
    })
}

/// Objects that become durable together, which is faster than one by one.
#[derive(Debug)]
pub(crate) struct ObjectGroup<'a>(Place<'a>);

#[derive(Debug)]
enum Place<'a> {
    Directory(InDirectory<'a>),
    Bucket(&'a InBucket),
}

#[derive(Debug)]
struct InDirectory<'a> {
    root: &'a Path,
    /// The root directory. `syncfs` reports the write errors since this was opened.
    opened: File,
    /// Notices a disk that hangs.
    disk: &'a Disk,
}

impl<'a> ObjectGroup<'a> {
    pub(super) fn to_bucket(bucket: &'a InBucket) -> Self {
        Self(Place::Bucket(bucket))
    }

    pub(super) fn new(root: &'a Path, opened: File, disk: &'a Disk) -> Self {
        Self(Place::Directory(InDirectory { root, opened, disk }))
    }
}

/// Syncs files, and then their directories, by several threads: file systems sync many files in
/// about the time of one.
fn sync_files(root: &Path, disk: &Disk, placed: &[&Placed]) -> Result<(), StorageError> {
    let sync = |placed: &&Placed| sync_file(root, disk, placed);
    let len = placed.len().div_ceil(SYNC_THREAD_COUNT).max(1);
    let (own, others) = placed.split_at(len.min(placed.len()));
    std::thread::scope(|scope| {
        let threads: Vec<_> = others
            .chunks(len)
            .map(|part| scope.spawn(|| part.iter().try_for_each(sync)))
            .collect();
        let own = own.iter().try_for_each(sync);
        let panicked = |_| Err(StorageError::Database("syncing a file panicked".to_owned()));
        let mut outcomes = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(panicked));
        own.and(outcomes.try_for_each(|outcome| outcome))
    })?;
    disk.flush(|| sync_names(root, placed))
}

impl ObjectGroup<'_> {
    /// Makes [placed](NewObject::place) objects durable: after that, they survive a power cut.
    pub(crate) fn sync(self, placed: &[&Placed]) -> Result<(), StorageError> {
        match self.0 {
            Place::Directory(directory) => directory.sync(placed),
            Place::Bucket(bucket) => bucket.send(placed),
        }
    }
}

impl InDirectory<'_> {
    fn sync(self, placed: &[&Placed]) -> Result<(), StorageError> {
        if placed.len() < SYNCFS_COUNT_MIN || !sys::has_syncfs(&self.opened) {
            return sync_files(self.root, self.disk, placed);
        }
        // Not counted: it writes all files of the file system, which may take a slow disk long.
        sys::syncfs(&self.opened)
            .map_err(|error| StorageError::file("cannot sync", ".", error.into()))?;
        rename_pending(self.root, placed)
    }
}
