//! Imports paths: verifies the files of other caches and publishes their paths.
//!
//! An import publishes paths through the same code as an upload, with a token that no client can
//! use. A file that is already in the storage directory is neither copied nor moved.

mod remains;

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use samovar_nix::narinfo::{Compression, NarInfo};
use samovar_nix::{NarHash, StoreDir, StorePath};
use samovar_protocol::names::FileName;

use crate::error::StorageError;
use crate::gc::Rules;
use crate::layout::DATABASE;
use crate::location::Location;
use crate::metadata::{Database, NewNar, NewToken, backup, caches, check, nars, paths, tokens};
use crate::objects::Objects;
use crate::receive::PutError;
use crate::regular::open_regular;
use crate::root::{self, PRIVATE, REBUILDING, RootKind};
use crate::root::{check_place, create_private, is_rebuilding, make_ready, record_elsewhere};
use crate::storage::backup::newest;
use crate::storage::nar::object_key;
use crate::storage::{Storage, StoredCache, database_at, is_in_use};
use crate::store_id;
use crate::token::{Rights, Token, TokenHash};
use crate::verify::{Unlimited, verify};

pub use self::remains::{Found, Remains};

/// Name of the token with which imported paths are recorded.
const TOKEN_NAME: &str = "samovar import";

/// Prepares a directory for the import of the paths whose narinfos are in it: creates the database
/// of a binary cache that becomes a storage.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn begin(root: &Path) -> Result<(), StorageError> {
    if RootKind::of(root)? != RootKind::BinaryCache {
        return Ok(());
    }
    create_private(root)?;
    create_database(root)
}

/// Prepares a storage for making its lost database again, or for continuing an interrupted rebuild.
/// Until [`end_rebuild`], only [`open_for_rebuild`] opens the storage.
///
/// # Errors
///
/// [`StorageError::NotEmpty`] if the database has paths, [`StorageError::InUse`] if a server uses
/// the directory. Other errors.
pub fn begin_rebuild(location: &Location) -> Result<(), StorageError> {
    let root = location.directory();
    let is_continued = is_rebuilding(root)?;
    let kind = match is_continued {
        true => None,
        false => Some(RootKind::at(location)?),
    };
    check_place(location)?;
    make_ready(root)?;
    record_elsewhere(location)?;
    if is_in_use(root)? {
        return Err(StorageError::InUse(root::stated_user(root)));
    }
    if kind == Some(RootKind::Storage) {
        let database = database_at(location, None)?;
        if !database.is_rebuilding()? && !check::paths_after(&database, 0, 1)?.is_empty() {
            return Err(StorageError::NotEmpty);
        }
    }
    if location.database().is_some() {
        let database = database_at(location, None)?;
        database.set_rebuilding(true)?;
        return take_id(location, &database);
    }
    // Before the database exists: a database without this file is complete.
    let failed = |error| StorageError::file("cannot create", REBUILDING, error);
    File::create(root.join(REBUILDING)).map_err(failed)?;
    sync_private(root).map_err(failed)?;
    take_id(location, &database_at(location, None)?)
}

/// Ends a rebuild: from now on, the storage can be used.
///
/// # Errors
///
/// [`StorageError::File`]; of a PostgreSQL database, any [`StorageError`].
pub fn end_rebuild(storage: &Storage) -> Result<(), StorageError> {
    if storage.metadata.postgres().is_some() {
        return storage.metadata.set_rebuilding(false);
    }
    let root = &storage.root;
    let removed = fs::remove_file(root.join(REBUILDING)).and_then(|()| sync_private(root));
    removed.map_err(|error| StorageError::file("cannot remove", REBUILDING, error))
}

fn sync_private(root: &Path) -> io::Result<()> {
    File::open(root.join(PRIVATE))?.sync_all()
}

/// Creates the database of a directory if it does not exist, with the identifier of the directory.
fn create_database(root: &Path) -> Result<(), StorageError> {
    take_id(&root.into(), &Database::open(&root.join(DATABASE))?)
}

/// Gives a database the identifier beside the objects, if there is one.
fn take_id(location: &Location, database: &Database) -> Result<(), StorageError> {
    match store_id::read(&Objects::open(location)?)? {
        Some(id) => database.set_store_id(&id),
        None => Ok(()),
    }
}

/// Opens a storage whose database is being rebuilt.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn open_for_rebuild(
    location: impl Into<Location>,
    store_dir: &StoreDir,
) -> Result<Arc<Storage>, StorageError> {
    let location = location.into();
    let metadata = database_at(&location, None)?;
    Storage::of_prepared(&location, metadata, store_dir, Rules::default())
}

/// Returns whether the narinfos of a cache are also beside the objects, so that the daily backup
/// does not have them.
#[must_use]
pub fn is_mirrored(stored: &StoredCache) -> bool {
    stored.storage.mirror().is_of(stored.id)
}

/// Returns the name of the cache whose narinfos are also written into the directory. If the
/// database was made anew and names no such cache, returns the name in the newest backup. Returns
/// `None` if neither states one.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn mirrored_name(storage: &Storage) -> Result<Option<String>, StorageError> {
    let metadata = &storage.metadata;
    if let Some(mirrored) = caches::mirrored(metadata)? {
        return Ok(Some(mirrored.name));
    }
    match newest(&storage.objects)? {
        Some(newest) => Ok(backup::mirrored_cache(&newest.lines)),
        None => Ok(None),
    }
}

/// Returns the token with which imported paths are recorded. Creates it if it does not exist.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn token(storage: &Storage) -> Result<Token, StorageError> {
    // No known text has this hash, so no client can use the token.
    let hash = TokenHash([0; 32]);
    if let Some(token) = tokens::find(&storage.metadata, &hash)? {
        return Ok(token);
    }
    let new = NewToken {
        name: TOKEN_NAME.to_owned(),
        cache: None,
        names: None,
        rights: Rights::default(),
        expires_at: None,
    };
    tokens::add(&storage.metadata, &hash, &new)?;
    let token = tokens::find(&storage.metadata, &hash)?;
    token.ok_or_else(|| StorageError::Database("the new token is missing".to_owned()))
}

/// Returns whether the cache has this path with a NAR of this hash.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn has(
    stored: &StoredCache,
    path: &StorePath,
    nar_hash: &NarHash,
) -> Result<bool, StorageError> {
    let found = paths::peek(&stored.storage.metadata, stored.id, path.hash_part())?;
    Ok(found.is_some_and(|found| found.path == *path && found.nar.nar_hash == *nar_hash))
}

/// Returns whether the owner of the storage can read a file, so that it may be
/// [adopted](adopt_nar). Root, who can read all files, may run an import.
///
/// # Errors
///
/// [`StorageError::File`].
pub fn owner_reads(stored: &StoredCache, file: &Path) -> Result<bool, StorageError> {
    let failed = |error| StorageError::file("cannot read", file.display().to_string(), error);
    let found = fs::metadata(file).map_err(failed)?;
    Ok(root::is_readable(
        &found,
        &root::owned(&stored.storage.root)?,
    ))
}

/// Verifies a NAR file and records it. A file that is already in the storage directory under the
/// name of an upload is neither copied nor moved. Any other file is hard-linked into the storage
/// directory, which must be on the same file system.
///
/// # Errors
///
/// Any [`PutError`]. Nothing of the file is kept then.
pub fn adopt_nar(
    stored: &StoredCache,
    token: &Token,
    name: &FileName,
    file: &Path,
) -> Result<(), PutError> {
    let storage = &*stored.storage;
    let shown = || file.display().to_string();
    let failed = |error| StorageError::file("cannot read", shown(), error);
    let mut source = open_regular(file).map_err(failed)?;
    let limits = &storage.limits;
    let verified = verify(&mut source, name, &mut io::sink(), limits, &mut Unlimited);
    let verified = verified.map_err(|error| PutError::of_nar(error, &shown()))?;
    let key = match own_key(stored, name, file)? {
        Some(key) => {
            source.sync_all().map_err(failed)?;
            key
        }
        None => {
            let (key, _) = object_key(&storage.metadata, name)?;
            storage.objects.link(file, &key)?;
            key
        }
    };
    let new = NewNar::new(verified, key, false);
    nars::add(&storage.metadata, token.id, &[new])?;
    Ok(())
}

/// Returns the key of `file` if it is already in the storage directory under a key that can be
/// recorded for its NAR. Otherwise returns `None`.
fn own_key(
    stored: &StoredCache,
    name: &FileName,
    file: &Path,
) -> Result<Option<String>, StorageError> {
    let metadata = &stored.storage.metadata;
    let key = file.strip_prefix(&stored.storage.root).ok();
    let Some(key) = key.and_then(Path::to_str) else {
        return Ok(None);
    };
    let named = key.strip_prefix("nar/").map(str::as_bytes);
    let is_own =
        named.and_then(FileName::parse) == Some(*name) && !nars::is_garbage(metadata, key)?;
    let known = nars::object_key(metadata, name.file_hash())?;
    let is_free = known.is_none_or(|(known, _)| known == key);
    Ok((is_own && is_free).then(|| key.to_owned()))
}

/// Returns the name under which an upload stores the NAR file of this narinfo. Returns `None` if
/// the narinfo does not state the hash of the file.
#[must_use]
pub fn file_name(info: &NarInfo) -> Option<FileName> {
    let hash = match (&info.file_hash, info.compression) {
        (Some(hash), _) => *NarHash::from_hash(hash).ok()?.as_bytes(),
        (None, Compression::None) => *info.nar_hash.as_bytes(),
        (None, _) => return None,
    };
    let stated = info.url.strip_prefix("nar/").map(str::as_bytes);
    let stated = stated.and_then(FileName::parse);
    let stated = stated.filter(|name| *name.file_hash() == hash);
    Some(stated.unwrap_or_else(|| FileName::new(hash, info.compression)))
}
