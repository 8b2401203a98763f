//! The storage directory before its database is opened: which kind of directory it is, and whether
//! this user may use it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::error::StorageError;
use crate::layout::{DATABASE, ELSEWHERE, LOCK, STORE_ID};
use crate::location::Location;
use crate::objects::create_directory;
use crate::reserve;

/// A file that exists while the database is rebuilt. Until the end, the database lacks paths and
/// tokens, so nothing but the rebuild may open it.
pub(crate) const REBUILDING: &str = ".samovar/rebuilding";

pub(crate) const PRIVATE: &str = ".samovar";

/// Access rights of the directory of the database.
const PRIVATE_MODE: u32 = 0o700;

/// The kind of a directory that is named as a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootKind {
    /// A storage with a database.
    Storage,
    /// A storage whose database is missing or empty.
    WithoutDatabase,
    /// A binary cache without a database, as `nix copy --to file://` writes it.
    BinaryCache,
    /// A directory without a storage and without a binary cache. It need not exist.
    New,
}

impl RootKind {
    /// Returns the kind of the directory of a storage. If a PostgreSQL server has the database, the
    /// directory counts as a storage: it may be new on each node.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub fn at(location: &Location) -> Result<Self, StorageError> {
        let kind = Self::of(location.directory())?;
        Ok(match location.database() {
            Some(_) => Self::Storage,
            None => kind,
        })
    }

    /// Returns the kind of a directory.
    ///
    /// # Errors
    ///
    /// [`StorageError::NotADirectory`], [`StorageError::Owner`], [`StorageError::File`],
    /// [`StorageError::Rebuilding`].
    pub fn of(root: &Path) -> Result<Self, StorageError> {
        let kind = is_rebuilding(root).and_then(|is_rebuilding| match is_rebuilding {
            true => Err(StorageError::Rebuilding),
            false => kind_of(root),
        });
        kind.map_err(|error| explain(root, error))
    }
}

/// Returns the process that has written its ID into the lock file last.
pub(crate) fn stated_user(root: &Path) -> Option<u32> {
    let text = fs::read_to_string(root.join(LOCK)).ok()?;
    text.trim().parse().ok()
}

/// Returns whether a rebuild of the database began and did not end.
pub(crate) fn is_rebuilding(root: &Path) -> Result<bool, StorageError> {
    match fs::symlink_metadata(root.join(REBUILDING)) {
        Ok(_) => Ok(true),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(StorageError::file("cannot read", REBUILDING, error)),
    }
}

fn kind_of(root: &Path) -> Result<RootKind, StorageError> {
    if root.exists() && !root.is_dir() {
        return Err(StorageError::NotADirectory(root.to_owned()));
    }
    if len_of(root, DATABASE)? > 0 {
        return Ok(RootKind::Storage);
    }
    if len_of(root, STORE_ID)? > 0 {
        return Ok(RootKind::WithoutDatabase);
    }
    let is_narinfo = |name: &str| name.ends_with(".narinfo");
    match has_file(root, ".", &is_narinfo)? || has_file(root, "nar", &|_name| true)? {
        true => Ok(RootKind::BinaryCache),
        false => Ok(RootKind::New),
    }
}

/// Returns the length of a file of the directory, or 0 if it does not exist.
fn len_of(root: &Path, key: &'static str) -> Result<u64, StorageError> {
    match fs::metadata(root.join(key)) {
        Ok(file) => Ok(file.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(StorageError::file("cannot read", key, error)),
    }
}

/// Returns whether a directory below `root` has an entry whose name passes the test.
fn has_file(
    root: &Path,
    below: &'static str,
    is_match: &dyn Fn(&str) -> bool,
) -> Result<bool, StorageError> {
    let failed = |error| StorageError::file("cannot list", below, error);
    let entries = match fs::read_dir(root.join(below)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        if name.to_str().is_some_and(is_match) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the metadata of the file whose owner owns a storage: of its private directory, or of the
/// nearest directory that exists if the storage is new.
///
/// # Errors
///
/// [`StorageError::File`] if no such directory can be read.
pub fn owned(root: &Path) -> Result<fs::Metadata, StorageError> {
    let root = &std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    let mut found = fs::metadata(root.join(PRIVATE));
    for directory in root.ancestors() {
        match found {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                found = fs::metadata(directory);
            }
            other => {
                found = other;
                break;
            }
        }
    }
    found.map_err(|error| StorageError::file("cannot read", PRIVATE, error))
}

/// Returns whether the owner of a storage may read a file of any user. `owned`: what [`owned()`]
/// returns. The group of the storage counts as a group of its owner, unless it is the group of
/// root: a directory still has the group of root after root has given the directory to a user
/// without naming a group.
pub(crate) fn is_readable(file: &fs::Metadata, owned: &fs::Metadata) -> bool {
    let bit = if file.uid() == owned.uid() {
        0o400
    } else if file.gid() == owned.gid() && owned.gid() != 0 {
        0o040
    } else {
        0o004
    };
    owned.uid() == 0 || file.mode() & bit != 0
}

/// Prepares the directory of a storage for opening its database, which is created if the directory
/// is new. Only the owner can access the directory of the database.
pub(crate) fn prepare(location: &Location) -> Result<(), StorageError> {
    let root = location.directory();
    let kind = RootKind::of(root)?;
    check_place(location)?;
    match kind {
        RootKind::Storage | RootKind::New => {
            make_ready(root)?;
            record_elsewhere(location)
        }
        RootKind::WithoutDatabase => Err(StorageError::DatabaseMissing),
        RootKind::BinaryCache => Err(StorageError::NotImported),
    }
}

/// Checks that the directory is that of this storage: of one in the directory alone, or of one in a
/// bucket.
pub(crate) fn check_place(location: &Location) -> Result<(), StorageError> {
    let root = location.directory();
    let is_elsewhere = read_elsewhere(root)?;
    match (is_elsewhere, location.bucket()) {
        (Some(place), None) => Err(StorageError::Elsewhere(place)),
        // The identifier is beside the objects.
        (None, Some(_)) if len_of(root, STORE_ID)? > 0 => Err(StorageError::OwnObjects),
        _ => Ok(()),
    }
}

/// Returns where the storage is whose local directory this is; `None` if it is in the directory.
fn read_elsewhere(root: &Path) -> Result<Option<String>, StorageError> {
    match fs::read_to_string(root.join(ELSEWHERE)) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error) => {
            let error = StorageError::file("cannot read", ELSEWHERE, error);
            Err(explain(root, error))
        }
    }
}

/// Records in the local directory of a storage in a bucket where the storage is.
pub(crate) fn record_elsewhere(location: &Location) -> Result<(), StorageError> {
    let root = location.directory();
    let place = location.to_string();
    if location.bucket().is_none() || read_elsewhere(root)?.as_ref() == Some(&place) {
        return Ok(());
    }
    fs::write(root.join(ELSEWHERE), format!("{place}\n"))
        .map_err(|error| StorageError::file("cannot write", ELSEWHERE, error))
}

/// Frees the reserved space and creates the directory of the database.
pub(crate) fn make_ready(root: &Path) -> Result<(), StorageError> {
    reserve::give_back(root);
    create_private(root)
}

/// Creates the directory of the database.
pub(crate) fn create_private(root: &Path) -> Result<(), StorageError> {
    let private = root.join(PRIVATE);
    let is_private = |path: &Path| {
        let mode = fs::metadata(path).map(|found| found.mode() & 0o7777);
        mode.is_ok_and(|mode| mode == PRIVATE_MODE)
    };
    let created = create_directory(&private).and_then(|()| match is_private(&private) {
        true => Ok(()),
        false => fs::set_permissions(&private, Permissions::from_mode(PRIVATE_MODE)),
    });
    created.map_err(|error| {
        let root = root.to_owned();
        explain(&root.clone(), StorageError::CannotCreate { root, error })
    })
}

/// Replaces an error whose cause may be missing rights by one that names the owner of the files,
/// if they belong to another user.
pub(crate) fn explain(root: &Path, error: StorageError) -> StorageError {
    let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let foreign = match &error {
        StorageError::File { error, .. } | StorageError::CannotCreate { error, .. } => {
            denied(error).then(|| foreign_file(root, &[PRIVATE, ""]))
        }
        // SQLite reports missing rights by several codes.
        StorageError::Database(_) => Some(foreign_file(root, &[PRIVATE])),
        _ => None,
    };
    match foreign.flatten() {
        Some((path, owner)) => StorageError::Owner {
            path,
            owner,
            user: geteuid().as_raw(),
        },
        None => error,
    }
}

/// Returns the first of these directories and of the files of the database that belongs to another
/// user, and that user. Returns `None` for root, who may use the files of all users.
fn foreign_file(root: &Path, directories: &[&str]) -> Option<(PathBuf, u32)> {
    let user = geteuid();
    if user.is_root() {
        return None;
    }
    let databases = ["", "-wal", "-shm"].map(|suffix| root.join(format!("{DATABASE}{suffix}")));
    let directories = directories.iter().map(|key| root.join(key));
    directories.chain(databases).find_map(|path| {
        let owner = fs::metadata(&path).ok()?.uid();
        (owner != user.as_raw()).then_some((path, owner))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_directories() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("storage");
        let kind = || RootKind::of(&root).unwrap();
        assert_eq!(kind(), RootKind::New);
        for name in ["nar", "log"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::write(root.join("nix-cache-info"), "StoreDir: /nix/store\n").unwrap();
        assert_eq!(kind(), RootKind::New);
        fs::write(root.join("nar/1.nar.xz"), "").unwrap();
        assert_eq!(kind(), RootKind::BinaryCache);
        fs::remove_file(root.join("nar/1.nar.xz")).unwrap();
        fs::write(root.join("1.narinfo"), "").unwrap();
        assert_eq!(kind(), RootKind::BinaryCache);
        fs::create_dir(root.join(PRIVATE)).unwrap();
        fs::write(root.join(STORE_ID), "1\n").unwrap();
        assert_eq!(kind(), RootKind::WithoutDatabase);
        // A power cut or a full disk may leave an empty file.
        fs::write(root.join(DATABASE), "").unwrap();
        assert_eq!(kind(), RootKind::WithoutDatabase);
        fs::write(root.join(DATABASE), "x").unwrap();
        assert_eq!(kind(), RootKind::Storage);
        let file = RootKind::of(&root.join(DATABASE));
        assert!(
            matches!(file, Err(StorageError::NotADirectory(_))),
            "{file:?}"
        );
    }
}
