//! Where the steps of a NAR come from.

use rustix::fd::OwnedFd;

use super::TreeError;
use super::nar_plan::PlannedWalk;
use super::walk::{Contents, Step, Walk};

/// The steps of a tree that is seen for the first time, or of one that is known.
#[derive(Debug)]
pub(super) enum Steps {
    Walk(Walk),
    Plan(PlannedWalk),
}

impl Steps {
    /// The next step, as [`Walk::next`].
    pub(super) fn next(&mut self, contents: Contents) -> Result<Option<Step<'_>>, TreeError> {
        match self {
            Self::Walk(walk) => walk.next(contents),
            Self::Plan(walk) => walk.next(contents),
        }
    }

    /// Opens the file that the last step was about, as [`Walk::open_last`].
    pub(super) fn open_last(&mut self, size: u64) -> Result<OwnedFd, TreeError> {
        match self {
            Self::Walk(walk) => walk.open_last(size),
            Self::Plan(walk) => walk.open_last(),
        }
    }
}
