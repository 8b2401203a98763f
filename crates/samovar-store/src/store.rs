//! The [`Store`] trait: the interface between a store and a server.
//!
//! # Adding a backend
//!
//! `Store` separates a server from [`LocalStore`](crate::LocalStore), and from
//! [`EmptyStore`](crate::EmptyStore), which has no paths. But its methods return concrete types. So
//! a backend of another kind must also
//!
//! * return a [`Tree`], which reads local files;
//! * return a [`Log`], which reads an open [`File`](std::fs::File);
//! * return `None` from [`Store::catalog`], because a [`Catalog`] reads SQLite. A server then asks
//!   the store about every hash part;
//! * return `None` from [`Store::daemon`] unless a Nix daemon manages the store's GC roots;
//! * map its failures to [`StoreError`], which is `Copy` and holds no text from outside;
//! * be reachable by a URI: `uri/mod.rs` and `open.rs`.
//!
//! Methods without a default implementation are required. The default implementations are correct
//! but slower, or report nothing.

use samovar_nix::{HashPart, PathInfo, StoreDir, StorePath};

use crate::catalog::Catalog;
use crate::closure::{Closure, by_lookups, lookup_each};
use crate::daemon::Daemon;
use crate::database::{Scanned, SchemaWarning};
use crate::error::{LookupResult, StoreError};
use crate::log::Log;
use crate::realisation::{Realisation, RealisationId};
use crate::tree::Tree;

/// A store that can be served.
///
/// Every method may block on a disk, a lock or another process, except [`Store::store_dir`],
/// [`Store::catalog`], [`Store::daemon`], [`Store::down`], [`Store::take_schema_warning`] and
/// [`Store::is_left_to_daemon`]. An error means that the store failed; absence is `Ok(None)`.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Returns the logical store directory: the prefix of store paths, wherever the files are.
    fn store_dir(&self) -> &StoreDir;

    /// Looks up the valid path with this hash part; returns `None` if it is absent. Row, references
    /// and signatures are read in one transaction.
    ///
    /// A path of unknown NAR size counts as absent: neither its narinfo nor its NAR can be served.
    /// Malformed stored signatures are left out.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn lookup(&self, hash_part: HashPart) -> Result<Option<PathInfo>, StoreError>;

    /// Looks up many hash parts, in order, at less cost than one [`lookup`](Self::lookup) each. A
    /// database answers all of them in one read transaction, which delays WAL checkpoints: pass a
    /// few hundred at a time.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`]. A malformed row fails its own look-up only.
    fn lookup_many(&self, hash_parts: &[HashPart]) -> Result<Vec<LookupResult>, StoreError> {
        lookup_each(hash_parts, |hash_part| self.lookup(hash_part))
    }

    /// Finds the closure of a path; `None` if the path is absent. A database reads it in one
    /// transaction. A closure of more than `count_max` paths gives [`Closure::TooLarge`].
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn closure(
        &self,
        hash_part: HashPart,
        count_max: usize,
    ) -> Result<Option<Closure>, StoreError> {
        by_lookups(hash_part, count_max, |hash_part| self.lookup(hash_part))
    }

    /// Returns the most recently registered paths, newest first: at most `count_max`, and only
    /// those with a registration number below `before` if it is given. Leaves out rows that cannot
    /// be served. Empty for a store without registration numbers.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn newest(&self, before: Option<i64>, count_max: usize) -> Result<Vec<PathInfo>, StoreError> {
        let _unused = (before, count_max);
        Ok(Vec::new())
    }

    /// Reads the next few thousand paths in the order of their base names, and returns those whose
    /// base name `accepts` accepts. `after` is exclusive and need not exist: any text, empty for
    /// the first path. To read all paths, pass [`Scanned::next`] until it is `None`. Each call is
    /// a transaction of its own, so a path that is added or deleted meanwhile may be missing.
    /// Empty for a store that cannot list its paths.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn scan(&self, after: &str, accepts: &dyn Fn(&str) -> bool) -> Result<Scanned, StoreError> {
        let _unused = (after, accepts);
        Ok(Scanned::default())
    }

    /// Returns other paths that refer to a path, at most `count_max`, in no particular order. Empty
    /// for a store without registration numbers.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn referrers(&self, info: &PathInfo, count_max: usize) -> Result<Vec<StorePath>, StoreError> {
        let _unused = (info, count_max);
        Ok(Vec::new())
    }

    /// Returns the files of a path that was valid a moment ago. Opens nothing yet; the path may be
    /// garbage-collected at any time, see [`TreeError`](crate::TreeError).
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn tree(&self, path: &StorePath) -> Result<Tree, StoreError>;

    /// Opens the build log of a derivation, or of the derivation that built an output; returns
    /// `None` if there is no log. Logs exist whether or not the paths are valid.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn log(&self, path: &StorePath) -> Result<Option<Log>, StoreError>;

    /// Returns the outputs of a valid derivation. Empty for a store that does not record them.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn outputs(&self, derivation: &StorePath) -> Result<Vec<StorePath>, StoreError> {
        let _unused = derivation;
        Ok(Vec::new())
    }

    /// Returns a realisation, as JSON of the Nix generation that `id` belongs to; `None` if the
    /// store does not have it.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn realisation(&self, id: &RealisationId) -> Result<Option<Realisation>, StoreError>;

    /// Returns the in-memory set of valid hash parts. `None` if the backend has no database; while
    /// a database is unreadable, [`Catalog::check`] reports the set as stale.
    fn catalog(&self) -> Option<&Catalog>;

    /// Returns the error with which a look-up would fail at once because the store is known to be
    /// unavailable. Never blocks. During an outage some calls return `None`, so that their callers
    /// retry.
    fn down(&self) -> Option<StoreError> {
        None
    }

    /// Takes a warning about a store that is served nevertheless; `None` if there is no new one.
    /// Each warning is returned once. Never blocks.
    fn take_schema_warning(&self) -> Option<SchemaWarning> {
        None
    }

    /// Returns whether the database is in WAL mode; `None` for a store without a database.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn uses_wal(&self) -> Result<Option<bool>, StoreError> {
        Ok(None)
    }

    /// Returns a handle for the daemon that can create temporary GC roots in this store; `None` if
    /// there is no such daemon. Does not connect.
    fn daemon(&self) -> Option<&Daemon> {
        None
    }

    /// Checks that the store is available now.
    ///
    /// # Errors
    ///
    /// The [`StoreError`] that a look-up would return.
    fn probe(&self) -> Result<(), StoreError>;

    /// Returns whether the last [`probe`](Self::probe) found the database unreadable and used the
    /// daemon in its place. Never blocks.
    fn is_left_to_daemon(&self) -> bool {
        false
    }

    /// Returns whether this stands for a machine without a store, and so never has a path.
    fn is_none(&self) -> bool {
        false
    }
}
