//! Whether the files of a path are what its row says.

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use samovar_nix::PathInfo;
use sha2::{Digest, Sha256};

use crate::error::{StoreError, Unavailable};
use crate::store::Store;
use crate::tree::{Identity, Tree, TreeError};

/// Bytes hashed at once.
const PIECE_LEN: usize = 256 * 1024;

/// What was found out about a path.
#[derive(Debug)]
pub enum Verdict {
    /// Its files make the registered NAR. With the root they were read from, if they are on this
    /// machine.
    Right(Option<Identity>),
    /// They do not, and the path was registered all the time.
    Damaged(Damage),
    /// The path was collected, or registered anew, meanwhile.
    Gone,
}

/// What is wrong with the files of a path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The NAR has the right size and another hash.
    #[error("NAR has another hash than the registered one")]
    Hash,
    /// The NAR is shorter than it is registered.
    #[error("NAR is shorter than its registered size")]
    Shorter,
    /// The NAR is longer than it is registered.
    #[error("NAR is longer than its registered size")]
    Longer,
    /// The files make no NAR.
    #[error("{0}")]
    Tree(TreeError),
}

/// Why nothing can be said about a path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The store cannot be asked, or its files are not there at all.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The files cannot be read, which says nothing about what is in them.
    #[error("{0}")]
    Tree(TreeError),
    /// The caller did not want to go on.
    #[error("stopped")]
    Stopped,
}

/// Reads the files of a path and compares the hash of their NAR with `info`, the row of a moment
/// ago. Before it calls anything damaged it asks for the row again.
///
/// `go_on` is told of every piece how many bytes it has, may wait, and may end it.
///
/// # Errors
///
/// Any [`VerifyError`].
pub fn verify(
    store: &dyn Store,
    info: &PathInfo,
    go_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Verdict, VerifyError> {
    let tree = store.tree(&info.path)?;
    let damage = match compare(&tree, info, go_on) {
        Ok(root) => return Ok(Verdict::Right(root)),
        Err(Failure::Damage(damage)) => damage,
        Err(Failure::Other(error)) => return Err(error),
    };
    let now = store.lookup(info.path.hash_part())?;
    let holds = now.is_some_and(|now| {
        now.registration == info.registration
            && now.nar_hash == info.nar_hash
            && now.nar_size == info.nar_size
    });
    if !holds {
        return Ok(Verdict::Gone);
    }
    if matches!(damage, Damage::Tree(TreeError::Vanished)) && !tree.has_neighbours() {
        return Err(StoreError::Unavailable(Unavailable::FilesMissing).into());
    }
    Ok(Verdict::Damaged(damage))
}

fn compare(
    tree: &Tree,
    info: &PathInfo,
    go_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Option<Identity>, Failure> {
    // Before the files are read: what is put in their place meanwhile has another one.
    let root = tree.identity()?;
    let mut reader = tree.nar()?;
    let mut hash = Sha256::new();
    let mut left = info.nar_size;
    let mut piece = vec![0; PIECE_LEN];
    loop {
        let filled = reader.fill(&mut piece)?;
        if filled == 0 {
            break;
        }
        let len = filled as u64;
        left = left.checked_sub(len).ok_or(Damage::Longer)?;
        hash.update(piece.get(..filled).unwrap_or_default());
        if go_on(len).is_break() {
            return Err(Failure::Other(VerifyError::Stopped));
        }
    }
    if left > 0 {
        return Err(Damage::Shorter.into());
    }
    if hash.finalize().as_slice() != info.nar_hash.as_bytes() {
        return Err(Damage::Hash.into());
    }
    Ok(root)
}

enum Failure {
    Damage(Damage),
    Other(VerifyError),
}

impl From<Damage> for Failure {
    fn from(damage: Damage) -> Self {
        Self::Damage(damage)
    }
}

impl From<TreeError> for Failure {
    fn from(error: TreeError) -> Self {
        // Without a plan, only somebody else's changes meanwhile are a change.
        match error.is_damage() && !matches!(error, TreeError::Changed) {
            true => Self::Damage(Damage::Tree(error)),
            false => Self::Other(VerifyError::Tree(error)),
        }
    }
}

/// Keeps reading down to so many bytes in a second.
#[derive(Debug)]
pub struct Pace {
    rate: Option<NonZeroU64>,
    /// When what was read so far should have been read.
    due: Instant,
}

impl Pace {
    /// `rate` bytes in a second; `None`: as many as there are.
    #[must_use]
    pub fn new(rate: Option<NonZeroU64>) -> Self {
        Self {
            rate,
            due: Instant::now(),
        }
    }

    /// Counts `len` bytes as read, and says how long to wait before more are. Time that was lost
    /// waiting for something else is not made up for.
    pub fn pass(&mut self, len: u64) -> Duration {
        let Some(rate) = self.rate else {
            return Duration::ZERO;
        };
        let nanoseconds = u128::from(len) * 1_000_000_000 / u128::from(rate.get());
        let cost = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let now = Instant::now();
        let from = self.due.max(now.checked_sub(cost).unwrap_or(now));
        // Centuries are for ever.
        self.due = from.checked_add(cost).unwrap_or(from);
        self.due.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_is_kept_and_lost_time_stays_lost() {
        let mut pace = Pace::new(NonZeroU64::new(1000));
        let waits = [pace.pass(500), pace.pass(500), pace.pass(1000)];
        // The first bytes were read before, so their time may have passed.
        assert!(waits[2] > Duration::from_millis(1400), "{waits:?}");
        assert!(waits[2] <= Duration::from_millis(2000), "{waits:?}");
        let mut pace = Pace::new(NonZeroU64::new(1000));
        pace.due = pace
            .due
            .checked_sub(Duration::from_secs(5))
            .unwrap_or(pace.due);
        let waits = [pace.pass(1000), pace.pass(1000)];
        assert!(waits[1] > Duration::from_millis(900), "{waits:?}");
        assert_eq!(Pace::new(None).pass(u64::MAX), Duration::ZERO);
    }
}
