//! [`Objects`]: the interface to stored files. [`Directory`] stores them in a directory.
//!
//! The key of an object is a relative path such as `nar/<hash>.nar.zst`. This crate makes keys from
//! parsed values only, never from unchecked text of a client.
//!
//! # Durability
//!
//! When [`NewObject::publish`] returns, the object survives a power cut: the file is written to
//! `.samovar/tmp/`, renamed to its key, and synced, as is the key's directory. The files of an
//! [`ObjectGroup`] are synced together. A file that is not synced yet never replaces another one.
//! After an error of `fsync`, the call is never repeated for the same file: the kernel may have
//! dropped the pages that it failed to write, and a second call would succeed without them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::StorageError;
use crate::reserve;

/// Directory for files that are still being written.
pub(crate) const TMP: &str = ".samovar/tmp";

/// Maximum length of a file that a power cut leaves either empty or complete, in bytes. A longer
/// file of the mirror is synced before it gets its name.
const PAGE_LEN: usize = 4096;

/// Prefix of the keys of parts of NAR files. Each push has a directory for its parts.
pub(crate) const PART_PREFIX: &str = ".samovar/tmp/push-";

/// File with the ID of the boot in which the storage was opened last.
const BOOT_ID: &str = ".samovar/boot-id";

/// Number of bytes after which the kernel is told to start writing a file to the disk.
const WRITEBACK_LEN: u64 = 4 << 20;

/// Number of bytes after which an upload checks again that the disk has space.
const CHECK_LEN: u64 = 1 << 20;

/// Number of files from which a group is synced by one `syncfs`, which writes all changed files of
/// the file system, instead of one `fsync` for each file.
const SYNCFS_COUNT_MIN: usize = 64;

/// Maximum number of threads that sync the files of a group.
const SYNC_THREAD_COUNT: usize = 16;

/// Types of file systems whose `syncfs` makes all files durable: ext4, XFS, Btrfs, F2FS, ZFS and
/// tmpfs. The numbers are those of `statfs(2)`.
const SYNCFS_TYPES: [i64; 6] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0x0102_1994,
];

/// Storage for files, which are identified by keys.
pub trait Objects: std::fmt::Debug + Send + Sync {
    /// Starts a new object, which is invisible until [`NewObject::publish`].
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    fn create(&self) -> Result<Box<dyn NewObject>, StorageError>;

    /// Opens an object for reading. Returns `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    fn open(&self, key: &str) -> Result<Option<File>, StorageError>;

    /// Returns the state of an object, or `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    fn state(&self, key: &str) -> Result<Option<ObjectState>, StorageError>;

    /// Removes an object. It is no error if the object does not exist.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    fn remove(&self, key: &str) -> Result<(), StorageError>;

    /// Calls `visit` with the key of each object directly below a prefix. The prefix is empty or
    /// ends in a slash.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if the directory cannot be listed, and any error of `visit`.
    fn list(
        &self,
        prefix: &str,
        visit: &mut dyn FnMut(&str) -> Result<(), StorageError>,
    ) -> Result<(), StorageError>;

    /// Returns the keys of the directories whose keys begin with `prefix`, which is that of an
    /// existing directory followed by the beginning of a name.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    fn directories(&self, prefix: &str) -> Result<Vec<String>, StorageError>;

    /// Removes a directory and its objects. Does nothing if it does not exist.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    fn remove_directory(&self, key: &str) -> Result<(), StorageError>;

    /// Durably makes an existing file an object without copying it. The file must be on the same
    /// file system. Replaces an existing object with that key.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    fn link(&self, file: &Path, key: &str) -> Result<(), StorageError>;

    /// Makes [placed](NewObject::place) objects durable.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails. Then none of the objects
    /// may be used: see the module's documentation.
    fn sync(&self, keys: &[&str]) -> Result<(), StorageError>;

    /// Starts a group of objects that become durable together. Call it before the first object of
    /// the group is created.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    fn start_group(&self) -> Result<Box<dyn ObjectGroup + '_>, StorageError>;

    /// Removes unpublished objects, except the parts of pushes in this boot. Meanwhile no process
    /// may write an object.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    fn remove_unfinished(&self) -> Result<(), StorageError>;

    /// Returns the free space and size of the disk, or `None` if its limit is unknown.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    fn space(&self) -> Result<Option<Space>, StorageError>;

    /// Writes a small object that can be rebuilt from the database. After a power cut it may be
    /// missing or empty, but never contains a part of the bytes.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    fn write_mirror(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError>;
}

/// Like [`Objects::list`], but the prefix may be that of a directory that does not exist.
pub(crate) fn list_if_any(
    objects: &dyn Objects,
    prefix: &str,
    visit: &mut dyn FnMut(&str) -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    match objects.list(prefix, visit) {
        Err(StorageError::File { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// Free space and size of a disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Space that an unprivileged process can still use.
    pub free: u64,
    /// Size of the whole file system.
    pub total: u64,
}

/// The state of an object. Replacing the object changes its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectState {
    /// Length of the object, in bytes.
    pub len: u64,
    /// Time of the last change, in seconds since 1970.
    pub modified_at: i64,
    /// Inode number of the file, and the nanoseconds of its modification time.
    version: (u64, i64),
}

/// An object that is being written. Dropping it before `publish` or `place` removes it.
pub trait NewObject: Write + Send {
    /// Makes the object visible under `key`. Replaces an existing object with that key. The object
    /// becomes durable with [`ObjectGroup::sync`].
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    fn place(self: Box<Self>, key: &str) -> Result<(), StorageError>;

    /// Makes the object durable and visible under `key`. Replaces an existing object with that key.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    fn publish(self: Box<Self>, key: &str) -> Result<(), StorageError>;
}

/// Objects that become durable together, which is faster than one by one.
pub trait ObjectGroup {
    /// Makes [placed](NewObject::place) objects durable: after that, they survive a power cut.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    fn sync(self: Box<Self>, keys: &[&str]) -> Result<(), StorageError>;
}

/// Stores objects as files in a directory.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
}

impl Directory {
    /// Opens the directory. Creates it and its subdirectories if they do not exist.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    pub fn open(root: &Path) -> Result<Self, StorageError> {
        for dir in [TMP, "nar", "log", "realisations", "build-trace-v2"] {
            create_directory(&root.join(dir))
                .map_err(|error| StorageError::file("cannot create", dir, error))?;
        }
        // Make the names of the database and of directories durable: a killed process may not have
        // synced them.
        for dir in [".samovar", "."] {
            sync_directory(&root.join(dir))
                .map_err(|error| StorageError::file("cannot sync", dir, error))?;
        }
        Ok(Self {
            root: root.to_owned(),
        })
    }

    /// Creates a temporary file, which is removed when dropped unless it is renamed.
    fn temporary(&self) -> io::Result<NamedTempFile> {
        tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o640))
            .tempfile_in(self.root.join(TMP))
    }
}

/// Creates a directory and its missing parents, and makes their names durable. Otherwise a power
/// cut could remove a directory together with the synced files in it.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    create_directory(parent)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    sync_directory(parent)
}

/// Makes the names in a directory durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

impl Objects for Directory {
    fn create(&self) -> Result<Box<dyn NewObject>, StorageError> {
        let file = reserve::check_room(&self.root)
            .and_then(|()| self.temporary())
            .map_err(|error| StorageError::file("cannot create a file in", TMP, error))?;
        Ok(Box::new(NewFile {
            file,
            root: self.root.clone(),
            len: 0,
            writeback_len: 0,
        }))
    }

    fn open(&self, key: &str) -> Result<Option<File>, StorageError> {
        match File::open(self.root.join(key)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StorageError::file("cannot open", key, error)),
        }
    }

    fn state(&self, key: &str) -> Result<Option<ObjectState>, StorageError> {
        match fs::metadata(self.root.join(key)) {
            Ok(metadata) => Ok(Some(ObjectState {
                len: metadata.len(),
                modified_at: metadata.mtime(),
                version: (metadata.ino(), metadata.mtime_nsec()),
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StorageError::file("cannot read", key, error)),
        }
    }

    fn list(
        &self,
        prefix: &str,
        visit: &mut dyn FnMut(&str) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let failed = |error| StorageError::file("cannot list", prefix, error);
        for entry in fs::read_dir(self.root.join(prefix)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // Keys are UTF-8, so files with other names are not objects.
            if let Some(name) = entry.file_name().to_str()
                && !entry.file_type().map_err(failed)?.is_dir()
            {
                visit(&format!("{prefix}{name}"))?;
            }
        }
        Ok(())
    }

    fn directories(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        let failed = |error| StorageError::file("cannot list", prefix, error);
        let (parent, start) = prefix.rsplit_once('/').unwrap_or(("", prefix));
        let mut keys = Vec::new();
        for entry in fs::read_dir(self.root.join(parent)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Some(name) = entry.file_name().to_str()
                && name.starts_with(start)
                && entry.file_type().map_err(failed)?.is_dir()
            {
                keys.push(format!("{parent}/{name}"));
            }
        }
        Ok(keys)
    }

    fn remove_directory(&self, key: &str) -> Result<(), StorageError> {
        match fs::remove_dir_all(self.root.join(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StorageError::file("cannot remove", key, error))
            }
            _ => Ok(()),
        }
    }

    fn sync(&self, keys: &[&str]) -> Result<(), StorageError> {
        sync_files(&self.root, keys)
    }

    fn start_group(&self) -> Result<Box<dyn ObjectGroup + '_>, StorageError> {
        let disk = File::open(&self.root)
            .map_err(|error| StorageError::file("cannot open", ".", error))?;
        let root = &self.root;
        Ok(Box::new(FileGroup { root, disk }))
    }

    fn link(&self, file: &Path, key: &str) -> Result<(), StorageError> {
        let failed = |error| StorageError::file("cannot link a file to", key, error);
        File::open(file)
            .and_then(|file| file.sync_all())
            .map_err(failed)?;
        // Link to a temporary name, then rename: renaming replaces an existing file, linking does
        // not.
        let tmp = self.root.join(TMP);
        let new = tempfile::Builder::new().make_in(tmp, |new| fs::hard_link(file, new));
        let path = self.root.join(key);
        let renamed = new.map_err(failed)?.persist(&path);
        renamed.map_err(|error| failed(error.error))?;
        sync_directory(path.parent().unwrap_or(&self.root)).map_err(failed)
    }

    fn remove(&self, key: &str) -> Result<(), StorageError> {
        match fs::remove_file(self.root.join(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StorageError::file("cannot remove", key, error))
            }
            _ => Ok(()),
        }
    }

    fn remove_unfinished(&self) -> Result<(), StorageError> {
        let failed = |error| StorageError::file("cannot clean", TMP, error);
        // Parts are not synced, so a power cut may have damaged those of an earlier boot.
        let boot_id = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let file = self.root.join(BOOT_ID);
        let is_same_boot =
            !boot_id.is_empty() && fs::read(&file).is_ok_and(|known| known == boot_id);
        for entry in fs::read_dir(self.root.join(TMP)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let key = format!("{TMP}/{}", entry.file_name().to_string_lossy());
            // An older version stored parts as files without a directory.
            match entry.file_type().map_err(failed)?.is_dir() {
                true if is_same_boot && key.starts_with(PART_PREFIX) => {}
                true => fs::remove_dir_all(entry.path()).map_err(failed)?,
                false => fs::remove_file(entry.path()).map_err(failed)?,
            }
        }
        if !is_same_boot {
            // Not synced either: without it, the parts are removed again.
            let written = fs::write(file, boot_id);
            written.map_err(|error| StorageError::file("cannot write", BOOT_ID, error))?;
        }
        Ok(())
    }

    fn space(&self) -> Result<Option<Space>, StorageError> {
        let disk = rustix::fs::statvfs(&self.root);
        let disk = disk.map_err(|error| StorageError::file("cannot read", ".", error.into()))?;
        Ok(Some(Space {
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
            total: disk.f_blocks.saturating_mul(disk.f_frsize),
        }))
    }

    fn write_mirror(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let failed = |error| StorageError::file("cannot write", key, error);
        reserve::check_room(&self.root).map_err(failed)?;
        let mut file = self.temporary().map_err(failed)?;
        file.write_all(bytes).map_err(failed)?;
        if bytes.len() > PAGE_LEN {
            file.as_file().sync_data().map_err(failed)?;
        }
        let path = self.root.join(key);
        if key.contains('/')
            && let Some(parent) = path.parent()
        {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

/// A file in `.samovar/tmp/` that is not published yet.
#[derive(Debug)]
struct NewFile {
    file: NamedTempFile,
    root: PathBuf,
    /// Number of bytes written.
    len: u64,
    /// Number of bytes of which the kernel was told to start writing them to the disk.
    writeback_len: u64,
}

impl NewFile {
    /// Starts to write the latest bytes to the disk, so that the sync at the end need not wait for
    /// the whole file.
    fn start_writeback(&mut self) {
        let len = NonZeroU64::new(self.len - self.writeback_len);
        // For changed pages, this advice starts writing them, and does not drop them.
        let advice = rustix::fs::Advice::DontNeed;
        rustix::fs::fadvise(&self.file, self.writeback_len, len, advice).ok();
        self.writeback_len = self.len;
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.file.write(bytes)?;
        let checked_len = self.len / CHECK_LEN;
        self.len += len as u64;
        if self.len / CHECK_LEN > checked_len {
            reserve::check_room(&self.root)?;
        }
        if self.len - self.writeback_len >= WRITEBACK_LEN {
            self.start_writeback();
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl NewObject for NewFile {
    fn place(self: Box<Self>, key: &str) -> Result<(), StorageError> {
        let failed = |error| StorageError::file("cannot write", key, error);
        let path = self.root.join(key);
        match path.parent() {
            // Parts are not durable.
            Some(parent) if key.starts_with(PART_PREFIX) => fs::create_dir_all(parent),
            Some(parent) => create_directory(parent),
            None => Ok(()),
        }
        .map_err(failed)?;
        let Err(error) = self.file.persist_noclobber(&path) else {
            return Ok(());
        };
        if error.error.kind() != io::ErrorKind::AlreadyExists {
            return Err(failed(error.error));
        }
        // The existing file may be durable and in use, so only a durable one may replace it.
        error.file.as_file().sync_all().map_err(failed)?;
        let persisted = error.file.persist(&path);
        persisted.map(drop).map_err(|error| failed(error.error))
    }

    fn publish(self: Box<Self>, key: &str) -> Result<(), StorageError> {
        let root = self.root.clone();
        // A journaling file system that syncs the renamed file makes the name durable, too. Syncing
        // the directory then costs nothing.
        self.place(key)?;
        sync_files(&root, &[key])
    }
}

fn sync_file(root: &Path, key: &str) -> Result<(), StorageError> {
    let synced = File::open(root.join(key)).and_then(|file| file.sync_all());
    synced.map_err(|error| StorageError::file("cannot sync", key, error))
}

/// Makes the names of files durable.
fn sync_parents(root: &Path, keys: &[&str]) -> Result<(), StorageError> {
    let mut parents: Vec<_> = keys
        .iter()
        .map(|key| Path::new(key).parent().unwrap_or(Path::new("")))
        .collect();
    parents.sort_unstable();
    parents.dedup();
    parents.into_iter().try_for_each(|parent| {
        let name = || parent.display().to_string();
        let synced = sync_directory(&root.join(parent));
        synced.map_err(|error| StorageError::file("cannot sync", name(), error))
    })
}

/// Files of a group.
#[derive(Debug)]
struct FileGroup<'a> {
    root: &'a Path,
    /// The root directory. `syncfs` reports the write errors since this was opened.
    disk: File,
}

impl FileGroup<'_> {
    /// Whether `syncfs` makes all files durable. On other file systems, such as FUSE, it may only
    /// pass them on.
    fn has_syncfs(&self) -> bool {
        let disk = rustix::fs::fstatfs(&self.disk);
        disk.is_ok_and(|disk| SYNCFS_TYPES.contains(&disk.f_type))
    }
}

/// Syncs files, and then their directories, by several threads: file systems sync many files in
/// about the time of one.
fn sync_files(root: &Path, keys: &[&str]) -> Result<(), StorageError> {
    let sync = |key: &&str| sync_file(root, key);
    let len = keys.len().div_ceil(SYNC_THREAD_COUNT).max(1);
    let (own, others) = keys.split_at(len.min(keys.len()));
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
    sync_parents(root, keys)
}

impl ObjectGroup for FileGroup<'_> {
    fn sync(self: Box<Self>, keys: &[&str]) -> Result<(), StorageError> {
        if keys.len() < SYNCFS_COUNT_MIN || !self.has_syncfs() {
            return sync_files(self.root, keys);
        }
        rustix::fs::syncfs(&self.disk)
            .map_err(|error| StorageError::file("cannot sync", ".", error.into()))
    }
}

#[cfg(test)]
mod tests;
