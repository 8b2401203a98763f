//! Copies a storage into another one, which may keep its data elsewhere: paths with their NARs,
//! build logs, realisations, pins and tokens.
//!
//! # Theory of operation
//!
//! The caches, with their paths, come first. Paths are read in the order of their rows, in which a
//! path comes after its references. Each NAR is verified while it is copied, as if a client
//! uploaded it, and the paths of a batch are published in one transaction. What the target has is
//! skipped, so that an interrupted copy continues when it is repeated, and a repetition copies what
//! is new. Nothing is deleted in the target, except generations of pins that were removed in the
//! source, and tokens that were revoked there are revoked.
//!
//! The source may be in use meanwhile. What is uploaded into it after a copy needs another copy.

mod logs;
mod paths;

use std::fmt;
use std::sync::Arc;

use samovar_nix::{StoreDir, StorePath};

use crate::error::StorageError;
use crate::import;
use crate::location::Location;
use crate::metadata::transfer::{self, Both};
use crate::metadata::{CacheRow, Database, caches};
use crate::objects::Objects;
use crate::storage::{Storage, StoredCache, open_database};
use crate::store_id;
use crate::token::Token;

/// A storage from which is copied.
#[derive(Debug)]
pub struct Origin {
    metadata: Database,
    objects: Objects,
}

/// What a copy has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of paths in the source.
    pub path_count: u64,
    /// Number of paths that were published.
    pub copied_count: u64,
    /// Number of paths that the target had.
    pub known_count: u64,
    /// Number of paths, logs and generations of pins that were not copied.
    pub failed_count: u64,
    /// Number of NARs that were sent.
    pub nar_count: u64,
    /// Total length of their files, in bytes.
    pub nar_bytes: u64,
    /// Number of build logs that were sent.
    pub log_count: u64,
    /// Number of realisations of the source.
    pub realisation_count: u64,
    /// Number of generations of pins of the source.
    pub pin_count: u64,
    /// Number of tokens of the source.
    pub token_count: u64,
}

/// Something that was not copied. `Display` prints it in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Name of the cache.
    pub cache: String,
    /// A store path, or the name of a build log.
    pub name: String,
    /// The reason, as a part of a sentence.
    pub reason: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "not copied {} of the cache {}: {}",
            self.name, self.cache, self.reason
        )
    }
}

/// What a copy reports.
#[derive(Debug)]
pub enum Report<'a> {
    /// Some more paths are done.
    Progress(&'a Progress),
    /// Something was not copied.
    Fault(&'a Fault),
}

/// Receives the reports of a copy.
pub type Reports<'a> = dyn FnMut(Report<'_>) -> Result<(), StorageError> + 'a;

impl Origin {
    /// Opens a storage to copy it. It may be in use. Refuses objects of another storage.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn open(location: &Location) -> Result<Self, StorageError> {
        let metadata = open_database(location)?;
        let objects = Objects::open(location)?;
        store_id::compare(&objects, &metadata)?;
        Ok(Self { metadata, objects })
    }

    /// Returns the store directory of the paths. `None`: there is no cache yet.
    ///
    /// # Errors
    ///
    /// Any [`StorageError`].
    pub fn store_dir(&self) -> Result<Option<StoreDir>, StorageError> {
        Ok(self
            .caches()?
            .into_iter()
            .map(|cache| cache.store_dir)
            .next())
    }

    fn caches(&self) -> Result<Vec<CacheRow>, StorageError> {
        let mut rows = Vec::new();
        for cache in caches::all(&self.metadata)? {
            // A cache that is being deleted is not copied.
            if !cache.is_hidden {
                rows.extend(caches::find(&self.metadata, &cache.name)?);
            }
        }
        Ok(rows)
    }
}

/// A cache in both storages.
struct Pair {
    name: String,
    ids: Both,
    to: StoredCache,
    /// Whether the source mirrors the cache.
    is_mirrored: bool,
}

/// A copy in progress.
struct Copy<'a, 'r> {
    from: &'a Origin,
    to: &'a Arc<Storage>,
    /// The token with which build logs are recorded.
    token: Token,
    pairs: Vec<Pair>,
    progress: Progress,
    report: &'a mut Reports<'r>,
}

/// Copies a storage into another one, from which it must differ. Reports progress, and what was not
/// copied. Verifies `at_once` NARs at the same time.
///
/// # Errors
///
/// Any [`StorageError`] that concerns the whole storage, and those of `report`.
pub fn run(
    from: &Origin,
    to: &Arc<Storage>,
    at_once: usize,
    report: &mut Reports<'_>,
) -> Result<Progress, StorageError> {
    if from.metadata.store_id()? == to.store_id {
        return Err(StorageError::SameStorage);
    }
    let mut copy = Copy {
        from,
        to,
        token: import::token(to)?,
        pairs: pairs(from, to)?,
        progress: Progress::default(),
        report,
    };
    // Before the paths: who may push to the source may soon push to the target.
    copy.progress.token_count = transfer::tokens(&from.metadata, &to.metadata)? as u64;
    paths::copy(&mut copy, at_once)?;
    copy.rest()?;
    Ok(copy.progress)
}

/// Makes the caches of the source in the target.
fn pairs(from: &Origin, to: &Arc<Storage>) -> Result<Vec<Pair>, StorageError> {
    let mirrored = caches::mirrored(&from.metadata)?;
    let is_mirrored = |row: &CacheRow| mirrored.as_ref().is_some_and(|one| one.id == row.id);
    let of_target = caches::mirrored(&to.metadata)?;
    let pair = |row: CacheRow| {
        let becomes_mirrored =
            is_mirrored(&row) && of_target.as_ref().is_none_or(|one| one.name == row.name);
        let stored = to.cache(&row.name, becomes_mirrored)?;
        let ids = Both {
            from: row.id,
            to: stored.id,
        };
        Ok(Pair {
            is_mirrored: is_mirrored(&row),
            name: row.name,
            to: stored,
            ids,
        })
    };
    from.caches()?.into_iter().map(pair).collect()
}

impl Copy<'_, '_> {
    /// Copies what belongs to the paths.
    fn rest(&mut self) -> Result<(), StorageError> {
        let databases = (&self.from.metadata, &self.to.metadata);
        for at in 0..self.pairs.len() {
            logs::copy(self, at)?;
            let Pair { name, ids, .. } = &self.pairs[at];
            self.progress.realisation_count += transfer::realisations(databases, *ids)? as u64;
            let (copied, missing) = transfer::pins(databases, *ids)?;
            self.progress.pin_count += copied as u64;
            if missing > 0 {
                let cache = name.clone();
                let name = format!("{missing} generations of pins");
                self.fault(cache, name, "their paths were not copied".to_owned())?;
            }
        }
        // The narinfos, realisations and logs that the mirror of the target lacks.
        self.to.check_mirror();
        Ok(())
    }

    fn fault(&mut self, cache: String, name: String, reason: String) -> Result<(), StorageError> {
        self.progress.failed_count += 1;
        let fault = Fault {
            cache,
            name,
            reason,
        };
        (self.report)(Report::Fault(&fault))
    }

    fn path_fault(
        &mut self,
        at: usize,
        path: &StorePath,
        reason: impl fmt::Display,
    ) -> Result<(), StorageError> {
        let name = path.full(&self.to.store_dir);
        self.fault(self.pairs[at].name.clone(), name, reason.to_string())
    }
}
