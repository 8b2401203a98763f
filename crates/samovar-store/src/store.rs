//! What a server asks of a store.

use samovar_nix::{HashPart, PathInfo, StoreDir, StorePath};

use crate::catalog::Catalog;
use crate::closure::{Closure, by_lookups};
use crate::daemon::Daemon;
use crate::database::SchemaRemark;
use crate::error::StoreError;
use crate::log::Log;
use crate::realisation::{Realisation, RealisationId};
use crate::tree::Tree;

/// What is known of one path among many: its row, that there is none, or what is wrong with it.
pub type Looked = Result<Option<PathInfo>, StoreError>;

/// A store that can be served.
///
/// Every method may block for a disk, a lock or another process, but [`Store::store_dir`],
/// [`Store::catalog`] and [`Store::daemon`]. An error says that the store erred; absence is
/// `Ok(None)`.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// The logical store directory: what stands in store paths, wherever the files are.
    fn store_dir(&self) -> &StoreDir;

    /// What the store knows of the valid path with this hash part: row, references and signatures
    /// of one moment.
    ///
    /// A path whose NAR size is unknown counts as absent, because it cannot be served: neither its
    /// narinfo nor its NAR could be announced. Stored signatures that are malformed are left out.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn lookup(&self, hash_part: HashPart) -> Result<Option<PathInfo>, StoreError>;

    /// [`lookup`](Self::lookup) of many, in the order asked, at less cost. Where the store can
    /// tell, all answers are of one moment; a database keeps that moment while this runs, so ask
    /// for some hundred at a time.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`]: one for all, except that a row that makes no sense is the error of its
    /// own path alone.
    fn lookup_many(&self, hash_parts: &[HashPart]) -> Result<Vec<Looked>, StoreError> {
        lookup_each(hash_parts, |hash_part| self.lookup(hash_part))
    }

    /// The closure of a path, of one moment where the store can tell. `None` if the path is absent.
    /// Past `count_max` paths the answer is [`Closure::TooLarge`].
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

    /// The paths registered last, the newest first: at most `count_max`, and only registrations
    /// before `before` where that is given. Rows that cannot be served are left out. A store that
    /// does not count its registrations says nothing.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn newest(&self, before: Option<i64>, count_max: usize) -> Result<Vec<PathInfo>, StoreError> {
        let _unused = (before, count_max);
        Ok(Vec::new())
    }

    /// The files of a path that was valid a moment ago. Nothing is opened yet, and the path may
    /// vanish at any time: see [`TreeError`](crate::TreeError).
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn tree(&self, path: &StorePath) -> Result<Tree, StoreError>;

    /// The build log of a derivation, or of the derivation that made an output. Logs exist whether
    /// or not the paths are valid.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn log(&self, path: &StorePath) -> Result<Option<Log>, StoreError>;

    /// The outputs of a derivation that is valid itself. A store that cannot tell says nothing.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn outputs(&self, derivation: &StorePath) -> Result<Vec<StorePath>, StoreError> {
        let _unused = derivation;
        Ok(Vec::new())
    }

    /// A realisation, as Nix of that generation writes it.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn realisation(&self, id: &RealisationId) -> Result<Option<Realisation>, StoreError>;

    /// The set of valid paths in memory. `None` where the database can never be read; where it
    /// cannot be read for the moment, [`Catalog::check`] says no.
    fn catalog(&self) -> Option<&Catalog>;

    /// Why a look-up would fail at once, as others just did. Never blocks. While that lasts some
    /// are told `None`, to try again.
    fn down(&self) -> Option<StoreError> {
        None
    }

    /// What the operator should know of a store that is served all the same; each thing once.
    /// Never blocks.
    fn take_remark(&self) -> Option<SchemaRemark> {
        None
    }

    /// The daemon of this store, if it may have one: who keeps paths from being collected. Nothing
    /// is connected by asking for it.
    fn daemon(&self) -> Option<&Daemon> {
        None
    }

    /// Whether the store would answer at this moment.
    ///
    /// # Errors
    ///
    /// The [`StoreError`] that a look-up would give.
    fn probe(&self) -> Result<(), StoreError>;

    /// Whether the last [`probe`](Self::probe) found that the daemon answers, because the database
    /// cannot be read. Never blocks.
    fn is_left_to_daemon(&self) -> bool {
        false
    }
}

/// [`Store::lookup_many`] where there is no quicker way.
pub(crate) fn lookup_each(
    hash_parts: &[HashPart],
    lookup: impl Fn(HashPart) -> Looked,
) -> Result<Vec<Looked>, StoreError> {
    hash_parts
        .iter()
        .map(|hash_part| match lookup(*hash_part) {
            Err(error) if !error.is_about_one_path() => Err(error),
            looked => Ok(looked),
        })
        .collect()
}
