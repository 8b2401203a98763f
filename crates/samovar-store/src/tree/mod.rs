//! The files of a store path, and the NAR they make.
//!
//! # Theory of operation
//!
//! [`Walk`] goes through a tree with a stack of its own, however deep it is, and holds a bounded
//! number of descriptors. [`NarReader`] frames what the walk finds and reads contents straight into
//! the caller's buffer: a small file costs `openat`, `fstat`, one read and `close`, nothing else.
//!
//! A [`NarPlan`] is what a walk found out. A reader that has one begins anywhere in the NAR.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | directories open at once | 16 | parents are found again by `..`, and checked |
//! | files open at once | 64 | only while contents come from the disk; else 1 |
//! | files all readers open ahead | a quarter of the descriptors | connections need them, too |
//! | bytes asked of the disk ahead | 16 MiB | what one reader may put into the page cache |
//! | memory of a directory's entries | 64 KiB | two thousand; below, nobody else has to ask |
//! | what all directories take above that | 64 MiB | past it they are read in parts |
//! | memory of all plans | 64 MiB | readers are many, and slow ones hold theirs |
//!
//! Depth, the number of entries and sizes have no limits.
//!
//! # What can go wrong
//!
//! A path can be collected while it is read. Files are gone then, at any point; or one is shorter
//! than it was when its size was written into the NAR. Nothing is ever padded or skipped: a NAR is
//! whole or ends in a [`TreeError`], which says what to do with the connection.

mod ahead;
mod descent;
mod directory;
mod error;
mod fingerprint;
mod identity;
mod listing_reader;
mod nar_plan;
mod nar_reader;
mod place;
mod reservation;
mod segments;
mod steps;
mod walk;

use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD};
use samovar_nix::nar::{Discard, Encoder};

pub use directory::directories_read_in_parts;
pub use error::TreeError;
pub use fingerprint::Fingerprint;
pub use identity::Identity;
pub use listing_reader::ListingReader;
pub use nar_plan::{NarPlan, PlanError};
pub use nar_reader::{NarReader, NarSink};
pub use place::{EntryKind, Page, PageEntry, PageWanted, Place};
pub use walk::{Contents, Step, Walk};

use nar_plan::{PlannedWalk, Planner, Replay};
use steps::Steps;

use crate::daemon::RemoteNar;

/// A valid path's files, or another source of its NAR.
#[derive(Debug)]
pub struct Tree {
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Files(PathBuf),
    Daemon(RemoteNar),
}

impl Tree {
    /// The tree at a path of this machine. Nothing is opened yet.
    #[must_use]
    pub fn of_files(path: PathBuf) -> Self {
        Self {
            origin: Origin::Files(path),
        }
    }

    /// The tree that a daemon sends as a NAR.
    pub(crate) fn of_daemon(nar: RemoteNar) -> Self {
        Self {
            origin: Origin::Daemon(nar),
        }
    }

    /// Where the files are, if they are on this machine.
    #[must_use]
    pub fn path(&self) -> Option<&std::path::Path> {
        match &self.origin {
            Origin::Files(path) => Some(path),
            Origin::Daemon(_) => None,
        }
    }

    /// Which root there is at this moment, if the files are on this machine.
    ///
    /// # Errors
    ///
    /// [`TreeError::Vanished`] when there is nothing; any other [`TreeError`].
    pub fn identity(&self) -> Result<Option<Identity>, TreeError> {
        match &self.origin {
            Origin::Files(path) => {
                let stat = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(Some(Identity::of(&stat)))
            }
            Origin::Daemon(_) => Ok(None),
        }
    }

    /// What its files look like from outside, if they are on this machine: that of nothing where
    /// nothing is.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`].
    pub fn fingerprint(&self) -> Result<Option<Fingerprint>, TreeError> {
        match &self.origin {
            Origin::Files(path) => Fingerprint::of(path).map(Some),
            Origin::Daemon(_) => Ok(None),
        }
    }

    /// Whether the directory that holds it holds anything. An empty one is where the store's file
    /// system should be and is not, and then what is missing says nothing about a path.
    #[must_use]
    pub fn has_neighbours(&self) -> bool {
        let parent = self.path().and_then(std::path::Path::parent);
        parent.is_none_or(|parent| {
            std::fs::read_dir(parent).is_ok_and(|mut entries| entries.next().is_some())
        })
    }

    /// Starts the NAR: opens the root.
    ///
    /// # Errors
    ///
    /// [`TreeError::Vanished`] when there is nothing; any other [`TreeError`].
    pub fn nar(&self) -> Result<NarReader, TreeError> {
        match &self.origin {
            Origin::Files(path) => NarReader::of_steps(Steps::Walk(Walk::new(path)), None),
            Origin::Daemon(nar) => NarReader::of_daemon(nar),
        }
    }

    /// Walks through the files.
    ///
    /// # Errors
    ///
    /// [`TreeError::Remote`] when the files are not on this machine.
    pub fn walk(&self) -> Result<Walk, TreeError> {
        match &self.origin {
            Origin::Files(path) => Ok(Walk::new(path)),
            Origin::Daemon(_) => Err(TreeError::Remote),
        }
    }

    /// What is at the place that `names` lead to, one directory below the other; the root where
    /// there are none. Links are not followed. `None`: the tree has no such place.
    ///
    /// # Errors
    ///
    /// [`TreeError::Vanished`] when there is no tree; [`TreeError::Remote`] when the files are not
    /// on this machine; any other [`TreeError`].
    pub fn place(
        &self,
        names: &[&[u8]],
        wanted: PageWanted<'_>,
    ) -> Result<Option<Place>, TreeError> {
        match &self.origin {
            Origin::Files(path) => place::find(path, names, wanted),
            Origin::Daemon(_) => Err(TreeError::Remote),
        }
    }

    /// Finds out what the NAR is made of. Reads no contents where the files are on this machine;
    /// else reads the whole NAR.
    ///
    /// # Errors
    ///
    /// [`PlanError::TooLarge`] when the plan would need more than `memory_len_max` bytes; any other
    /// [`PlanError`].
    pub fn plan(&self, memory_len_max: usize) -> Result<NarPlan, PlanError> {
        let mut planner = Planner::new(memory_len_max)?;
        let path = match &self.origin {
            Origin::Files(path) => path,
            Origin::Daemon(nar) => {
                let mut steps = nar.steps()?;
                while steps.next_piece(|step| planner.step(step))? {}
                return planner.finish(None);
            }
        };
        // Before the walk: if another root is put in its place, the plan is that of neither.
        let root = self.identity()?;
        let mut walk = Walk::new(path);
        while let Some(step) = walk.next(Contents::SizesOnly)? {
            planner.step(&step)?;
        }
        planner.finish(root)
    }

    /// Starts the NAR at `offset`. Where the files are on this machine, only the file there is
    /// opened, and the tree is not walked: what follows comes from the plan.
    ///
    /// # Errors
    ///
    /// [`TreeError::Changed`] when the tree is not the one that was planned, as far as its root
    /// shows; [`TreeError::NoSuchOffset`]; any other [`TreeError`].
    pub fn nar_at(&self, plan: &Arc<NarPlan>, offset: u64) -> Result<NarReader, TreeError> {
        let mut reader = match &self.origin {
            Origin::Files(path) => {
                let (replay, bookmark) = Replay::seek(plan, offset)?;
                let walk = PlannedWalk::new(replay, path)?;
                NarReader::of_steps(Steps::Plan(walk), bookmark)?
            }
            Origin::Daemon(nar) => NarReader::of_daemon(nar)?,
        };
        reader.skip_to(offset)?;
        Ok(reader)
    }

    /// The `.ls` listing, version 1, with the offset of every file in the NAR. Reads no contents
    /// where the files are on this machine; else reads the whole NAR.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`].
    pub fn listing(&self) -> Result<ListingReader, TreeError> {
        Ok(match &self.origin {
            Origin::Files(path) => ListingReader::of_walk(Walk::new(path)),
            Origin::Daemon(nar) => ListingReader::of_daemon(nar.steps()?),
        })
    }

    /// The length of the NAR, found without reading contents.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`].
    pub fn nar_size(&self) -> Result<u64, TreeError> {
        let path = match &self.origin {
            Origin::Files(path) => path,
            Origin::Daemon(nar) => return Ok(nar.nar_size()),
        };
        let mut walk = Walk::new(path);
        let mut encoder = Encoder::new();
        encoder.begin(&mut Discard)?;
        while let Some(step) = walk.next(Contents::SizesOnly)? {
            segments::encode(&mut encoder, &mut Discard, &step)?;
            if matches!(step, Step::File { .. }) {
                encoder.end_file(&mut Discard)?;
            }
        }
        Ok(encoder.finish()?)
    }
}
