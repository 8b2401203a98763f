//! The commit queue: combines paths that are published at the same time into one commit.
//!
//! A commit costs one flush of the disk, whether it has one path or thousands. No timer delays it:
//! the first caller commits at once. Paths that arrive during a commit wait, and one of their
//! callers commits them together.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::StorageError;
use crate::metadata::{NewPath, Published};

/// Number of paths in a commit beyond which no other group of paths is added to it. A transaction
/// of this size takes about 0.3 s.
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
    waiting: Vec<(u64, Arc<Vec<NewPath>>)>,
    is_committing: bool,
    /// Outcomes by ticket, until their callers take them. If a commit fails, all its paths get the
    /// same error.
    outcomes: HashMap<u64, Result<Vec<Published>, StorageError>>,
}

impl State {
    /// Returns the number of groups for the next commit.
    fn batch_len(&self) -> usize {
        let mut count = 0;
        let groups = self.waiting.iter().take_while(|(_, group)| {
            let is_open = count < BATCH_COUNT_MAX;
            count += group.len();
            is_open
        });
        groups.count()
    }
}

impl CommitQueue {
    /// Publishes a group of paths in one of the next commits, and waits for the outcomes. `commit`
    /// publishes a batch of groups.
    pub(crate) fn publish(
        &self,
        group: &Arc<Vec<NewPath>>,
        commit: impl Fn(&[&[NewPath]]) -> Result<Vec<Vec<Published>>, StorageError>,
    ) -> Result<Vec<Published>, StorageError> {
        let mut state = self.state();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push((ticket, Arc::clone(group)));
        loop {
            if let Some(outcome) = state.outcomes.remove(&ticket) {
                return outcome;
            }
            if state.is_committing {
                state = self
                    .committed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_committing = true;
            let count = state.batch_len();
            let (tickets, groups): (Vec<_>, Vec<_>) = state.waiting.drain(..count).unzip();
            drop(state);
            let batch: Vec<&[NewPath]> = groups.iter().map(|group| group.as_slice()).collect();
            // A panic must not leave the others waiting; the panic hook has reported it.
            let outcome = catch_unwind(AssertUnwindSafe(|| commit(&batch)))
                .unwrap_or_else(|_panic| Err(StorageError::Database("the commit panicked".into())));
            state = self.state();
            state.is_committing = false;
            match outcome {
                Ok(published) => {
                    let outcomes = published.into_iter().map(Ok);
                    state.outcomes.extend(tickets.into_iter().zip(outcomes));
                }
                Err(error) => {
                    let failed = tickets
                        .into_iter()
                        .map(|ticket| (ticket, Err(error.copy())));
                    state.outcomes.extend(failed);
                }
            }
            self.committed.notify_all();
        }
    }

    /// Returns the number of paths that wait for a commit.
    pub(crate) fn len(&self) -> usize {
        let state = self.state();
        state.waiting.iter().map(|(_, group)| group.len()).sum()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use samovar_nix::StorePath;

    use super::*;
    use crate::metadata::CacheId;

    fn new_path() -> Arc<Vec<NewPath>> {
        let base_name = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-a";
        Arc::new(vec![NewPath {
            cache: CacheId(1),
            token: 1,
            path: StorePath::from_base_name(base_name).unwrap(),
            nar_id: 1,
            references: Vec::new(),
            has_self_reference: false,
            deriver: None,
            signatures: Vec::new(),
            content_address: None,
            quota: None,
        }])
    }

    #[test]
    fn a_full_disk_is_reported_as_such() {
        let queue = CommitQueue::default();
        let full = |_: &[&[NewPath]]| {
            let error = io::ErrorKind::StorageFull.into();
            Err(StorageError::file("cannot write", "the database", error))
        };
        let error = queue.publish(&new_path(), full).unwrap_err();
        assert!(error.is_full(), "{error}");
    }

    #[test]
    fn a_commit_that_panics_fails_and_the_next_one_works() {
        let queue = CommitQueue::default();
        let panics = |_: &[&[NewPath]]| std::panic::resume_unwind(Box::new(()));
        assert!(queue.publish(&new_path(), panics).is_err());
        let published = queue.publish(&new_path(), |batch| {
            Ok(vec![vec![Published::New]; batch.len()])
        });
        assert_eq!(published.unwrap(), [Published::New]);
    }
}
