//! Reads the files of a store path as a NAR.
//!
//! # Modules
//!
//! * `walk`, `descent`, `directory`: traverse the files in NAR order.
//! * `segments`, `nar_reader`, `listing_reader`: turn a traversal into bytes.
//! * `nar_plan`: remembers a traversal in memory, so that a later reader can start at any offset.
//! * `place`: reads one file or one page of a directory, without traversing the tree.
//! * `scan`: reads the metadata of all entries, and goes on past those that cannot be read.
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
//! A path can be garbage-collected while it is read: files disappear, or are shorter than the size
//! already written to the NAR. Nothing is ever padded or skipped: a NAR is complete or ends in a
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
mod scan;
mod segments;
mod steps;
mod walk;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD};

pub use error::TreeError;
pub use fingerprint::Fingerprint;
pub use identity::Identity;
pub use listing_reader::ListingReader;
pub use nar_plan::{NarPlan, PlanError};
pub use nar_reader::{NarReader, NarSink};
pub use place::{EntryKind, Page, PageEntry, PageRequest, Place};
pub use scan::{EntryType, Metadata, Scan, Visit};

use nar_plan::{PlannedWalk, Planner, Replay};
use steps::Steps;
use walk::{Contents, Walk};

/// The files of a store path.
#[derive(Debug)]
pub struct Tree {
    path: PathBuf,
}

impl Tree {
    /// Creates the tree of the files at `path`. Opens nothing yet.
    #[must_use]
    pub fn of_files(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the path of the files.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the identity of the current root.
    ///
    /// # Errors
    ///
    /// [`TreeError::Vanished`] if the root does not exist; any other [`TreeError`].
    pub fn identity(&self) -> Result<Identity, TreeError> {
        let stat = rustix::fs::statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Identity::of(&stat))
    }

    /// Returns the fingerprint of the files. A missing root has one too.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`].
    pub fn fingerprint(&self) -> Result<Fingerprint, TreeError> {
        Fingerprint::of(&self.path)
    }

    /// Returns whether the parent directory has any entries. If it is empty, the store's file
    /// system is not mounted, and a missing file says nothing about the path.
    #[must_use]
    pub fn has_neighbours(&self) -> bool {
        self.path.parent().is_none_or(|parent| {
            std::fs::read_dir(parent).is_ok_and(|mut entries| entries.next().is_some())
        })
    }

    /// Opens the root and starts reading the NAR.
    ///
    /// # Errors
    ///
    /// [`TreeError::Vanished`] if the root does not exist; any other [`TreeError`].
    pub fn nar(&self) -> Result<NarReader, TreeError> {
        NarReader::of_steps(Steps::Walk(Walk::new(&self.path)), None)
    }

    /// Finds the file at a path of `names` below the root; the root itself if there are none. Does
    /// not follow links. `None` if the path does not exist.
    ///
    /// # Errors
    ///
    /// [`TreeError::Vanished`] if the root does not exist; any other [`TreeError`].
    pub fn place(&self, names: &[&[u8]], wanted: PageRequest) -> Result<Option<Place>, TreeError> {
        place::find(&self.path, names, wanted)
    }

    /// Makes a plan of the NAR. Reads no contents of files.
    ///
    /// # Errors
    ///
    /// [`PlanError::TooLarge`] if the plan needs more than `memory_len_max` bytes; any other
    /// [`PlanError`].
    pub fn plan(&self, memory_len_max: usize) -> Result<NarPlan, PlanError> {
        let mut planner = Planner::new(memory_len_max)?;
        // Read the identity before the walk: if the root is replaced during the walk, the plan
        // matches neither the old root nor the new one.
        let root = self.identity()?;
        let mut walk = Walk::new(&self.path);
        while let Some(step) = walk.next(Contents::SizesOnly)? {
            planner.step(&step)?;
        }
        planner.finish(root)
    }

    /// Starts the NAR at `offset`. Opens only the file at that offset; the plan replaces the walk.
    ///
    /// # Errors
    ///
    /// [`TreeError::Changed`] if the root differs from the plan; [`TreeError::NoSuchOffset`]; any
    /// other [`TreeError`].
    pub fn nar_at(&self, plan: &Arc<NarPlan>, offset: u64) -> Result<NarReader, TreeError> {
        let (replay, bookmark) = Replay::seek(plan, offset)?;
        let walk = PlannedWalk::new(replay, &self.path)?;
        let mut reader = NarReader::of_steps(Steps::Plan(walk), bookmark)?;
        reader.skip_to(offset)?;
        Ok(reader)
    }

    /// Generates the `.ls` listing, version 1, with the NAR offset of every file. Reads no contents
    /// of files.
    #[must_use]
    pub fn listing(&self) -> ListingReader {
        ListingReader::of_walk(Walk::new(&self.path))
    }
}
