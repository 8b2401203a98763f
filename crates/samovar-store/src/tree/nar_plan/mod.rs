//! [`NarPlan`]: the layout of a tree's NAR in a few bytes per file, for starting at any offset.
//!
//! # Theory of operation
//!
//! A plan is a sequence of [records](record), one per file, in NAR order. Every
//! [`CHECKPOINT_DISTANCE`] records it has a checkpoint: the offset in the NAR, the position among
//! the records, and the current directory. To start at an offset, a reader takes the last
//! checkpoint before the offset, follows the directory's parents to the root for the names on the
//! path, and reads the records from there on. Framing is not stored: the encoder writes it again.
//!
//! A plan is immutable and shared by all readers, and each reader verifies it: type, size and mode
//! of every file that it opens must match the plan. A reader that finds a difference marks the plan
//! as failed, so that the cache that holds the plan drops it.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | one plan | set by the caller | beyond it, walking the tree again costs only time |
//! | all plans | 64 MiB | a reader may hold a plan that was evicted from its cache |

mod planned_walk;
mod planner;
mod record;
mod replay;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) use planned_walk::PlannedWalk;
pub(super) use planner::Planner;
pub(super) use replay::Replay;
use samovar_nix::nar::EncodeError;

use super::TreeError;
use super::identity::Identity;
use super::reservation::Reservation;

/// Number of records between two checkpoints. Checkpoints then cost a quarter of a byte per file,
/// and reading the records between two takes microseconds.
const CHECKPOINT_DISTANCE: usize = 64;

/// Memory of all plans of the process, in bytes.
const PLANS_LEN_MAX: usize = 64 << 20;

/// The layout of a tree's NAR: see [`Tree::plan`](super::Tree::plan).
#[derive(Debug)]
pub struct NarPlan {
    records: Box<[u8]>,
    checkpoints: Box<[Checkpoint]>,
    nar_size: u64,
    file_count: u64,
    root: Identity,
    pub(super) listing_len: OnceLock<u64>,
    has_failed: AtomicBool,
    /// The plan's share of [`PLANS_LEN_MAX`], the memory limit of all plans.
    reservation: Reservation,
}

/// A position before a child of a directory, or at its end.
#[derive(Debug, Clone, Copy)]
struct Checkpoint {
    nar_offset: u64,
    /// Position of the next record, in bytes from the start of the records.
    at: u32,
    /// Position of the record of the current directory.
    directory: u32,
}

/// Reason why a plan cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The plan would exceed its memory limit.
    #[error("the plan of the tree is too large")]
    TooLarge,
    /// All plans together have reached their memory limit.
    #[error("the memory for plans is exhausted")]
    NoRoom,
    /// The tree cannot be read.
    #[error("reading the tree failed")]
    Tree(#[from] TreeError),
}

impl NarPlan {
    /// Returns the length of the NAR, in bytes.
    #[must_use]
    pub fn nar_size(&self) -> u64 {
        self.nar_size
    }

    /// Returns the number of regular files.
    #[must_use]
    pub fn file_count(&self) -> u64 {
        self.file_count
    }

    /// Returns the memory of the plan, in bytes.
    #[must_use]
    pub fn memory_len(&self) -> usize {
        self.reservation.count()
    }

    /// Returns the identity that the root had when the plan was made.
    #[must_use]
    pub fn root(&self) -> Identity {
        self.root
    }

    /// Returns whether a reader found the tree different from the plan, or could not read it.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    fn note_failure(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Returns the last checkpoint at or before an offset; `None` if the offset precedes all
    /// checkpoints.
    fn checkpoint(&self, nar_offset: u64) -> Option<Checkpoint> {
        let count = self
            .checkpoints
            .partition_point(|checkpoint| checkpoint.nar_offset <= nar_offset);
        self.checkpoints[..count].last().copied()
    }
}

impl From<EncodeError> for PlanError {
    fn from(error: EncodeError) -> Self {
        Self::Tree(error.into())
    }
}
