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
//! [`Catalog::refresh`]: rows with an `id` above the last one seen are added. (`id` is an
//! autoincrement column: it is never used twice.) The last few rows seen before are read again on
//! that occasion. When none of them is there, or one has another path, this is not the database
//! that was read before, and everything is loaded anew.
//!
//! Another file under the same name has other tokens, which nobody reads: a thread looks at the
//! path ten times a second and retires the snapshots of a file that is gone. `refresh` and all
//! look-ups look at the path themselves.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | memory for each path | 24 bytes | 20 are the hash part itself |
//! | until `check` notices a replaced file | 100 ms | a look at it costs more than a `check` |
//! | paths loaded and deleted | as many again as were loaded | then everything is loaded anew |

mod keeper;
mod loader;
mod seed;
mod set;
mod table;

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use samovar_nix::{HashPart, StoreDir};

use crate::database::{Database, Token, TokenSource};
use crate::error::StoreError;
use keeper::Keeper;
use loader::Loader;
use set::Set;

/// The hash parts of a store, shared by all threads.
#[derive(Debug)]
pub struct Catalog {
    database: Arc<Database>,
    current: RwLock<Arc<Snapshot>>,
    loader: Mutex<Loader>,
    /// Ends its thread when dropped.
    _keeper: Keeper,
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
    pub(crate) fn new(database: Arc<Database>, store_dir: StoreDir) -> Result<Self, StoreError> {
        let empty = Snapshot {
            epoch: 0,
            token: None,
            set: Set::empty(),
        };
        Ok(Self {
            _keeper: Keeper::start(Arc::downgrade(&database))?,
            database,
            current: RwLock::new(Arc::new(empty)),
            loader: Mutex::new(Loader::new(store_dir)),
        })
    }

    /// The newest snapshot that somebody loaded, which may be out of date.
    #[must_use]
    pub fn current(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Says whether `local` is the truth at this moment, after putting the newest shared snapshot
    /// in its place if it is not.
    ///
    /// One system call when nothing has changed; never blocks, never runs SQL. After a no, have a
    /// thread that may block call [`Catalog::refresh`].
    #[must_use]
    pub fn check(&self, local: &mut Arc<Snapshot>) -> bool {
        if local.is_truth() {
            return true;
        }
        let Ok(current) = self.current.try_read() else {
            return false;
        };
        if Arc::ptr_eq(&current, local) {
            return false;
        }
        *local = Arc::clone(&current);
        drop(current);
        local.is_truth()
    }

    /// Brings the shared snapshot up to date and returns it. May block for SQL and for other
    /// threads that do the same.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the database cannot be read. Snapshots handed out before are no longer
    /// the truth then; ask again later.
    pub fn refresh(&self) -> Result<Arc<Snapshot>, StoreError> {
        // The loader may be waiting for a database that is locked: do not wait behind it.
        if self.database.is_busy() {
            return Err(StoreError::Busy);
        }
        let mut loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner);
        self.database.unless_busy(|| self.refresh_by(&mut loader))
    }

    fn refresh_by(&self, loader: &mut Loader) -> Result<Arc<Snapshot>, StoreError> {
        let session = self.database.session()?;
        let current = self.current();
        if current.is_truth_of(session.source()) {
            return Ok(current);
        }
        let (token, set) = match loader.load(&session) {
            Ok(loaded) => loaded,
            Err(error) => {
                session.source().retire();
                return Err(error);
            }
        };
        let token = token.map(|token| (Arc::clone(session.source()), token));
        let snapshot = Arc::new(Snapshot {
            epoch: current.epoch + 1,
            token,
            set,
        });
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&snapshot);
        Ok(snapshot)
    }

    /// Looks at the database's file at once, instead of waiting for the thread that does so ten
    /// times a second.
    pub fn inspect(&self) {
        self.database.inspect();
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

    fn is_truth(&self) -> bool {
        self.token
            .as_ref()
            .is_some_and(|(source, token)| source.read().as_ref() == Some(token))
    }

    fn is_truth_of(&self, source: &Arc<TokenSource>) -> bool {
        self.token
            .as_ref()
            .is_some_and(|(own, _)| Arc::ptr_eq(own, source))
            && self.is_truth()
    }
}
