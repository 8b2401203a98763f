//! Compares the files of a path with its registration: [`verify`] hashes the whole NAR.

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use samovar_nix::PathInfo;
use sha2::{Digest, Sha256};

use crate::error::{StoreError, Unavailable};
use crate::store::Store;
use crate::tree::{Identity, Tree, TreeError};

/// Number of bytes that are read and hashed at once.
const PIECE_LEN: usize = 256 * 1024;

/// The result of [`verify`].
#[derive(Debug)]
pub enum Verdict {
    /// The files make the registered NAR. Holds the identity of the root that was read.
    Right(Identity),
    /// The files do not make the registered NAR, and the registration has not changed since.
    Damaged(Damage),
    /// The path was garbage-collected, or registered again, during the verification.
    Gone,
}

/// Difference between the files of a path and its registration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The NAR has the registered size and another hash.
    #[error("NAR has another hash than the registered one")]
    Hash,
    /// The NAR is shorter than registered.
    #[error("NAR is shorter than its registered size")]
    Shorter,
    /// The NAR is longer than registered.
    #[error("NAR is longer than its registered size")]
    Longer,
    /// The files cannot be written as a NAR.
    #[error("{0}")]
    Tree(TreeError),
}

/// Error of [`verify`]: the path could not be verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The store is unavailable, or its files are.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The files cannot be read, which says nothing about their contents.
    #[error("{0}")]
    Tree(TreeError),
    /// The caller cancelled the verification.
    #[error("stopped")]
    Stopped,
}

/// Reads the files of a path and compares the hash of their NAR with `info`, the result of a recent
/// look-up. Looks the path up again before reporting damage.
///
/// Calls `go_on` with the length of each piece read. `go_on` may sleep to limit the rate, and
/// cancels the verification with [`ControlFlow::Break`].
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
    let is_unchanged = now.is_some_and(|now| {
        now.registration == info.registration
            && now.nar_hash == info.nar_hash
            && now.nar_size == info.nar_size
    });
    if !is_unchanged {
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
) -> Result<Identity, Failure> {
    // Read the identity before the contents: if the files are replaced meanwhile, the replacement
    // has another identity.
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
        // `Changed` can mean damage only if the tree differs from a `NarPlan` that was made before.
        // Here is no plan, so the tree was changed while it was read, which proves nothing.
        if error.is_damage() && !matches!(error, TreeError::Changed) {
            Self::Damage(Damage::Tree(error))
        } else {
            Self::Other(VerifyError::Tree(error))
        }
    }
}

/// A rate limiter for reading.
#[derive(Debug)]
pub struct Pace {
    rate: Option<NonZeroU64>,
    /// Earliest time at which the bytes counted so far may have been read at the configured rate.
    /// The next read waits until then.
    due: Instant,
}

impl Pace {
    /// Creates a limiter of `rate` bytes per second; `None` is unlimited.
    #[must_use]
    pub fn new(rate: Option<NonZeroU64>) -> Self {
        Self {
            rate,
            due: Instant::now(),
        }
    }

    /// Counts `len` bytes as read and returns how long to wait before the next read. Time without
    /// reads earns no credit.
    pub fn pass(&mut self, len: u64) -> Duration {
        let Some(rate) = self.rate else {
            return Duration::ZERO;
        };
        let nanoseconds = u128::from(len) * 1_000_000_000 / u128::from(rate.get());
        let cost = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let now = Instant::now();
        let from = self.due.max(now.checked_sub(cost).unwrap_or(now));
        // If the time overflows, which takes centuries, do not wait.
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
        // A part of the wait has already passed since the limiter was created.
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
