//! [`Objects`]: where files are kept, and [`Directory`], which keeps them in a directory.
//!
//! A key is a relative path such as `nar/<hash>.nar.zst`. Keys are made by this crate from parsed
//! values and never from a client's text.
//!
//! # Durability
//!
//! [`NewObject::publish`] returns when the object survives a power cut: the file is written to
//! `.samovar/tmp/`, synced, renamed to its key, and the directory of the key is synced. An error of
//! `fsync` is never retried on the same file: the kernel may have dropped the pages that it failed
//! to write, and a second call would succeed without them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::StorageError;

/// The directory of files that are still being written.
const TMP: &str = ".samovar/tmp";

/// A place for files, by key.
pub trait Objects: std::fmt::Debug + Send + Sync {
    /// Starts a new object, which is invisible until [`NewObject::publish`].
    ///
    /// # Errors
    ///
    /// [`StorageError::File`].
    fn create(&self) -> Result<Box<dyn NewObject>, StorageError>;

    /// Opens an object for reading; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`].
    fn open(&self, key: &str) -> Result<Option<File>, StorageError>;

    /// Whether there is an object that is not empty.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`].
    fn has_contents(&self, key: &str) -> Result<bool, StorageError>;

    /// Removes an object. Absence is no error.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`].
    fn remove(&self, key: &str) -> Result<(), StorageError>;

    /// Removes objects that were started and not published. No process may be writing.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`].
    fn remove_unfinished(&self) -> Result<(), StorageError>;

    /// Writes a small object that can be rebuilt from the database: atomic, but not synced.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`].
    fn write_mirror(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError>;
}

/// An object that is being written. It is removed if it is dropped before `publish`.
pub trait NewObject: Write {
    /// Makes the object visible under `key`, durably. Replaces an object of the same key.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`].
    fn publish(self: Box<Self>, key: &str) -> Result<(), StorageError>;
}

/// Objects as files below a directory.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
}

impl Directory {
    /// Opens a directory, and creates what is missing.
    ///
    /// # Errors
    ///
    /// [`StorageError::File`].
    pub fn open(root: &Path) -> Result<Self, StorageError> {
        for dir in [TMP, "nar", "log"] {
            let path = root.join(dir);
            fs::create_dir_all(&path)
                .map_err(|error| StorageError::file("cannot create", dir, error))?;
        }
        Ok(Self {
            root: root.to_owned(),
        })
    }
}

impl Objects for Directory {
    fn create(&self) -> Result<Box<dyn NewObject>, StorageError> {
        let file = tempfile::Builder::new()
            .prefix("")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o640))
            .tempfile_in(self.root.join(TMP))
            .map_err(|error| StorageError::file("cannot create a file in", TMP, error))?;
        Ok(Box::new(NewFile {
            file,
            root: self.root.clone(),
        }))
    }

    fn open(&self, key: &str) -> Result<Option<File>, StorageError> {
        match File::open(self.root.join(key)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StorageError::file("cannot open", key, error)),
        }
    }

    fn has_contents(&self, key: &str) -> Result<bool, StorageError> {
        match fs::symlink_metadata(self.root.join(key)) {
            Ok(metadata) => Ok(metadata.len() > 0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(StorageError::file("cannot read", key, error)),
        }
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
        for entry in fs::read_dir(self.root.join(TMP)).map_err(failed)? {
            fs::remove_file(entry.map_err(failed)?.path()).map_err(failed)?;
        }
        Ok(())
    }

    fn write_mirror(&self, key: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let failed = |error| StorageError::file("cannot write", key, error);
        let path = self.root.join(key);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        let mut file = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o640))
            .tempfile_in(self.root.join(TMP))
            .map_err(failed)?;
        file.write_all(bytes).map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

/// A file in `.samovar/tmp/`.
#[derive(Debug)]
struct NewFile {
    file: NamedTempFile,
    root: PathBuf,
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl NewObject for NewFile {
    fn publish(self: Box<Self>, key: &str) -> Result<(), StorageError> {
        let failed = |error| StorageError::file("cannot write", key, error);
        self.file.as_file().sync_all().map_err(failed)?;
        let path = self.root.join(key);
        let parent = path.parent().unwrap_or(&self.root).to_owned();
        fs::create_dir_all(&parent).map_err(failed)?;
        self.file
            .persist(&path)
            .map_err(|error| failed(error.error))?;
        File::open(parent)
            .and_then(|directory| directory.sync_all())
            .map_err(failed)
    }
}
