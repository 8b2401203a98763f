//! [`Steps`]: a walk that reads directories, or one that a plan replaces.

use rustix::fd::OwnedFd;

use super::TreeError;
use super::nar_plan::PlannedWalk;
use super::walk::{Contents, Step, Walk};

/// The source of a NAR's steps.
#[derive(Debug)]
pub(super) enum Steps {
    Walk(Walk),
    Plan(PlannedWalk),
}

impl Steps {
    /// Takes the next step, `None` at the end: see [`Walk::next`].
    pub(super) fn next(&mut self, contents: Contents) -> Result<Option<Step<'_>>, TreeError> {
        match self {
            Self::Walk(walk) => walk.next(contents),
            Self::Plan(walk) => walk.next(contents),
        }
    }

    /// Opens the file of the last step: see [`Walk::open_last`].
    pub(super) fn open_last(&mut self, size: u64) -> Result<OwnedFd, TreeError> {
        match self {
            Self::Walk(walk) => walk.open_last(size),
            Self::Plan(walk) => walk.open_last(),
        }
    }
}
