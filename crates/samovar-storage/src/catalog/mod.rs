//! [`Catalog`]: what is in memory of the paths in the database: the hash parts of all, and the rows
//! of those that were looked up lately.
//!
//! What is in memory is the truth under one of two conditions:
//!
//! * The database is a file, and this process holds the exclusive lock of the directory. No other
//!   process publishes, and this one changes database and catalog together.
//! * Several nodes share the database, and this one has a [`Lease`]. Then a thread lets the catalog
//!   follow the changes of all nodes, its own ones, too. Nothing else changes it.
//!
//! Otherwise, look-ups ask the database.

mod lease;
mod rows;

use std::collections::HashSet;
use std::fs::File;
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use samovar_nix::HashPart;

use crate::metadata::{CacheId, StoredNar, StoredPath};
use crate::objects::InPack;

pub(crate) use self::lease::Lease;
pub(crate) use self::rows::{Row, Rows};

/// Time without an answer after which the database counts as away.
const AWAY_TIME: Duration = Duration::from_millis(500);

/// What is in memory of the paths.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    index: RwLock<Index>,
    /// The lease, if several nodes share the database.
    lease: OnceLock<Lease>,
    /// Rows of paths. Empty without a lease.
    pub(crate) rows: Rows,
}

/// The hash parts of all paths, in memory.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) paths: HashSet<(CacheId, HashPart)>,
    /// The exclusive lock of the directory. While this process holds it, no other process
    /// publishes, so `paths` is complete. `None` while the old process of a zero-downtime upgrade
    /// runs; then look-ups query the database.
    pub(crate) lock: Option<File>,
    /// Whether another process may publish although `lock` is set: a new process during a
    /// zero-downtime upgrade. Then look-ups query the database.
    pub(crate) is_shared: bool,
}

impl Catalog {
    pub(crate) fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lease of this node, which is made by the first call: from then on, the catalog
    /// is the truth only while the lease lives, and only the thread that follows the changes of all
    /// nodes changes it.
    pub(crate) fn follow(&self) -> &Lease {
        self.lease.get_or_init(Lease::default)
    }

    /// Returns the lease, if several nodes share the database.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.lease.get()
    }

    /// Returns whether another thread than that of the caller keeps the catalog up to date.
    pub(crate) fn is_followed(&self) -> bool {
        self.lease.get().is_some()
    }

    /// Returns a view of this moment, for several questions.
    pub(crate) fn view(&self) -> View<'_> {
        let index = self.index();
        let is_complete = match self.lease.get() {
            Some(lease) => lease.lives(),
            None => index.lock.is_some() && !index.is_shared,
        };
        View { index, is_complete }
    }

    /// Returns a path, if its row is in memory and is the truth.
    pub(crate) fn row(&self, cache: CacheId, hash_part: HashPart) -> Option<StoredPath> {
        match self.lease()?.lives() {
            true => self.rows.find(&(cache, hash_part)),
            false => None,
        }
    }

    /// Returns the NAR whose file has this hash, and its place in a pack, if the row of a path of
    /// the cache that uses it is in memory and is the truth.
    pub(crate) fn nar(
        &self,
        cache: CacheId,
        file_hash: &[u8; 32],
    ) -> Option<(StoredNar, Option<InPack>)> {
        match self.lease()?.lives() {
            true => self.rows.nar(cache, file_hash),
            false => None,
        }
    }

    /// Returns what is in memory for a node whose database is away. `None`: the database may be
    /// there, or the lease has ended `hold_secs` seconds ago. For that long, a path that was there
    /// is not deleted.
    pub(crate) fn held(&self, hold_secs: i64) -> Option<&Rows> {
        let lease = self.lease()?;
        let hold = Duration::from_secs(u64::try_from(hold_secs).unwrap_or(0));
        let is_held = lease.ended_since()? < hold && lease.unanswered_for() >= AWAY_TIME;
        is_held.then_some(&self.rows)
    }
}

/// The hash parts, unchanged while this exists.
pub(crate) struct View<'c> {
    index: RwLockReadGuard<'c, Index>,
    is_complete: bool,
}

impl View<'_> {
    /// Returns whether a path may exist. If `false`, it certainly does not.
    pub(crate) fn may_contain(&self, cache: CacheId, hash_part: HashPart) -> bool {
        !self.is_complete || self.index.paths.contains(&(cache, hash_part))
    }
}
