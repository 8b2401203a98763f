//! What a server asks of a store.

use samovar_nix::{HashPart, PathInfo, StoreDir, StorePath};

use crate::catalog::Catalog;
use crate::error::StoreError;
use crate::log::Log;
use crate::realisation::RealisationId;
use crate::tree::Tree;

/// A store that can be served.
///
/// Every method may block for a disk, a lock or another process, but [`Store::store_dir`] and
/// [`Store::catalog`]. An error says that the store erred; absence is `Ok(None)`.
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

    /// The JSON document of a realisation, as Nix of that generation writes it.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn realisation(&self, id: &RealisationId) -> Result<Option<String>, StoreError>;

    /// The set of valid paths in memory. `None` where the database can never be read; where it
    /// cannot be read for the moment, [`Catalog::check`] says no.
    fn catalog(&self) -> Option<&Catalog>;

    /// Whether the store would answer at this moment.
    ///
    /// # Errors
    ///
    /// The [`StoreError`] that a look-up would give.
    fn probe(&self) -> Result<(), StoreError>;
}
