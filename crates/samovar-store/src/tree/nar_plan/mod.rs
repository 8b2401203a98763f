//! A tree that is known: what its NAR is made of, in a few bytes a node.
//!
//! # Theory of operation
//!
//! A plan is one string of [records](record), a node each, in the order of the NAR; and for every
//! [`CHECKPOINT_DISTANCE`] of them a checkpoint: the offset in the NAR, the place among the records
//! and the directory there. To begin at an offset is to find the last checkpoint before it, to go
//! up from its directory to the root for the names on the way, and to go through the records from
//! there on. The framing is not kept: the same encoder makes it again.
//!
//! A plan never changes, and all readers share it. Whether it is still true they find out: of
//! every file that is opened, type, size and mode must be the plan's. One that finds it otherwise
//! says so in the plan, for whoever keeps it.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | one plan | said by the caller | beyond it, walking the tree again costs only time |
//! | all plans | 64 MiB | a reader may hold one that nobody keeps any more |

mod planned_walk;
mod planner;
mod record;
mod replay;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

pub(super) use planned_walk::PlannedWalk;
pub(super) use planner::Planner;
pub(super) use replay::Replay;
use samovar_nix::nar::EncodeError;

use super::TreeError;
use super::identity::Identity;
use super::listing_reader::ListingReader;
use super::reservation::Reservation;

/// Records between two checkpoints: a quarter of a byte a node, and some microseconds to go
/// through.
const CHECKPOINT_DISTANCE: usize = 64;

/// Bytes that all plans of the process may have together.
const PLANS_LEN_MAX: usize = 64 << 20;

/// What the NAR of a tree is made of; see [`Tree::plan`](super::Tree::plan).
#[derive(Debug)]
pub struct NarPlan {
    records: Box<[u8]>,
    checkpoints: Box<[Checkpoint]>,
    nar_size: u64,
    file_count: u64,
    root: Option<Identity>,
    listing_len: OnceLock<u64>,
    has_failed: AtomicBool,
    /// Its part of what all plans may have.
    reservation: Reservation,
}

/// A place between two children of a directory, or behind the last one.
#[derive(Debug, Clone, Copy)]
struct Checkpoint {
    nar_offset: u64,
    /// Where the next record starts.
    at: u32,
    /// Where the record of the directory starts.
    directory: u32,
}

/// Why there is no plan of a tree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// It would need more memory than it may have.
    #[error("the plan of the tree is too large")]
    TooLarge,
    /// All plans together have the memory they may have.
    #[error("there is no room for another plan")]
    NoRoom,
    /// The tree cannot be read.
    #[error("reading the tree failed")]
    Tree(#[from] TreeError),
}

impl NarPlan {
    /// The length of the NAR, in bytes.
    #[must_use]
    pub fn nar_size(&self) -> u64 {
        self.nar_size
    }

    /// How many regular files there are.
    #[must_use]
    pub fn file_count(&self) -> u64 {
        self.file_count
    }

    /// How many bytes of memory the plan holds.
    #[must_use]
    pub fn memory_len(&self) -> usize {
        self.reservation.count()
    }

    /// The root that the tree had; `None` where the files are not on this machine.
    #[must_use]
    pub fn root(&self) -> Option<Identity> {
        self.root
    }

    /// Whether a reader has found the tree otherwise than planned, or could not read it.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// The listing, as [`Tree::listing`](super::Tree::listing) gives it; touches no file.
    #[must_use]
    pub fn listing(self: &Arc<Self>) -> ListingReader {
        ListingReader::of_plan(Replay::new(self))
    }

    /// The length of the listing, in bytes. The first time it costs as much as the listing.
    ///
    /// # Errors
    ///
    /// Any [`TreeError`], never in practice: steps that make no listing make no plan.
    pub fn listing_len(self: &Arc<Self>) -> Result<u64, TreeError> {
        if let Some(len) = self.listing_len.get() {
            return Ok(*len);
        }
        let (mut listing, mut buffer, mut len) = (self.listing(), [0; 4096], 0);
        loop {
            match listing.fill(&mut buffer)? {
                0 => return Ok(*self.listing_len.get_or_init(|| len)),
                filled => len += filled as u64,
            }
        }
    }

    fn note_failure(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// The last checkpoint that is not beyond an offset.
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
