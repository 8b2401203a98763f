//! [`Objects`]: the files of a storage, which are called objects.
//!
//! The key of an object is a relative path such as `nar/<hash>.nar.zst`. This crate makes keys from
//! parsed values only, never from unchecked text of a client.
//!
//! # Durability
//!
//! When `NewObject::publish` returns, the object survives a power cut. In a directory, the file is
//! written to `.samovar/tmp/`, renamed to its key, and synced, as is the key's directory. The files
//! of an `ObjectGroup` are synced together. A file that is not synced yet never replaces another
//! one. After an error of `fsync`, the call is never repeated for the same file: the kernel may
//! have dropped the pages that it failed to write, and a second call would succeed without them.

mod directory;
mod files;
mod opened;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::Disk;
use crate::error::StorageError;
use crate::location::Location;

pub use self::directory::Directory;
pub(crate) use self::directory::{create_directory, identity};
pub(crate) use self::files::{NewObject, ObjectGroup};
pub use self::opened::{NarFile, NarReader, Ready};

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

/// An object that was placed, and that is not durable yet.
#[derive(Debug)]
pub struct Placed {
    key: String,
    /// The file, if it gets its name only when it is synced. Dropping this value removes the file
    /// if the file has not got its name.
    pending: Option<PathBuf>,
}

impl Drop for Placed {
    fn drop(&mut self) {
        if let Some(pending) = &self.pending {
            // The file was renamed, and does not exist under this path, if it was published.
            fs::remove_file(pending).ok();
        }
    }
}

/// The object with the file of a NAR.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NarObject<'a> {
    /// Key of the object.
    pub(crate) key: &'a str,
    /// Length of the file, in bytes.
    pub(crate) len: u64,
}

/// Function that receives the key of an object.
type Visit<'a> = &'a mut dyn FnMut(&str) -> Result<(), StorageError>;

/// Function that receives the key and the state of an object.
type VisitState<'a> = &'a mut dyn FnMut(&str, ObjectState) -> Result<(), StorageError>;

/// The objects of a storage.
#[derive(Debug)]
pub enum Objects {
    /// They are files in a directory.
    Directory(Directory),
}

impl Objects {
    /// Opens the objects of a storage. Creates their directories if they do not exist.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    pub fn open(location: &Location) -> Result<Self, StorageError> {
        Ok(Self::Directory(Directory::open(location.directory())?))
    }

    /// Returns the objects of a directory that exists, to read them.
    pub(crate) fn existing(root: &Path) -> Self {
        Self::Directory(Directory::existing(root))
    }

    /// Sets what notices if the disk of the directory hangs.
    #[must_use]
    pub(crate) fn on(self, disk: &Arc<Disk>) -> Self {
        match self {
            Self::Directory(directory) => Self::Directory(directory.on(disk)),
        }
    }

    /// Returns the directory with the objects, or `None` if they are elsewhere.
    pub(crate) fn directory(&self) -> Option<&Directory> {
        match self {
            Self::Directory(directory) => Some(directory),
        }
    }

    /// Starts a new object, which is invisible until [`NewObject::publish`].
    pub(crate) fn create(&self) -> Result<NewObject, StorageError> {
        match self {
            Self::Directory(directory) => directory.create(),
        }
    }

    /// Starts a group of objects that become durable together. Call it before the first object of
    /// the group is created.
    pub(crate) fn start_group(&self) -> Result<ObjectGroup<'_>, StorageError> {
        match self {
            Self::Directory(directory) => directory.start_group(),
        }
    }

    /// Makes [synced](NewObject::place_synced) objects durable.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails. Then none of the objects
    /// may be used: see the module's documentation.
    pub(crate) fn sync_names(&self, synced: &[&Placed]) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.sync_names(synced),
        }
    }

    /// Opens an object for reading. Returns `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    pub fn read(&self, key: &str) -> Result<Option<File>, StorageError> {
        match self {
            Self::Directory(directory) => directory.read(key),
        }
    }

    /// Opens the file of a NAR. Returns `None` if it is missing or has a wrong length.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    pub(crate) fn open_nar(&self, nar: NarObject<'_>) -> Result<Option<NarFile>, StorageError> {
        match self {
            Self::Directory(directory) => {
                let Some(file) = directory.read(nar.key)? else {
                    return Ok(None);
                };
                let failed = |error| StorageError::file("cannot read", nar.key, error);
                let is_whole = file.metadata().map_err(failed)?.len() == nar.len;
                Ok(is_whole.then(|| NarFile::local(file, nar.len)))
            }
        }
    }

    /// Returns the state of an object, or `None` if it does not exist.
    pub(crate) fn state(&self, key: &str) -> Result<Option<ObjectState>, StorageError> {
        match self {
            Self::Directory(directory) => directory.state(key),
        }
    }

    /// Calls `visit` with the key of each object directly below a prefix. The prefix is empty or
    /// ends in a slash; there may be no object below it.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if the objects cannot be listed, and any error of `visit`.
    pub(crate) fn list(&self, prefix: &str, visit: Visit<'_>) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.list(prefix, visit),
        }
    }

    /// Like [`list`](Self::list), and passes the state of each object, too.
    pub(crate) fn list_states(
        &self,
        prefix: &str,
        visit: VisitState<'_>,
    ) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.list(prefix, &mut |key| {
                // An object may have been removed meanwhile.
                match directory.state(key)? {
                    Some(state) => visit(key, state),
                    None => Ok(()),
                }
            }),
        }
    }

    /// Returns the groups of objects whose keys begin with `prefix`: each the part of the keys up
    /// to the next slash. The prefix is that of a directory followed by the beginning of a name.
    pub(crate) fn directories(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        match self {
            Self::Directory(directory) => directory.directories(prefix),
        }
    }

    /// Removes all objects of a [directory](Self::directories). Does nothing if there are none.
    pub(crate) fn remove_directory(&self, key: &str) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.remove_directory(key),
        }
    }

    /// Durably makes an existing file an object. In a directory, the file is linked, so it must be
    /// on the same file system. Replaces an existing object with that key.
    pub(crate) fn link(&self, file: &Path, key: &str) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.link(file, key),
        }
    }

    /// Durably gives an object another key. Replaces an existing object with that key.
    pub(crate) fn rename(&self, key: &str, new: &str) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.rename(key, new),
        }
    }

    /// Removes an object. It is no error if the object does not exist.
    pub(crate) fn remove(&self, key: &str) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.remove(key),
        }
    }

    /// Removes objects. It is no error if some do not exist.
    pub(crate) fn remove_all(&self, keys: &[String]) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => keys.iter().try_for_each(|key| directory.remove(key)),
        }
    }

    /// Removes what unfinished uploads have left in the directory, except the parts of pushes in
    /// this boot. Meanwhile no process may write an object.
    pub(crate) fn remove_unfinished(&self) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.remove_unfinished(),
        }
    }

    /// Returns the free space and size of the disk, or `None` if its limit is unknown.
    pub(crate) fn space(&self) -> Result<Option<Space>, StorageError> {
        match self {
            Self::Directory(directory) => directory.space(),
        }
    }

    /// Writes a small object that can be rebuilt from the database. After a power cut it may be
    /// missing or empty, but never contains a part of the bytes.
    pub(crate) fn write_mirror(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.write_mirror(key, bytes),
        }
    }
}
