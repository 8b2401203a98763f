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
//!
//! In a bucket, an object is durable when its PUT was answered. Nothing depends on conditional
//! writes or on the list of objects being current.

mod arrival;
mod bucket;
mod content_type;
mod directory;
mod disk_cache;
mod files;
mod opened;
mod pack;
pub(crate) mod pack_files;
mod removal;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use self::removal::Later;
use crate::disk::Disk;
use crate::error::StorageError;
use crate::location::Location;

pub use self::bucket::InBucket;
pub use self::directory::Directory;
pub(crate) use self::directory::{create_directory, identity};
pub use self::disk_cache::DiskCacheCounts;
pub(crate) use self::files::{NewObject, ObjectGroup};
pub use self::opened::{NarFile, NarReader, Ready};
pub use self::pack::InPack;
pub(crate) use self::removal::Removal;

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
    /// Inode number of the file, and the nanoseconds of its modification time; in a bucket, a hash
    /// of the entity tag.
    version: (u64, i64),
}

/// An object that was placed, and that is not durable yet.
#[derive(Debug)]
pub struct Placed {
    key: String,
    /// The file, if it gets its name only when it is synced. Dropping this value removes the file
    /// if the file has not got its name.
    pending: Option<PathBuf>,
    /// Length of the object, in bytes.
    len: u64,
    /// SHA-256 of the object, if it is known.
    sha256: Option<[u8; 32]>,
    /// Whether the file is still to be sent to a bucket.
    awaits_sending: bool,
    /// Set when the file was sent: its place, if it shares an object with others.
    sent: OnceLock<Option<InPack>>,
}

impl Placed {
    fn is_unsent(&self) -> bool {
        self.awaits_sending && self.sent.get().is_none()
    }

    fn set_sent(&self, place: Option<InPack>) {
        self.sent.set(place).ok();
    }

    /// Returns the place of the file, if it shares an object with others.
    pub(crate) fn pack(&self) -> Option<&InPack> {
        self.sent.get().and_then(Option::as_ref)
    }
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
#[derive(Debug, Clone)]
pub(crate) struct NarObject<'a> {
    /// Row number of the NAR.
    pub(crate) id: i64,
    /// Key of the object, unless the file shares one.
    pub(crate) key: &'a str,
    /// Length of the file, in bytes.
    pub(crate) len: u64,
    /// SHA-256 of the file.
    pub(crate) sha256: &'a [u8; 32],
    /// Place of the file, if it shares an object with others.
    pub(crate) pack: Option<InPack>,
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
    /// They are in a bucket.
    Bucket(Arc<InBucket>),
}

impl Objects {
    /// Opens the objects of a storage. Creates their directories if they do not exist.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    pub fn open(location: &Location) -> Result<Self, StorageError> {
        let root = location.directory();
        Ok(match location.bucket() {
            Some(bucket) => Self::Bucket(Arc::new(InBucket::open(root, bucket)?)),
            None => Self::Directory(Directory::open(root)?),
        })
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
            Self::Bucket(mut bucket) => {
                // It is not shared yet.
                if let Some(bucket) = Arc::get_mut(&mut bucket) {
                    bucket.set_disk(disk);
                }
                Self::Bucket(bucket)
            }
        }
    }

    /// Returns the directory with the objects, or `None` if they are elsewhere.
    pub(crate) fn directory(&self) -> Option<&Directory> {
        match self {
            Self::Directory(directory) => Some(directory),
            Self::Bucket(_) => None,
        }
    }

    /// Returns the bucket with the objects, or `None` if they are elsewhere.
    pub(crate) fn bucket(&self) -> Option<&InBucket> {
        match self {
            Self::Directory(_) => None,
            Self::Bucket(bucket) => Some(bucket),
        }
    }

    /// Returns whether the objects can be a plain binary cache.
    pub(crate) fn can_mirror(&self) -> bool {
        self.bucket().is_none_or(|bucket| !bucket.packs())
    }

    /// Starts a new object, which is invisible until [`NewObject::publish`].
    pub(crate) fn create(&self) -> Result<NewObject, StorageError> {
        match self {
            Self::Directory(directory) => directory.create(None),
            Self::Bucket(bucket) => bucket.local().create(Some(Arc::clone(bucket))),
        }
    }

    /// Starts a group of objects that become durable together. Call it before the first object of
    /// the group is created.
    pub(crate) fn start_group(&self) -> Result<ObjectGroup<'_>, StorageError> {
        match self {
            Self::Directory(directory) => directory.start_group(),
            Self::Bucket(bucket) => Ok(ObjectGroup::to_bucket(bucket)),
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
            Self::Bucket(bucket) => bucket.send(synced),
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
            Self::Bucket(bucket) => bucket.read(key),
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
                Ok(is_whole.then(|| NarFile::local(file, 0, nar.len)))
            }
            Self::Bucket(bucket) => bucket.open_nar(nar),
        }
    }

    /// Opens the file of a NAR to read it once from its start, without making a copy. Returns
    /// `None` if its object does not exist.
    pub(crate) fn read_nar(
        &self,
        nar: &NarObject<'_>,
    ) -> Result<Option<Box<dyn Read + Send>>, StorageError> {
        match self {
            Self::Directory(directory) => {
                let file = directory.read(nar.key)?;
                Ok(file.map(|file| Box::new(file) as Box<_>))
            }
            Self::Bucket(bucket) => bucket.read_nar(nar),
        }
    }

    /// Returns the state of an object, or `None` if it does not exist.
    pub(crate) fn state(&self, key: &str) -> Result<Option<ObjectState>, StorageError> {
        match self {
            Self::Directory(directory) => directory.state(key),
            Self::Bucket(bucket) => bucket.state(key),
        }
    }

    /// Returns the length of the file of a NAR, or `None` if it does not exist. In a bucket, that
    /// takes a request.
    pub(crate) fn nar_len(&self, nar: &NarObject<'_>) -> Result<Option<u64>, StorageError> {
        let key = nar.pack.as_ref().map_or(nar.key, |place| &place.key);
        let state = self.state(key)?;
        Ok(state.map(|state| match &nar.pack {
            // The row and the pack were made together.
            Some(place) if place.start + nar.len <= state.len => nar.len,
            _ => state.len,
        }))
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
            Self::Bucket(bucket) => bucket.list(prefix, &mut |key, _state| visit(key)),
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
            Self::Bucket(bucket) => bucket.list(prefix, visit),
        }
    }

    /// Returns the groups of objects whose keys begin with `prefix`: each the part of the keys up
    /// to the next slash. The prefix is that of a directory followed by the beginning of a name.
    pub(crate) fn directories(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
        match self {
            Self::Directory(directory) => directory.directories(prefix),
            Self::Bucket(bucket) => bucket.directories(prefix),
        }
    }

    /// Removes all objects of a [directory](Self::directories). Does nothing if there are none.
    pub(crate) fn remove_directory(&self, key: &str) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.remove_directory(key),
            Self::Bucket(bucket) => bucket.remove_directory(key),
        }
    }

    /// Durably makes an existing file an object. In a directory, the file is linked, so it must be
    /// on the same file system. Replaces an existing object with that key.
    pub(crate) fn link(&self, file: &Path, key: &str) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.link(file, key),
            Self::Bucket(bucket) => bucket.copy(file, key),
        }
    }

    /// Durably gives an object another key. Replaces an existing object with that key.
    pub(crate) fn rename(&self, key: &str, new: &str) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.rename(key, new),
            Self::Bucket(bucket) => bucket.rename(key, new),
        }
    }

    /// Removes an object. It is no error if the object does not exist.
    pub(crate) fn remove(&self, key: &str) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.remove(key),
            Self::Bucket(bucket) => bucket.remove_all(&[key.to_owned()]),
        }
    }

    /// Removes objects. It is no error if some do not exist.
    pub(crate) fn remove_all(&self, keys: &[String]) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => keys.iter().try_for_each(|key| directory.remove(key)),
            Self::Bucket(bucket) => bucket.remove_all(keys),
        }
    }

    /// Calls a function that names objects to remove while it changes the database. In a directory,
    /// each is removed at once. In a bucket, all are removed when the function has succeeded, by
    /// few requests: writers of the database do not wait for them.
    pub(crate) fn removing<T>(
        &self,
        change: impl FnOnce(&mut dyn Removal) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        match self {
            Self::Directory(directory) => change(&mut |key: &str| directory.remove(key)),
            Self::Bucket(bucket) => {
                let mut later = Later::new(|keys: &[String]| bucket.remove_all(keys));
                let outcome = change(&mut later)?;
                later.finish()?;
                Ok(outcome)
            }
        }
    }

    /// Removes what unfinished uploads have left in the directory, except the parts of pushes in
    /// this boot. Meanwhile no process may write an object.
    pub(crate) fn remove_unfinished(&self) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.remove_unfinished(),
            Self::Bucket(bucket) => bucket.local().remove_unfinished(),
        }
    }

    /// Returns the free space and size of the disk, or `None` if its limit is unknown.
    pub(crate) fn space(&self) -> Result<Option<Space>, StorageError> {
        match self {
            Self::Directory(directory) => directory.space(),
            Self::Bucket(bucket) => bucket.local().space(),
        }
    }

    /// Writes small objects as [`write_mirror`](Self::write_mirror), in about this order. Returns
    /// the first error; the other objects are written.
    pub(crate) fn write_mirrors(&self, objects: &[(String, Vec<u8>)]) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => objects
                .iter()
                .map(|(key, bytes)| directory.write_mirror(key, bytes))
                .fold(Ok(()), Result::and),
            Self::Bucket(bucket) => bucket.put_all(objects),
        }
    }

    /// Writes a small object that can be rebuilt from the database. After a power cut it may be
    /// missing or empty, but never contains a part of the bytes.
    pub(crate) fn write_mirror(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        match self {
            Self::Directory(directory) => directory.write_mirror(key, bytes),
            Self::Bucket(bucket) => bucket.put(key, bytes),
        }
    }
}
