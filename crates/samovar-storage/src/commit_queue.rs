//! The commit queue: combines paths that are published at the same time into one commit.
//!
//! A commit costs one flush of the disk, whether it has one path or thousands. No timer delays it:
//! the first caller commits at once. Paths that arrive during a commit wait, and one of their
//! callers commits them together.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::StorageError;
use crate::metadata::{NewPath, Published};

/// Maximum number of paths in one commit. A transaction of this size takes about 0.3 s.
const BATCH_COUNT_MAX: usize = 4096;

/// The paths of a storage that wait for a commit.
#[derive(Debug, Default)]
pub(crate) struct CommitQueue {
    state: Mutex<State>,
    /// Notified after each commit.
    committed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next_ticket: u64,
    waiting: Vec<(u64, NewPath)>,
    is_committing: bool,
    /// Outcomes by ticket, until their callers take them. If a commit fails, all its paths get the
    /// same error.
    outcomes: HashMap<u64, Result<Published, String>>,
}

impl CommitQueue {
    /// Publishes a path in one of the next commits, and waits for its outcome. `commit` publishes a
    /// batch.
    pub(crate) fn publish(
        &self,
        new: NewPath,
        commit: impl Fn(&[NewPath]) -> Result<Vec<Published>, StorageError>,
    ) -> Result<Published, StorageError> {
        let mut state = self.state();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push((ticket, new));
        loop {
            if let Some(outcome) = state.outcomes.remove(&ticket) {
                return outcome.map_err(StorageError::Database);
            }
            if state.is_committing {
                state = self
                    .committed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_committing = true;
            let count = state.waiting.len().min(BATCH_COUNT_MAX);
            let (tickets, batch): (Vec<_>, Vec<_>) = state.waiting.drain(..count).unzip();
            drop(state);
            let outcome = commit(&batch);
            state = self.state();
            state.is_committing = false;
            match outcome {
                Ok(published) => {
                    let outcomes = published.into_iter().map(Ok);
                    state.outcomes.extend(tickets.into_iter().zip(outcomes));
                }
                Err(error) => {
                    let text = error.to_string();
                    let failed = tickets
                        .into_iter()
                        .map(|ticket| (ticket, Err(text.clone())));
                    state.outcomes.extend(failed);
                }
            }
            self.committed.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
