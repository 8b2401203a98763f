//! All hash parts of the store in memory, and whether that is still the truth.
//!
//! # Theory of operation
//!
//! A [`Snapshot`] is a set of hash parts together with the freshness token that was read *before*
//! the rows were: so its content is at least as new as its token says. [`Catalog::check`] reads the
//! token of this moment, with one `pread`. When both are equal nobody has committed in between, and
//! the set is exact in one direction: what is not in it is not in the store. What is in it may have
//! been deleted since it was loaded; ask the store.
//!
//! After a commit the tokens differ, `check` says so, and a worker thread calls
//! [`Catalog::refresh`]. There are three cases:
//!
//! | what was read before | what `refresh` does | time |
//! | --- | --- | --- |
//! | this database | adds the rows with an `id` above the last one seen | 0.1 ms |
//! | nothing or another one, and this is small | reads everything | milliseconds |
//! | nothing or another one, and this is large | has a thread read everything, returns `None` | – |
//!
//! (`id` is an autoincrement column: it is never used twice.) To tell the first case from the
//! others the newest rows that were there last time are read again. When most of them are gone, or
//! one has another path, this is not the database that was read before. Nor is it when a backup may
//! have been written over it, which brings rows back that were deleted: by SQLite, which raises the
//! schema version, or over the file. A checkpoint looks like the latter, and Nix makes one after
//! 40,000 pages.
//!
//! Nobody waits for the thread. While it reads, no snapshot is the truth, and everybody asks the
//! database itself: slower, and just as right. It reads in chunks, each a short transaction, so
//! that writers in rollback mode and checkpoints in WAL mode get their turn; what is committed
//! meanwhile is found afterwards as any other new row. The same thread adds new rows when they are
//! many, and reads everything anew, beside snapshots that go on being brought up to date, when much
//! of the set may have been deleted.
//!
//! Another file under the same name has other tokens, which nobody reads: a second thread looks at
//! the path ten times a second and retires the snapshots of a file that is gone. `refresh` and all
//! look-ups look at the path themselves.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | memory for each path | 24 bytes | 20 are the hash part itself |
//! | the same while everything is read | once more | the set before serves until then |
//! | rows read while somebody waits | 4096 | milliseconds |
//! | until `check` notices a replaced file | 100 ms | a look at it costs more than a `check` |
//! | until a copy over the file is told from commits, in rollback mode | 100 ms | the same |
//! | paths loaded and deleted | as many again as were loaded | then everything is read anew |

mod base;
mod keeper;
mod loader;
mod seed;
mod set;
mod table;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use samovar_nix::{HashPart, StoreDir};

use crate::database::{Database, Session, Token, TokenSource};
use crate::error::StoreError;
use keeper::Keeper;
use loader::Loader;
use set::Set;

/// How often somebody who waits for the thread makes sure that there still is one.
const WAIT: Duration = Duration::from_millis(100);

/// The hash parts of a store, shared by all threads.
#[derive(Debug)]
pub struct Catalog {
    shared: Arc<Shared>,
    /// Ends its thread when dropped.
    _keeper: Keeper,
}

/// What the catalog and the thread that reads everything have in common.
#[derive(Debug)]
struct Shared {
    database: Arc<Database>,
    current: RwLock<Arc<Snapshot>>,
    /// Held while a few rows are read, never while everything is.
    loader: Mutex<Loader>,
    /// Notified when the thread that reads everything ends.
    loaded: Condvar,
    /// How long it took to read all hash parts when that was last done, in nanoseconds; 0: it was
    /// not.
    load_ns: AtomicU64,
    is_dropped: AtomicBool,
}

/// The hash parts at one moment; never changes.
#[derive(Debug)]
pub struct Snapshot {
    /// Counts the states of the store that were loaded. Facts learned in one epoch hold as long as
    /// [`Catalog::check`] says yes to a snapshot of that epoch.
    pub epoch: u64,
    /// What the database looked like just before the rows were read. `None` when that could not be
    /// told: then the snapshot was the truth at one moment, and no check will ever confirm it.
    token: Option<(Arc<TokenSource>, Token)>,
    set: Set,
}

impl Catalog {
    /// A catalog that is still empty: the first [`Catalog::check`] says no.
    pub(crate) fn new(database: Arc<Database>, store_dir: &StoreDir) -> Result<Self, StoreError> {
        let empty = Snapshot {
            epoch: 0,
            token: None,
            set: Set::empty(),
        };
        Ok(Self {
            _keeper: Keeper::start(Arc::downgrade(&database))?,
            shared: Arc::new(Shared {
                database,
                current: RwLock::new(Arc::new(empty)),
                loader: Mutex::new(Loader::new(store_dir)),
                loaded: Condvar::new(),
                load_ns: AtomicU64::new(0),
                is_dropped: AtomicBool::new(false),
            }),
        })
    }

    /// The newest snapshot that somebody loaded, which may be out of date.
    #[must_use]
    pub fn current(&self) -> Arc<Snapshot> {
        self.shared.current()
    }

    /// Says whether `local` is the truth at this moment, after putting the newest shared snapshot
    /// in its place if it is not.
    ///
    /// One system call when nothing has changed; never blocks, never runs SQL. After a no, have a
    /// thread that may block call [`Catalog::refresh`].
    #[must_use]
    pub fn check(&self, local: &mut Arc<Snapshot>) -> bool {
        self.check_with(local, TokenSource::read_at_once)
    }

    /// The same for threads that may wait for a disk: where the database is on a network,
    /// [`check`](Self::check) always says no.
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

    /// Brings the shared snapshot up to date and returns it. May block for SQL and for other
    /// threads that do the same; milliseconds, unless the database is locked.
    ///
    /// `None` when there is too much to read for that: a thread is at it. Ask the store meanwhile.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database cannot be read. Snapshots handed out before are no longer
    /// the truth then; ask again later.
    pub fn refresh(&self) -> Result<Option<Arc<Snapshot>>, StoreError> {
        let database = &self.shared.database;
        let before = self.shared.current();
        let refresh = || match self.shared.loader.try_lock() {
            Ok(mut loader) => loader.refresh(&self.shared),
            Err(_) => {
                let mut loader = self.shared.loader();
                // Who had it waited for a lock in vain: do not do it once more.
                match database.is_busy() {
                    true => Err(StoreError::Busy),
                    false => loader.refresh(&self.shared),
                }
            }
        };
        database.unless_busy_or_known(refresh, |now| {
            now.as_ref().is_some_and(|now| Arc::ptr_eq(now, &before))
        })
    }

    /// Brings the shared snapshot up to date and returns it, however long that takes: seconds for a
    /// store of millions. For those who have nothing to do without it.
    ///
    /// # Errors
    ///
    /// Those of [`Catalog::refresh`].
    pub fn load(&self) -> Result<Arc<Snapshot>, StoreError> {
        loop {
            if let Some(snapshot) = self.refresh()? {
                return Ok(snapshot);
            }
            let mut loader = self.shared.loader();
            while loader.large()? {
                // With a limit: a thread that panicked notifies nobody.
                let waited = self.shared.loaded.wait_timeout(loader, WAIT);
                (loader, _) = waited.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// How long it took to read all hash parts, when that was last done; `None` until it was.
    #[must_use]
    pub fn load_time(&self) -> Option<Duration> {
        let ns = self.shared.load_ns.load(Ordering::Relaxed);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// Looks at the database's file at once, instead of waiting for the thread that does so ten
    /// times a second.
    pub fn inspect(&self) {
        self.shared.database.inspect();
    }
}

impl Drop for Catalog {
    fn drop(&mut self) {
        self.shared.is_dropped.store(true, Ordering::Relaxed);
        let thread = self.shared.loader().take_thread();
        if let Some(thread) = thread {
            // A thread that panicked has said so already.
            let _ended = thread.join();
        }
    }
}

impl Shared {
    fn current(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn loader(&self) -> MutexGuard<'_, Loader> {
        self.loader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All hash parts were read in the time since `started`.
    fn took(&self, started: Instant) {
        let ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.load_ns.store(ns.max(1), Ordering::Relaxed);
    }

    fn is_dropped(&self) -> bool {
        self.is_dropped.load(Ordering::Relaxed)
    }

    /// Makes a set the shared snapshot. The caller holds the loader's lock, or older sets could
    /// come after newer ones.
    fn publish(&self, session: &Arc<Session>, token: Option<Token>, set: Set) -> Arc<Snapshot> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
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
    /// `false`: no path with this hash part is valid in this epoch. `true`: ask the store; the path
    /// may have been deleted.
    #[must_use]
    pub fn may_contain(&self, hash_part: &HashPart) -> bool {
        self.set.contains(hash_part)
    }

    /// How many hash parts there are, deleted ones included.
    #[must_use]
    pub fn path_count(&self) -> usize {
        self.set.key_count()
    }

    /// How many bytes of memory the hash parts take.
    #[must_use]
    pub fn memory_len(&self) -> usize {
        self.set.memory_len()
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
