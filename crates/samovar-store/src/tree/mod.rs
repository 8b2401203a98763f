//! Reads the files of a store path as a NAR.
//!
//! # Modules
//!
//! * `walk`, `descent`, `directory`: traverse the files in NAR order.
//! * `segments`, `nar_reader`, `listing_reader`: turn a traversal into bytes.
//! * `nar_plan`: remembers a traversal in memory, so that a later reader can start at any offset.
//! * `place`: reads one file or one page of a directory, without traversing the tree.
//! * `identity`, `fingerprint`: detect changes by metadata. Comparing contents with the registered
//!   hash is [`verify`](crate::verify()).
//!
//! # Theory of operation
//!
//! [`Walk`] traverses a tree with an explicit stack and a bounded number of descriptors.
//! [`NarReader`] writes the framing and reads contents directly into the caller's buffer: a small
//! file costs `openat`, `fstat`, one read and `close`.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | open directories per walk | 16 | parents are opened again as `..`, and checked |
//! | open files per reader | 64 | only during read-ahead; else 1 |
//! | files open for read-ahead, in sum | a quarter of the descriptors | connections need them |
//! | bytes of read-ahead | 16 MiB | the share of one reader in the page cache |
//! | memory of a directory's entries | 64 KiB | two thousand entries, outside the budget below |
//! | memory above that, all directories | 64 MiB | beyond it they are read in several passes |
//! | memory of all plans | 64 MiB | slow readers hold theirs for long |
//!
//! Depth, number of entries and sizes are unlimited.
//!
//! # Failures
//!
//! A path can be collected while it is read: files disappear, or are shorter than the size already
//! written to the NAR. Nothing is ever padded or skipped: a NAR is complete or ends in a
//! [`TreeError`], after which a server resets the connection.

mod descent;
mod directory;
mod error;
mod fingerprint;
mod identity;
mod listing_reader;
mod nar_plan;
mod nar_reader;
mod place;
mod readahead;
mod reservation;
mod segments;
mod steps;
mod walk;

use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD};

pub use error::TreeError;
pub use fingerprint::Fingerprint;
pub use identity::Identity;
pub use listing_reader::ListingReader;
pub use nar_plan::{NarPlan, PlanError};
pub use nar_reader::{NarReader, NarSink};
pub use place::{EntryKind, Page, PageEntry, PageRequest, Place};
pub(crate) use walk::Step;

use nar_plan::{PlannedWalk, Planner, Replay};
use steps::Steps;
use walk::{Contents, Walk};

use crate::daemon::RemoteNar;

/// The NAR of a valid path: from local files, or from a daemon.
#[derive(Debug)]
pub struct Tree {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Files(PathBuf),
    Daemon(RemoteNar),
}

impl Tree {
    /// Creates the tree of the local files at `path`. Opens nothing yet.
    #[must_use]
    pub fn of_files(path: PathBuf) -> Self {
        Self {
            source: Source::Files(path),
        }
    }

    /// Creates a tree whose NAR a daemon sends.
    pub(crate) fn of_daemon(nar: RemoteNar) -> Self {
        Self {
            source: Source::Daemon(nar),
        }
    }

    /// Returns the path of the files, if they are local.
    #[must_use]
    pub fn path(&self) -> Option<&std::path::Path> {
        match &self.source {
            Source::Files(path) => Some(path),
            Source::Daemon(_) => None,
        }
    }

    /// Returns the identity of the current root, if the files are local.
    ///
    /// # Errors
    ///
    /// [`TreeError::Vanished`] if the root does not exist; any other [`TreeError`].
    pub fn identity(&self) -> Result<Option<Identity>, TreeError> {
        match &self.source {
            Source::Files(path) => {
                let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(Some(Identity::of(&stat)))
            }
            Source::Daemon(_) => Ok(None),
        }
    }

    /// Returns the fingerprint of the files, if they are local. A missing root has one too.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`].
    pub fn fingerprint(&self) -> Result<Option<Fingerprint>, TreeError> {
        match &self.source {
            Source::Files(path) => Fingerprint::of(path).map(Some),
            Source::Daemon(_) => Ok(None),
        }
    }

    /// Returns whether the parent directory has any entries. If it is empty, the store's file
    /// system is not mounted, and a missing file says nothing about the path.
    #[must_use]
    pub fn has_neighbours(&self) -> bool {
        let parent = self.path().and_then(std::path::Path::parent);
        parent.is_none_or(|parent| {
            std::fs::read_dir(parent).is_ok_and(|mut entries| entries.next().is_some())
        })
    }

    /// Opens the root and starts reading the NAR.
    ///
    /// # Errors
    ///
    /// [`TreeError::Vanished`] if the root does not exist; any other [`TreeError`].
    pub fn nar(&self) -> Result<NarReader, TreeError> {
        match &self.source {
            Source::Files(path) => NarReader::of_steps(Steps::Walk(Walk::new(path)), None),
            Source::Daemon(nar) => NarReader::of_daemon(nar),
        }
    }

    /// Finds the file at a path of `names` below the root; the root itself if there are none. Does
    /// not follow links. `None` if the path does not exist.
    ///
    /// # Errors
    ///
    /// [`TreeError::Vanished`] if the root does not exist; [`TreeError::Remote`] if the files are
    /// not local; any other [`TreeError`].
    pub fn place(
        &self,
        names: &[&[u8]],
        wanted: PageRequest<'_>,
    ) -> Result<Option<Place>, TreeError> {
        match &self.source {
            Source::Files(path) => place::find(path, names, wanted),
            Source::Daemon(_) => Err(TreeError::Remote),
        }
    }

    /// Makes a plan of the NAR. Reads no contents of local files; reads the whole NAR of a daemon.
    ///
    /// # Errors
    ///
    /// [`PlanError::TooLarge`] if the plan needs more than `memory_len_max` bytes; any other
    /// [`PlanError`].
    pub fn plan(&self, memory_len_max: usize) -> Result<NarPlan, PlanError> {
        let mut planner = Planner::new(memory_len_max)?;
        let path = match &self.source {
            Source::Files(path) => path,
            Source::Daemon(nar) => {
                let mut reader = nar.open()?;
                while reader.next_piece(|step| planner.step(step))? {}
                return planner.finish(None);
            }
        };
        // Read the identity before the walk: if the root is replaced during the walk, the plan
        // matches neither the old root nor the new one.
        let root = self.identity()?;
        let mut walk = Walk::new(path);
        while let Some(step) = walk.next(Contents::SizesOnly)? {
            planner.step(&step)?;
        }
        planner.finish(root)
    }

    /// Starts the NAR at `offset`. Opens only the local file at that offset; the plan replaces the
    /// walk.
    ///
    /// # Errors
    ///
    /// [`TreeError::Changed`] if the root differs from the plan; [`TreeError::NoSuchOffset`]; any
    /// other [`TreeError`].
    pub fn nar_at(&self, plan: &Arc<NarPlan>, offset: u64) -> Result<NarReader, TreeError> {
        let mut reader = match &self.source {
            Source::Files(path) => {
                let (replay, bookmark) = Replay::seek(plan, offset)?;
                let walk = PlannedWalk::new(replay, path)?;
                NarReader::of_steps(Steps::Plan(walk), bookmark)?
            }
            Source::Daemon(nar) => NarReader::of_daemon(nar)?,
        };
        reader.skip_to(offset)?;
        Ok(reader)
    }

    /// Generates the `.ls` listing, version 1, with the NAR offset of every file. Reads no contents
    /// of local files; reads the whole NAR of a daemon.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`].
    pub fn listing(&self) -> Result<ListingReader, TreeError> {
        Ok(match &self.source {
            Source::Files(path) => ListingReader::of_walk(Walk::new(path)),
            Source::Daemon(nar) => ListingReader::of_daemon(nar.open()?),
        })
    }
}
