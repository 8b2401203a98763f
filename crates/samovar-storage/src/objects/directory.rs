//! [`Directory`]: objects as files in a directory.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use tempfile::NamedTempFile;

use crate::disk::Disk;
use crate::error::StorageError;
use crate::layout::{PART_PREFIX, TMP};
use crate::regular::open_regular;
use crate::reserve;

use super::bucket::InBucket;
use super::files::{NewObject, ObjectGroup, sync_names};
use super::{ObjectState, Placed, Space};

/// Maximum length of a file that a power cut leaves either empty or complete, in bytes. A longer
/// file of the mirror is synced before it gets its name.
const PAGE_LEN: usize = 4096;

/// File with the ID of the boot in which the storage was opened last.
const BOOT_ID: &str = ".samovar/boot-id";

/// Returns inode and time of birth of a file or a directory. Device numbers differ from mount to
/// mount.
pub(crate) fn identity(path: &Path) -> io::Result<String> {
    let metadata = fs::metadata(path)?;
    let born = metadata.created().ok();
    let born = born.and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    let born = born.map_or(0, |born| born.as_nanos());
    Ok(format!("{} {born}", metadata.ino()))
}

/// Stores objects as files in a directory.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    /// Notices if the disk of the directory hangs.
    disk: Arc<Disk>,
}

impl Directory {
    /// Opens the directory. Creates the directory and its subdirectories if they do not exist.
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
        Ok(Self::existing(root))
    }

    /// Starts a new object, which is invisible until [`NewObject::publish`]. `sender`: the bucket
    /// to which it is sent then. `None`: it stays in the directory.
    pub(crate) fn create(&self, sender: Option<Arc<InBucket>>) -> Result<NewObject, StorageError> {
        let file = reserve::check_room(&self.root)
            .and_then(|()| self.disk.write(|| self.temporary()))
            .map_err(|error| StorageError::file("cannot create a file in", TMP, error))?;
        Ok(NewObject::new(file, self.root.clone(), &self.disk, sender))
    }

    /// Opens an object for reading. Returns `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails.
    pub fn read(&self, key: &str) -> Result<Option<File>, StorageError> {
        match open_regular(&self.root.join(key)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StorageError::file("cannot open", key, error)),
        }
    }

    /// Returns the state of an object, or `None` if it does not exist.
    pub(crate) fn state(&self, key: &str) -> Result<Option<ObjectState>, StorageError> {
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

    /// See [`Objects::list`](super::Objects::list).
    pub(crate) fn list(
        &self,
        prefix: &str,
        visit: &mut dyn FnMut(&str) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let failed = |error| StorageError::file("cannot list", prefix, error);
        let entries = match fs::read_dir(self.root.join(prefix)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
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

    /// Returns the keys of the directories whose keys begin with `prefix`, which is that of an
    /// existing directory followed by the beginning of a name.
    pub(crate) fn directories(&self, prefix: &str) -> Result<Vec<String>, StorageError> {
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

    /// Returns a text that identifies a directory, also after a reboot, or `None` if it does not
    /// exist.
    pub(crate) fn identity(&self, key: &str) -> Result<Option<String>, StorageError> {
        match identity(&self.root.join(key)) {
            Ok(identity) => Ok(Some(identity)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StorageError::file("cannot read", key, error)),
        }
    }

    /// Removes a directory and its objects. Does nothing if it does not exist.
    pub(crate) fn remove_directory(&self, key: &str) -> Result<(), StorageError> {
        match fs::remove_dir_all(self.root.join(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StorageError::file("cannot remove", key, error))
            }
            _ => Ok(()),
        }
    }

    /// Makes [synced](NewObject::place_synced) objects durable.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`] if an operation on the file system fails. Then none of the objects
    /// may be used: see the module's documentation.
    pub(crate) fn sync_names(&self, synced: &[&Placed]) -> Result<(), StorageError> {
        self.disk.flush(|| sync_names(&self.root, synced))
    }

    /// Starts a group of objects that become durable together. Call it before the first object of
    /// the group is created.
    pub(crate) fn start_group(&self) -> Result<ObjectGroup<'_>, StorageError> {
        let disk = File::open(&self.root)
            .map_err(|error| StorageError::file("cannot open", ".", error))?;
        Ok(ObjectGroup::new(&self.root, disk, &self.disk))
    }

    /// Durably makes an existing file an object without copying it. The file must be on the same
    /// file system. Replaces an existing object with that key.
    pub(crate) fn link(&self, file: &Path, key: &str) -> Result<(), StorageError> {
        let failed = |error| StorageError::file("cannot link a file to", key, error);
        open_regular(file)
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

    /// Durably gives an object another key. Replaces an existing object with that key.
    pub(crate) fn rename(&self, key: &str, new: &str) -> Result<(), StorageError> {
        let failed = |error| StorageError::file("cannot create", new, error);
        let path = self.root.join(new);
        create_directory(path.parent().unwrap_or(&self.root)).map_err(failed)?;
        self.link(&self.root.join(key), new)?;
        self.remove(key)
    }

    /// Removes an object. It is no error if the object does not exist.
    pub(crate) fn remove(&self, key: &str) -> Result<(), StorageError> {
        match fs::remove_file(self.root.join(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StorageError::file("cannot remove", key, error))
            }
            _ => Ok(()),
        }
    }

    /// Removes unpublished objects, except the parts of pushes in this boot. Meanwhile no process
    /// may write an object.
    pub(crate) fn remove_unfinished(&self) -> Result<(), StorageError> {
        let failed = |error| StorageError::file("cannot clean", TMP, error);
        // Parts are not synced, so a power cut may have damaged the parts of an earlier boot.
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

    /// Returns the free space and size of the disk, or `None` if its limit is unknown.
    pub(crate) fn space(&self) -> Result<Option<Space>, StorageError> {
        let disk = rustix::fs::statvfs(&self.root);
        let disk = disk.map_err(|error| StorageError::file("cannot read", ".", error.into()))?;
        Ok(Some(Space {
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
            total: disk.f_blocks.saturating_mul(disk.f_frsize),
        }))
    }

    /// Writes a small object that can be rebuilt from the database. After a power cut it may be
    /// missing or empty, but never contains a part of the bytes.
    pub(crate) fn write_mirror(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.disk.write(|| self.write_rebuildable(key, bytes))
    }

    fn write_rebuildable(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
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

    /// Opens the local directory of a storage whose objects are in a bucket.
    pub(super) fn open_local(root: &Path) -> Result<Self, StorageError> {
        create_directory(&root.join(TMP))
            .map_err(|error| StorageError::file("cannot create", TMP, error))?;
        Ok(Self::existing(root))
    }

    /// Returns the path of the file with this key.
    pub(super) fn path(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }

    /// Returns a directory that exists, to read its objects.
    pub(crate) fn existing(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            disk: Arc::default(),
        }
    }

    pub(super) fn set_disk(&mut self, disk: &Arc<Disk>) {
        self.disk = Arc::clone(disk);
    }

    /// Sets what notices if the disk of the directory hangs.
    #[must_use]
    pub(crate) fn on(mut self, disk: &Arc<Disk>) -> Self {
        self.disk = Arc::clone(disk);
        self
    }

    /// Creates a temporary file, which is removed when dropped unless it is renamed.
    pub(super) fn temporary(&self) -> io::Result<NamedTempFile> {
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
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests;
