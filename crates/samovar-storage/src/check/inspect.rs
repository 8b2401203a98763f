//! Checks of a storage directory, for diagnosis. They change nothing, and work while a server runs.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use samovar_nix::{HashPart, StorePath};

use super::fsck::{Finding, Fsck, Options};
use crate::error::StorageError;
use crate::layout::{DATABASE, LOCK, PART_PREFIX, STORE_ID, TMP};
use crate::metadata::{CacheSummary, Database, caches, check, tokens};
use crate::objects::Objects;
use crate::root;
use crate::sql::{Connection, SCHEMA, params};
use crate::token::{Token, now};

/// Maximum time for looking for files of other users.
const WALK_TIME: Duration = Duration::from_secs(10);

/// Maximum time for checking the integrity of the database. The check is then interrupted.
const CHECK_TIME: Duration = Duration::from_secs(10);

/// Maximum number of faults of the database that are counted.
const FAULT_COUNT_MAX: u32 = 10;

/// Number of the newest paths whose files in the directory are checked.
const CHECKED_COUNT_MAX: u32 = 1000;

/// Maximum number of names of lost paths.
const LOST_NAME_COUNT_MAX: u32 = 10;

/// Minimum age at which an unfinished file counts as left over. No upload takes that long.
const LEFT_OVER_AGE: Duration = Duration::from_secs(86_400);

/// The findings about a storage directory.
#[derive(Debug, Clone, Default)]
pub struct Inspection {
    /// Schema version of the database.
    pub schema: i64,
    /// Damage of the database, also of the references between rows. Empty: none was found.
    pub damage: Vec<String>,
    /// Whether the whole database was checked. The check of a large one ends after ten seconds.
    pub is_check_complete: bool,
    /// Whether the directory has the same identifier as the database, or none yet.
    pub has_own_database: bool,
    /// All tokens in the database, also revoked and expired ones.
    pub tokens: Vec<Token>,
    /// Time of the newest path, in seconds since 1970. `None`: there are no paths.
    pub newest_at: Option<i64>,
    /// The newest path of each cache whose NAR is not lost, by the name of the cache.
    pub newest: HashMap<String, StorePath>,
    /// The caches with their totals.
    pub caches: Vec<CacheSummary>,
    /// Number of NARs that are recorded as lost.
    pub lost_count: u64,
    /// Names of paths whose NAR is recorded as lost, at most ten.
    pub lost: Vec<String>,
    /// The faults of the files of the newest 1000 paths, and of the newest 1000 narinfos of the
    /// mirrored cache.
    pub faults: Vec<Finding>,
    /// Whether the narinfos were checked. They are not if the database has an older schema.
    pub is_mirror_checked: bool,
    /// Number of unfinished files older than a day.
    pub left_over_count: usize,
    /// Total length of these unfinished files, in bytes.
    pub left_over_bytes: u64,
    /// The process that uses the storage. `None`: none does, or it is unknown.
    pub user: Option<u32>,
    /// The files that the owner of the storage cannot use. `None`: none was found.
    pub foreign: Option<Foreign>,
}

/// Files and directories of a storage that belong to another user than the storage, and that its
/// owner cannot use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// Number of files that were found.
    pub count: usize,
    /// Path of one of the files, relative to the storage directory.
    pub path: PathBuf,
    /// User ID of the owner of `path`.
    pub owner: u32,
    /// User ID of the owner of the storage.
    pub user: u32,
    /// Group ID of the storage.
    pub group: u32,
}

/// Inspects a storage directory. Returns `None` if it has no database.
///
/// # Errors
///
/// [`StorageError::Database`], [`StorageError::SchemaTooNew`], [`StorageError::File`].
pub fn inspect(root: &Path) -> Result<Option<Inspection>, StorageError> {
    let path = root.join(DATABASE);
    match path.try_exists() {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(error) => return Err(StorageError::file("cannot read", DATABASE, error)),
    }
    let (database, schema) = Database::open_to_inspect(&path)?;
    let mut found = Inspection {
        schema,
        is_check_complete: true,
        ..Inspection::default()
    };
    (found.left_over_count, found.left_over_bytes) = left_over(root)?;
    found.foreign = foreign(root)?;
    found.user = user(root);
    // Of an empty file, the server makes a database.
    if schema < 1 {
        return Ok(Some(found));
    }
    (found.damage, found.is_check_complete) =
        check::faults_within(&database, CHECK_TIME, FAULT_COUNT_MAX)?;
    if !found.damage.is_empty() {
        return Ok(Some(found));
    }
    found.has_own_database = has_own_database(root, &database.store_id()?)?;
    database.read(|connection| read_rows(connection, &mut found))?;
    if schema >= 2 {
        let objects = Objects::existing(root);
        let mut report = |fault| found.faults.push(fault);
        let fsck = Fsck::new(&database, &objects, Options::default(), None, &mut report);
        let checks_mirror = schema == SCHEMA;
        fsck.run_on_newest(CHECKED_COUNT_MAX, checks_mirror)?;
        found.is_mirror_checked = checks_mirror;
    }
    Ok(Some(found))
}

/// Reads what the rows of the database state.
fn read_rows(connection: &Connection<'_>, found: &mut Inspection) -> Result<(), StorageError> {
    found.tokens = tokens::all_in(connection, found.schema)?;
    let newest_at = "select max(registered_at) from path";
    found.newest_at = connection.row(newest_at, &[], |row| row.get(0))?;
    if found.schema >= 2 {
        let lost = "select count(*) from nar where state = 3";
        let count: i64 = connection.row(lost, &[], |row| row.get(0))?;
        found.lost_count = count.unsigned_abs();
        found.lost = lost_names(connection)?;
        found.newest = newest(connection)?;
    }
    if found.schema == SCHEMA {
        found.caches = caches::all_in(connection, now())?;
    }
    Ok(())
}

/// Returns the process that holds the lock of the storage, without taking the lock: if this process
/// took it, a server that starts at this moment would fail. Returns `None` for a process of another
/// namespace.
fn user(root: &Path) -> Option<u32> {
    let stated = root::stated_user(root)?;
    let inode = fs::metadata(root.join(LOCK)).ok()?.ino();
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // Such as `1: FLOCK  ADVISORY  WRITE 708 08:01:131 0 EOF`. The device is not compared: some
    // file systems state another one than `stat(2)`.
    let is_held = locks.lines().any(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let file = words.get(5).and_then(|file| file.rsplit(':').next());
        words.get(1) == Some(&"FLOCK")
            && words.get(4).and_then(|pid| pid.parse().ok()) == Some(stated)
            && file.and_then(|inode| inode.parse().ok()) == Some(inode)
    });
    is_held.then_some(stated)
}

fn has_own_database(root: &Path, in_database: &str) -> Result<bool, StorageError> {
    match fs::read_to_string(root.join(STORE_ID)) {
        Ok(in_directory) => Ok(in_directory.trim() == in_database),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(StorageError::file("cannot read", STORE_ID, error)),
    }
}

fn newest(connection: &Connection<'_>) -> Result<HashMap<String, StorePath>, StorageError> {
    let query = "select cache.name, hash_part, path.name from cache join path on path.id = \
         (select path.id from path join nar on nar.id = nar_id \
         where cache_id = cache.id and state <> 3 order by path.id desc limit 1)";
    let mut newest = HashMap::new();
    connection.rows(query, &[], |row| {
        let name = base_name(row.get(1)?, row.get(2)?);
        if let Ok(path) = StorePath::from_base_name(&name) {
            newest.insert(row.get(0)?, path);
        }
        Ok(())
    })?;
    Ok(newest)
}

/// Returns the names of some paths whose NAR is recorded as lost.
fn lost_names(connection: &Connection<'_>) -> Result<Vec<String>, StorageError> {
    let query = "select hash_part, name from path \
         where nar_id in (select id from nar where state = 3) order by id limit ?1";
    connection.rows(query, params![LOST_NAME_COUNT_MAX], |row| {
        Ok(base_name(row.get(0)?, row.get(1)?))
    })
}

fn base_name(hash_part: [u8; 20], name: &str) -> String {
    format!("{}-{name}", HashPart::from_bytes(hash_part))
}

/// Finds files that the owner of the storage cannot use, for a limited time. Uploaded files of
/// another user are usable if the owner may read them, such as those of `import --link`.
fn foreign(root: &Path) -> Result<Option<Foreign>, StorageError> {
    let storage = root::owned(root)?;
    let start = Instant::now();
    let mut found: Option<Foreign> = None;
    let mut pending = vec![PathBuf::new()];
    while let Some(directory) = pending.pop() {
        // Skip what was deleted meanwhile, and what cannot be listed, which was found before.
        let Ok(entries) = fs::read_dir(root.join(&directory)) else {
            continue;
        };
        for entry in entries.flatten() {
            let Ok(file) = entry.metadata() else { continue };
            let path = directory.join(entry.file_name());
            let is_readable = root::is_readable(&file, &storage);
            // A new file system has lost+found, which is of no use to the storage.
            let is_usable = (file.is_file() && is_readable && !path.starts_with(root::PRIVATE))
                || path == Path::new("lost+found");
            if file.uid() != storage.uid() && !is_usable {
                let first = found.get_or_insert_with(|| Foreign {
                    count: 0,
                    path: path.clone(),
                    owner: file.uid(),
                    user: storage.uid(),
                    group: storage.gid(),
                });
                first.count += 1;
            }
            if file.is_dir() {
                pending.push(path);
            }
        }
        if start.elapsed() > WALK_TIME {
            break;
        }
    }
    Ok(found)
}

/// Returns the number and the total length of the left-over unfinished files.
fn left_over(root: &Path) -> Result<(usize, u64), StorageError> {
    let failed = |error| StorageError::file("cannot read", TMP, error);
    let entries = match fs::read_dir(root.join(TMP)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, 0)),
        Err(error) => return Err(failed(error)),
    };
    let (mut count, mut bytes) = (0, 0);
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = format!("{TMP}/{}", entry.file_name().display());
        // Skip a file of an upload that has just ended, and parts of pushes, which expire by
        // themselves.
        let Ok(file) = entry.metadata() else { continue };
        if name.starts_with(PART_PREFIX) {
            continue;
        }
        let age = file
            .modified()
            .ok()
            .and_then(|at| SystemTime::now().duration_since(at).ok());
        if age.is_some_and(|age| age > LEFT_OVER_AGE) {
            count += 1;
            bytes += file.len();
        }
    }
    Ok((count, bytes))
}

#[cfg(test)]
mod tests {
    use samovar_nix::StoreDir;

    use super::*;
    use crate::storage::Storage;

    #[test]
    fn a_directory_without_a_database_is_no_storage() {
        let dir = tempfile::tempdir().unwrap();
        assert!(inspect(dir.path()).unwrap().is_none());
        assert!(inspect(&dir.path().join("missing")).unwrap().is_none());
    }

    #[test]
    fn the_state_of_a_storage_is_found_while_it_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(dir.path(), &StoreDir::default()).unwrap();
        let fresh = inspect(dir.path()).unwrap().unwrap();
        assert_eq!(fresh.schema, SCHEMA);
        assert!(fresh.damage.is_empty() && fresh.is_check_complete && fresh.has_own_database);
        assert!(fresh.tokens.is_empty() && fresh.newest_at.is_none());
        let old = SystemTime::now() - LEFT_OVER_AGE - Duration::from_secs(60);
        for (name, time) in [("old", old), ("new", SystemTime::now())] {
            let file = fs::File::create(dir.path().join(TMP).join(name)).unwrap();
            file.set_len(5).unwrap();
            file.set_modified(time).unwrap();
        }
        fs::write(dir.path().join(STORE_ID), "other\n").unwrap();
        let found = inspect(dir.path()).unwrap().unwrap();
        assert_eq!((found.left_over_count, found.left_over_bytes), (1, 5));
        assert!(!found.has_own_database);
        drop(storage);
    }

    #[test]
    fn a_damaged_or_newer_database_is_found() {
        let dir = tempfile::tempdir().unwrap();
        drop(Storage::open(dir.path(), &StoreDir::default()).unwrap());
        let path = dir.path().join(DATABASE);
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection
            .pragma_update(None, "user_version", SCHEMA + 1)
            .unwrap();
        drop(connection);
        let newer = inspect(dir.path());
        assert!(
            matches!(newer, Err(StorageError::SchemaTooNew { .. })),
            "{newer:?}"
        );
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection
            .pragma_update(None, "user_version", SCHEMA)
            .unwrap();
        connection
            .query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))
            .unwrap();
        drop(connection);
        let mut bytes = fs::read(&path).unwrap();
        // Keep the first page, so that the file is still recognised as a database.
        bytes[4096..].fill(0xff);
        fs::write(&path, bytes).unwrap();
        match inspect(dir.path()) {
            Ok(Some(found)) => assert!(!found.damage.is_empty()),
            other => panic!("{other:?}"),
        }
    }
}
