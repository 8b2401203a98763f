//! [`Storage`]: the files, the database and the index of uploaded paths.

mod arriving;
pub mod backup;
pub mod browse;
mod cache;
mod collected;
pub(crate) mod counters;
mod followed;
mod hidden;
pub mod kept;
pub mod logs;
mod lookup;
pub(crate) mod loose;
mod lost;
pub mod mirrored;
pub mod nar;
pub mod narinfo;
mod on_nodes;
mod on_pins;
pub mod pinning;
mod presence;
pub mod readiness;
pub mod realisations;
mod statistics;
mod tokens;
pub mod upkeep;

use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};
use std::time::{Duration, Instant};

use samovar_nix::{HashPart, StoreDir};

use crate::catalog::Catalog;
use crate::error::StorageError;
use crate::gc::plausible::Jumps;
use crate::gc::{Retentions, Rules};
use crate::layout::{CACHE_INFO, DATABASE, LOCK};
use crate::location::Location;
use crate::metadata::{
    CacheId, CacheSummary, Clock, Database, NewPath, Published, Uses, caches, check, paths,
};
use crate::mirror;
use crate::objects::{InBucket, Objects};
use crate::receive::Admission;
use crate::receive::CommitQueue;
use crate::receive::joins::Joins;
use crate::reserve;
use crate::root;
use crate::store_id;
use crate::sys::boot_seconds;
use crate::unmounted::record_place;
use crate::verify::Limits;
use crate::waiting::LendSlot;

pub use self::cache::StoredCache;
pub use self::counters::CollectorStatistics;
pub use self::lost::LostFile;
pub use self::on_nodes::NodeStatistics;
pub use self::statistics::{BucketStatistics, Remote, Statistics};

use self::arriving::ArrivingLens;
use self::collected::Collected;
use self::counters::Counters;
use self::loose::{LooseBytes, NarOfToken};
use self::lost::{OnLost, Place, place_of_nars};
use self::mirrored::Mirror;
use self::on_nodes::SeenNodes;
use self::on_pins::OnPins;
use self::tokens::SeenTokens;

/// Interval at which a new process checks whether the old one has ended.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

/// The storage for uploaded paths: files and a database.
#[derive(Debug)]
pub struct Storage {
    pub(crate) root: PathBuf,
    pub(crate) objects: Objects,
    pub(crate) metadata: Database,
    pub(crate) store_dir: StoreDir,
    pub(crate) limits: Limits,
    pub(crate) admission: Admission,
    pub(crate) rules: Rules,
    pub(crate) queue: CommitQueue<NewPath, Published>,
    pub(crate) nar_queue: CommitQueue<NarOfToken, Result<(), StorageError>>,
    pub(crate) joins: Joins,
    pub(crate) counters: Counters,
    /// What is in memory of the paths.
    pub(crate) catalog: Catalog,
    /// Held while paths are added to or removed from both the database and the index, so that the
    /// two agree.
    changing: Mutex<()>,
    pub(crate) seen_tokens: SeenTokens,
    pub(crate) loose_bytes: Arc<LooseBytes>,
    pub(crate) arriving: ArrivingLens,
    collected: Collected,
    /// Uses of paths that are not written to the database yet.
    pub(crate) uses: Mutex<Uses>,
    pub(crate) retentions: Mutex<Retentions>,
    /// Identifier of the storage in the directory and in the database.
    pub(crate) store_id: String,
    pub(crate) place_of_nars: Place,
    pub(crate) on_lost: OnLost,
    pub(crate) on_pins: OnPins,
    pub(crate) seen_nodes: SeenNodes,
    /// How far the clock has jumped since the storage was opened.
    pub(crate) jumps: Mutex<Jumps>,
    /// What the last backup of this process contains, see [`backup::state`], and the time before
    /// which it is not written again.
    ///
    /// [`backup::state`]: crate::metadata::backup::state
    pub(crate) last_backup: Mutex<Option<(String, Instant)>>,
    mirror: RwLock<Mirror>,
    /// Whether the directory may lack files of the mirror. At the start, it may: an earlier process
    /// may have been killed before it wrote the last ones.
    pub(crate) is_mirror_behind: AtomicBool,
    /// Whether an upload was refused because of the quota of its cache.
    pub(crate) is_over_quota: AtomicBool,
    /// Whether the last probe succeeded.
    pub(crate) is_usable: AtomicBool,
    pub(crate) readiness: readiness::Readiness,
}

impl Storage {
    /// Opens the storage at a location. Creates it if it does not exist. Refuses a directory that
    /// has lost its database, and a binary cache that was not [imported](crate::import::begin).
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn open(
        location: impl Into<Location>,
        store_dir: &StoreDir,
    ) -> Result<Arc<Self>, StorageError> {
        let location = location.into();
        root::prepare(&location)?;
        let metadata = complete_database(&location, None)?;
        Self::of_prepared(&location, metadata, store_dir, Rules::default())
    }

    /// Opens the storage with other rules and another clock, for tests.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn with_rules(
        location: impl Into<Location>,
        store_dir: &StoreDir,
        rules: Rules,
        clock: Clock,
    ) -> Result<Arc<Self>, StorageError> {
        let location = location.into();
        root::prepare(&location)?;
        let metadata = complete_database(&location, Some(clock))?;
        Self::of_prepared(&location, metadata, store_dir, rules)
    }

    /// Opens the storage in a directory whose kind was checked, with this database.
    // Long: it names each field.
    pub(crate) fn of_prepared(
        location: &Location,
        metadata: Database,
        store_dir: &StoreDir,
        rules: Rules,
    ) -> Result<Arc<Self>, StorageError> {
        let root = location.directory();
        let objects = Objects::open(location).map_err(|error| root::explain(root, error))?;
        check::small_tables(&metadata)?;
        store_id::establish(&objects, &metadata)?;
        let own_id = metadata.store_id()?;
        write_cache_info(&objects, store_dir)?;
        let lock = open_lock(root)?;
        let jumps = Jumps::new(metadata.now() - boot_seconds());
        let storage = Arc::new(Self {
            root: root.to_owned(),
            objects: objects.on(&metadata.waits().disk),
            metadata,
            store_dir: store_dir.clone(),
            limits: Limits::default(),
            admission: Admission::default(),
            rules,
            queue: CommitQueue::default(),
            nar_queue: CommitQueue::default(),
            joins: Joins::default(),
            counters: Counters::default(),
            catalog: Catalog::default(),
            changing: Mutex::default(),
            seen_tokens: SeenTokens::default(),
            loose_bytes: Arc::default(),
            arriving: ArrivingLens::default(),
            collected: Collected::default(),
            uses: Mutex::default(),
            retentions: Mutex::default(),
            store_id: own_id,
            place_of_nars: place_of_nars(root),
            on_lost: OnLost::default(),
            on_pins: OnPins::default(),
            seen_nodes: SeenNodes::default(),
            jumps: Mutex::new(jumps),
            last_backup: Mutex::default(),
            mirror: RwLock::default(),
            is_mirror_behind: AtomicBool::new(true),
            is_over_quota: AtomicBool::new(false),
            is_usable: AtomicBool::new(true),
            readiness: readiness::Readiness::default(),
        });
        if storage.metadata.postgres().is_some() {
            storage.catalog.follow();
        }
        if let Some(bucket) = storage.objects.bucket() {
            let lost = Arc::downgrade(&storage);
            bucket.set_on_wrong(move |nar| {
                // Ignore errors: the next reader finds the same.
                lost.upgrade().map(|storage| storage.lose(nar).ok());
            });
        }
        match lock.try_lock() {
            Ok(()) => {
                storage.objects.remove_unfinished()?;
                // Ignore errors: without the reserve, uploads leave space.
                storage.make_reserve().ok();
                // Ignore errors: the files are looked for again.
                record_place(&storage.metadata, &storage.objects).ok();
                storage.load_index(lock)?;
            }
            Err(TryLockError::WouldBlock) => {
                keep_others_out(&lock);
                let waiting = Arc::downgrade(&storage);
                std::thread::Builder::new()
                    .name("storage-lock".to_owned())
                    .spawn(move || wait_for_lock(&waiting, lock))
                    .map_err(|error| StorageError::file("cannot wait for", LOCK, error))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(StorageError::file("cannot lock", LOCK, error));
            }
        }
        // Ignore errors: without its files, the storage is opened, but not usable.
        storage.probe().ok();
        // Ignore errors: the thread that watches the storage repeats this.
        storage.seen_tokens.read(&storage.metadata).ok();
        Ok(storage)
    }

    /// Returns the bucket with the objects, or `None` if they are in the directory.
    #[must_use]
    pub fn bucket(&self) -> Option<&InBucket> {
        self.objects.bucket()
    }

    /// Returns the storage directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.root
    }

    /// Returns whether no other process uses the storage.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.catalog.index().lock.is_some()
    }

    /// Returns the process that has written its ID into the lock file: one that used the storage
    /// alone, and still uses it if [`is_alone`](Self::is_alone) is false. Returns `None` if it is
    /// unknown.
    #[must_use]
    pub fn user(&self) -> Option<u32> {
        root::stated_user(&self.root)
    }

    /// Returns the cache with this name. Creates it if it does not exist. `is_mirrored`: whether
    /// its narinfos are also written beside the objects, which makes the directory or the bucket a
    /// plain binary cache, unless small files share objects. Only one cache of a storage may be
    /// mirrored.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn cache(
        self: &Arc<Self>,
        name: &str,
        is_mirrored: bool,
    ) -> Result<StoredCache, StorageError> {
        let id = caches::add(&self.metadata, name, self.store_dir.as_str())?;
        let cache = StoredCache {
            storage: Arc::clone(self),
            id,
            name: name.to_owned(),
            quota: None,
            hides: None,
        };
        if is_mirrored {
            mirrored::become_mirrored(&cache)?;
        }
        Ok(cache)
    }

    /// Lets the background thread write the files that the mirror lacks.
    pub fn check_mirror(&self) {
        self.is_mirror_behind.store(true, Ordering::Relaxed);
    }

    /// Sets whether another process may publish although this one holds the lock. Must be set
    /// before the new process of a zero-downtime upgrade serves: the clients of the new process may
    /// then request paths that it has published from this process.
    ///
    /// While this is set, all processes hold a shared lock. Each of them takes the exclusive lock
    /// only after all others have ended.
    pub fn set_shared(&self, is_shared: bool) {
        let mut index = self.catalog.index_mut();
        index.is_shared = is_shared;
        let Some(lock) = &index.lock else {
            return;
        };
        let outcome = match is_shared {
            true => lock.try_lock_shared(),
            false => lock.try_lock(),
        };
        // Without the exclusive lock, look-ups query the database, which is correct but slower.
        index.is_shared = is_shared || outcome.is_err();
    }

    /// Returns the caches of the storage with their totals: see [`caches::all`].
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn caches(&self) -> Result<Vec<CacheSummary>, StorageError> {
        caches::all(&self.metadata)
    }

    /// Sets the retention of each cache.
    pub fn set_retentions(&self, retentions: Retentions) {
        *self
            .retentions
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = retentions;
    }

    /// Sets the function that lends the worker slot of a thread that waits for the database for
    /// long. It can be set once.
    pub fn set_lend_slot(&self, lend_slot: LendSlot) {
        if let Some(bucket) = self.objects.bucket() {
            bucket.set_lend_slot(lend_slot);
        }
        self.metadata.waits().set_lend_slot(lend_slot);
    }

    /// Sets the total time that a request waits for the storage, for tests. It can be set once.
    pub fn set_patience(&self, patience: Duration) {
        self.metadata.waits().set_patience(patience);
    }

    fn load_index(&self, lock: File) -> Result<(), StorageError> {
        // The ID of the process is for messages only.
        let pid = format!("{}\n", std::process::id());
        let written = lock
            .set_len(0)
            .and_then(|()| (&lock).write_all(pid.as_bytes()));
        written.ok();
        // If a path is published after this read, its own commit adds it to the index.
        let paths = match self.catalog.is_followed() {
            true => Vec::new(),
            false => paths::hash_parts(&self.metadata)?,
        };
        let mut index = self.catalog.index_mut();
        index.paths.extend(paths);
        if index.is_shared {
            // An upgrade has started while the index was loaded.
            keep_others_out(&lock);
        }
        index.lock = Some(lock);
        Ok(())
    }

    /// Returns which cache is mirrored. That does not change while the guard is held.
    pub(crate) fn mirror(&self) -> RwLockReadGuard<'_, Mirror> {
        self.mirror.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn mirror_mut(&self) -> RwLockWriteGuard<'_, Mirror> {
        self.mirror.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets this process write no files of the mirrored cache: another process is about to start,
    /// which may have another mirrored cache.
    pub fn pause_mirror(&self) {
        self.mirror_mut().pause();
    }

    /// Lets the background thread write these files again: the other process has ended.
    pub fn resume_mirror(&self) {
        self.mirror_mut().make_due();
        self.check_mirror();
    }

    /// Fails if an upload would use the space that was reserved for deleting.
    pub(crate) fn check_room(&self) -> Result<(), StorageError> {
        let checked = reserve::check_room(&self.root);
        checked.map_err(|error| StorageError::file("cannot write", ".", error))
    }

    /// Makes the reserve on the disk again, if there is space.
    pub(crate) fn make_reserve(&self) -> Result<(), StorageError> {
        let made = reserve::make(&self.root);
        made.map_err(|error| StorageError::file("cannot write", ".samovar/reserve", error))
    }

    pub(crate) fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the paths that another process, such as an import, has published to the index in
    /// memory.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn refresh(&self) -> Result<(), StorageError> {
        if self.catalog.is_followed() {
            return Ok(());
        }
        let _changing = self.changing();
        let paths = paths::hash_parts(&self.metadata)?;
        self.catalog.index_mut().paths.extend(paths);
        Ok(())
    }

    /// Removes a path from the index in memory if the database no longer has it, because the
    /// collector of another process has deleted it. Returns whether the path was removed.
    pub(crate) fn forget(&self, cache: CacheId, hash_part: HashPart) -> Result<bool, StorageError> {
        if !self.catalog.index().paths.contains(&(cache, hash_part)) {
            return Ok(false);
        }
        let _changing = self.changing();
        if paths::exists(&self.metadata, cache, hash_part)? {
            return Ok(false);
        }
        self.collected.add((cache, hash_part), self.metadata.now());
        if self.catalog.is_followed() {
            return Ok(false);
        }
        Ok(self.catalog.index_mut().paths.remove(&(cache, hash_part)))
    }

    pub(crate) fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the lock file. Keeps its text, which names the process that holds the lock.
fn open_lock(root: &Path) -> Result<File, StorageError> {
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false);
    options
        .open(root.join(LOCK))
        .map_err(|error| StorageError::file("cannot create", LOCK, error))
}

/// Returns whether a server uses a storage directory.
///
/// # Errors
///
/// [`StorageError::File`] if the lock file cannot be opened or locked.
pub fn is_in_use(root: &Path) -> Result<bool, StorageError> {
    match open_lock(root)?.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(StorageError::file("cannot lock", LOCK, error)),
    }
}

/// Opens the database of a storage. Creates it if the storage is new. Only the owner
/// can access the directory of the database.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn open_database(location: impl Into<Location>) -> Result<Database, StorageError> {
    let location = location.into();
    root::prepare(&location)?;
    complete_database(&location, None)
}

/// Opens the database of a storage whose directory was checked, unless it is being rebuilt.
fn complete_database(location: &Location, clock: Option<Clock>) -> Result<Database, StorageError> {
    let database = database_at(location, clock)?;
    match database.is_rebuilding()? {
        true => Err(StorageError::Rebuilding),
        false => Ok(database),
    }
}

/// Opens the database of a storage whose directory was checked, also while it is being rebuilt.
/// `clock`: another clock than that of the database.
pub(crate) fn database_at(
    location: &Location,
    clock: Option<Clock>,
) -> Result<Database, StorageError> {
    let opened = match (location.database(), clock) {
        (Some(settings), clock) => Database::open_postgres(settings, clock),
        (None, Some(clock)) => Database::with_clock(&location.directory().join(DATABASE), clock),
        (None, None) => Database::open(&location.directory().join(DATABASE)),
    };
    opened.map_err(|error| root::explain(location.directory(), error))
}

/// Waits until the old process has ended, then takes the lock and loads the index.
fn wait_for_lock(storage: &Weak<Storage>, lock: File) {
    loop {
        std::thread::sleep(LOCK_INTERVAL);
        let Some(storage) = storage.upgrade() else {
            return;
        };
        if lock.try_lock().is_ok() {
            // If loading fails, look-ups query the database, which is correct but slower.
            let _still_correct = storage.load_index(lock);
            storage.resume_mirror();
            return;
        }
        keep_others_out(&lock);
    }
}

fn write_cache_info(objects: &Objects, store_dir: &StoreDir) -> Result<(), StorageError> {
    let found = objects.state(CACHE_INFO)?;
    // After a power cut the file may be empty.
    if found.is_none_or(|state| state.len == 0) {
        let text = mirror::cache_info(store_dir);
        objects.write_mirror(CACHE_INFO, text.as_bytes())?;
    }
    Ok(())
}

/// Takes the shared lock, so that no process that starts later gets the exclusive lock before this
/// one. The failed attempt to take the exclusive lock has released the shared one.
fn keep_others_out(lock: &File) {
    // Ignore errors: this fails while another process holds the exclusive lock.
    lock.try_lock_shared().ok();
}
