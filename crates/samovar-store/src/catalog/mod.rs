//! [`Catalog`]: all hash parts of the store in memory, with a check for freshness.
//!
//! # Theory of operation
//!
//! A [`Snapshot`] is a set of hash parts together with the freshness token read *before* the rows,
//! so the set is at least as new as the token. [`Catalog::check`] reads the current token with one
//! `pread`. If both are equal, no commit has happened in between, and the set is exact in one
//! direction: a hash part that is not in it is not in the store. A hash part in it may have been
//! deleted since; ask the store.
//!
//! After a commit the tokens differ, `check` returns `false`, and a worker thread calls
//! [`Catalog::refresh`]. There are three cases:
//!
//! | state | action of `refresh` | time |
//! | --- | --- | --- |
//! | same database | adds the rows with an `id` above the last one seen | 0.1 ms |
//! | nothing loaded or another database, small | reads everything | milliseconds |
//! | nothing loaded or another database, large | returns `None`; from the hundredth call on, starts a background load | – |
//!
//! (`id` is an autoincrement column: values are never reused.) The first case is recognised by
//! reading the newest rows of the last update again. If most of them are gone, or one has another
//! path, the database is another one. The database also counts as another one if a backup may have
//! been written over it, because a backup restores deleted rows: by SQLite's backup API, which
//! raises the schema version, or by copying over the file. A checkpoint cannot be distinguished
//! from such a copy; Nix makes one every 40,000 pages.
//!
//! Nothing is loaded before requests need the set: a small database at the first request, a large
//! one at the hundredth, because a load costs as much as many queries. Background threads that can
//! do without the set call [`Catalog::renew`] or [`Catalog::version`], which do not count as
//! requests.
//!
//! No request waits for a background load. Until it ends no snapshot is current, and every look-up
//! queries the database: slower, and equally correct. The load reads in chunks, each a short
//! transaction, so that writers in rollback mode and checkpoints in WAL mode can proceed; it adds
//! the rows that were committed during the load last. A background load also adds new rows if they
//! are many, and replaces a set of mostly deleted paths.
//!
//! A file that replaces the database has tokens of its own. A second thread checks the path ten
//! times per second, once per second before the first load, and retires the snapshots of a replaced
//! file. `refresh` and all look-ups check the path themselves.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | memory per path | 24 bytes | 20 of them are the hash part |
//! | memory during a full load | twice that | the previous set serves until the end |
//! | rows read while a caller waits | 4096 | milliseconds |
//! | delay until `check` notices a replaced file | 100 ms | `stat` costs more than `check` |
//! | delay until a copy over the file is noticed, in rollback mode | 100 ms | as in the row above |
//! | deleted paths in the set | about half of the set | then everything is reloaded |

mod base;
mod keeper;
mod loader;
mod seed;
mod set;
mod table;
mod version;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use samovar_nix::{HashPart, StoreDir};

use crate::database::{Database, Session, Token, TokenSource};
use crate::error::StoreError;
use crate::sync::Locked;
use keeper::{Keeper, Signal};
use loader::{Loader, Purpose};
use set::Set;
pub use version::Version;

/// Interval at which a caller that waits for a background load checks that its thread runs.
const WAIT: Duration = Duration::from_millis(100);

/// The hash parts of a store, shared by all threads.
#[derive(Debug)]
pub struct Catalog {
    shared: Arc<Shared>,
    /// A thread that watches the database file; dropping this value stops the thread.
    _keeper: Keeper,
}

/// State shared by the catalog and its background load.
#[derive(Debug)]
struct Shared {
    database: Arc<Database>,
    keeper: Sender<Signal>,
    current: RwLock<Arc<Snapshot>>,
    /// State of loading. The mutex is held while a few rows are read, never during a full load.
    loader: Mutex<Loader>,
    /// Notified when the background load ends.
    loaded: Condvar,
    /// Duration of the last full load in nanoseconds; 0 before the first.
    load_ns: AtomicU64,
    is_dropped: AtomicBool,
}

/// An immutable set of hash parts.
#[derive(Debug)]
pub struct Snapshot {
    /// Number of this state of the store. A fact learned in an epoch stays valid as long as
    /// [`Catalog::check`] confirms a snapshot of that epoch.
    pub epoch: u64,
    /// The token read just before the rows. `None` if none was available: [`Catalog::check`] then
    /// never confirms this snapshot.
    token: Option<(Arc<TokenSource>, Token)>,
    set: Set,
}

impl Catalog {
    /// Creates an empty catalog, whose first [`Catalog::check`] returns `false`.
    pub(crate) fn new(database: Arc<Database>, store_dir: &StoreDir) -> Result<Self, StoreError> {
        let empty = Snapshot {
            epoch: 0,
            token: None,
            set: Set::empty(),
        };
        let keeper = Keeper::start(&database)?;
        let shared = Arc::new(Shared {
            database,
            keeper: keeper.signals(),
            current: RwLock::new(Arc::new(empty)),
            loader: Mutex::new(Loader::new(store_dir)),
            loaded: Condvar::new(),
            load_ns: AtomicU64::new(0),
            is_dropped: AtomicBool::new(false),
        });
        Ok(Self {
            shared,
            _keeper: keeper,
        })
    }

    /// Returns the last published snapshot, which may be out of date.
    #[must_use]
    pub fn current(&self) -> Arc<Snapshot> {
        self.shared.current()
    }

    /// Returns whether `local` is current, after replacing it by the newest snapshot if it was out
    /// of date.
    ///
    /// Costs one system call if nothing has changed; never blocks, never runs SQL. After `false`,
    /// call [`Catalog::refresh`] on a thread that may block.
    #[must_use]
    pub fn check(&self, local: &mut Arc<Snapshot>) -> bool {
        self.check_with(local, TokenSource::read_at_once)
    }

    /// Like [`check`](Self::check), for threads that may wait for a disk. For a database on a
    /// network file system `check` always returns `false`.
    #[must_use]
    pub fn check_patiently(&self, local: &mut Arc<Snapshot>) -> bool {
        self.check_with(local, TokenSource::read)
    }

    fn check_with(
        &self,
        local: &mut Arc<Snapshot>,
        read: impl Fn(&TokenSource) -> Option<Token>,
    ) -> bool {
        if local.is_truth(&read) {
            return true;
        }
        let Ok(current) = self.shared.current.try_read() else {
            return false;
        };
        if Arc::ptr_eq(&current, local) {
            return false;
        }
        *local = Arc::clone(&current);
        drop(current);
        local.is_truth(&read)
    }

    /// Updates the shared snapshot and returns it. May block on SQL, or on another thread that
    /// updates it: for milliseconds, unless the database is locked.
    ///
    /// Returns `None` if there is too much to read. A background load is then running, or starts
    /// after some more calls, and until it ends look-ups must query the store.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the database cannot be read. Earlier snapshots are then no longer current.
    pub fn refresh(&self) -> Result<Option<Arc<Snapshot>>, StoreError> {
        self.refresh_for(Purpose::Request)
    }

    fn refresh_for(&self, purpose: Purpose) -> Result<Option<Arc<Snapshot>>, StoreError> {
        let database = &self.shared.database;
        let before = self.shared.current();
        let refresh = || match self.shared.loader.try_lock() {
            Ok(mut loader) => loader.refresh(&self.shared, purpose),
            Err(_) => {
                let mut loader = self.shared.loader.locked();
                // The thread that held this mutex before has timed out on SQLite's lock of the
                // database: do not wait for that lock again.
                if database.is_busy() {
                    Err(StoreError::Busy)
                } else {
                    loader.refresh(&self.shared, purpose)
                }
            }
        };
        database.guard_unless(refresh, |now| {
            now.as_ref().is_none_or(|now| Arc::ptr_eq(now, &before))
        })
    }

    /// Like [`refresh`](Self::refresh), but never starts the first load. For background work: an
    /// idle server must not load millions of hash parts.
    ///
    /// # Errors
    ///
    /// Those of [`Catalog::refresh`].
    pub fn renew(&self) -> Result<Option<Arc<Snapshot>>, StoreError> {
        self.refresh_for(Purpose::Background)
    }

    /// Returns the version of the store; `None` if it cannot be determined. Loads nothing, but may
    /// block on SQL as [`refresh`](Self::refresh) does.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        Version::of(&self.shared.database)
    }

    /// Updates the shared snapshot and returns it. If a background load is necessary, waits for it:
    /// seconds for a store of millions of paths. For callers that cannot proceed without the set.
    ///
    /// # Errors
    ///
    /// Those of [`Catalog::refresh`].
    pub fn load(&self) -> Result<Arc<Snapshot>, StoreError> {
        loop {
            if let Some(snapshot) = self.refresh_for(Purpose::Set)? {
                return Ok(snapshot);
            }
            let mut loader = self.shared.loader.locked();
            while loader.is_loading()? {
                // The wait has a timeout in case the background thread panics before it notifies.
                let waited = self.shared.loaded.wait_timeout(loader, WAIT);
                (loader, _) = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Returns the duration of the last full load; `None` before the first.
    #[must_use]
    pub fn load_time(&self) -> Option<Duration> {
        let ns = self.shared.load_ns.load(Ordering::Relaxed);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// Checks the database file now, instead of waiting for the periodic check.
    pub fn inspect(&self) {
        self.shared.database.recheck();
    }
}

impl Drop for Catalog {
    fn drop(&mut self) {
        self.shared.is_dropped.store(true, Ordering::Relaxed);
        let thread = self.shared.loader.locked().take_thread();
        if let Some(thread) = thread {
            // If the thread has panicked, the panic hook has already reported that.
            let _ended = thread.join();
        }
    }
}

impl Shared {
    fn current(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records the duration of a full load.
    fn record_load_time(&self, started: Instant) {
        let ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.load_ns.store(ns.max(1), Ordering::Relaxed);
    }

    fn is_dropped(&self) -> bool {
        self.is_dropped.load(Ordering::Relaxed)
    }

    /// Publishes a set as the shared snapshot. The caller holds the loader's lock, so that sets are
    /// published in order.
    fn publish(&self, session: &Arc<Session>, token: Option<Token>, set: Set) -> Arc<Snapshot> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if !current.is_loaded() {
            // The thread ends only after this catalog.
            self.keeper.send(Signal::Loaded).ok();
        }
        let snapshot = Arc::new(Snapshot {
            epoch: current.epoch + 1,
            token: token.map(|token| (Arc::clone(session.source()), token)),
            set,
        });
        *current = Arc::clone(&snapshot);
        snapshot
    }
}

impl Snapshot {
    /// Returns whether a path with this hash part may be valid. `false` is certain for this epoch;
    /// after `true` ask the store, because the path may have been deleted.
    #[must_use]
    pub fn may_contain(&self, hash_part: &HashPart) -> bool {
        self.set.contains(hash_part)
    }

    /// Returns the number of hash parts, including the hash parts of deleted paths.
    #[must_use]
    pub fn path_count(&self) -> usize {
        self.set.key_count()
    }

    /// Returns the memory used by the hash parts, in bytes.
    #[must_use]
    pub fn memory_len(&self) -> usize {
        self.set.memory_len()
    }

    /// Returns whether the hash parts have been read. Otherwise this is the empty set of a new
    /// catalog.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.epoch > 0
    }

    #[inline]
    fn is_truth(&self, read: impl Fn(&TokenSource) -> Option<Token>) -> bool {
        self.token
            .as_ref()
            .is_some_and(|(source, token)| read(source).as_ref() == Some(token))
    }

    fn is_truth_of(&self, source: &Arc<TokenSource>) -> bool {
        self.token
            .as_ref()
            .is_some_and(|(own, _)| Arc::ptr_eq(own, source))
            && self.is_truth(TokenSource::read)
    }
}
