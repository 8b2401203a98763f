//! The commit queue: combines what is stored at the same time into one commit.
//!
//! A commit costs one flush of the disk, whether it has one path or thousands. No timer delays it:
//! the first caller commits at once. Paths that arrive during a commit wait, and one of their
//! callers commits them together. A storage has two queues: one for paths, and one for the files of
//! NARs, whose commit also makes the files durable.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::StorageError;

/// Number of items in a commit beyond which no other group joins it. A transaction of this size
/// takes about 0.3 s.
const BATCH_COUNT_MAX: usize = 4096;

/// Items of a storage that wait for a commit, such as paths. `Outcome`: what a commit returns for
/// each item.
#[derive(Debug)]
pub(crate) struct CommitQueue<Item, Outcome> {
    state: Mutex<State<Item, Outcome>>,
    /// Notified after each commit.
    committed: Condvar,
}

#[derive(Debug)]
struct State<Item, Outcome> {
    next_ticket: u64,
    waiting: Vec<Waiting<Item>>,
    is_committing: bool,
    /// Outcome of each group by its ticket, until the group's caller takes it. If a commit fails,
    /// all its groups get the same error.
    outcomes: HashMap<u64, Result<Vec<Outcome>, StorageError>>,
}

/// A group of items that waits for a commit.
#[derive(Debug)]
struct Waiting<Item> {
    ticket: u64,
    group: Arc<Vec<Item>>,
    /// Time at which the caller stops waiting.
    deadline: Instant,
}

impl<Item, Outcome> Default for CommitQueue<Item, Outcome> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                next_ticket: 0,
                waiting: Vec::new(),
                is_committing: false,
                outcomes: HashMap::new(),
            }),
            committed: Condvar::new(),
        }
    }
}

impl<Item, Outcome> State<Item, Outcome> {
    /// Returns the number of waiting groups that the next commit publishes.
    fn batch_len(&self) -> usize {
        let mut count = 0;
        let groups = self.waiting.iter().take_while(|waiting| {
            let is_open = count < BATCH_COUNT_MAX;
            count += waiting.group.len();
            is_open
        });
        groups.count()
    }

    /// Ends a commit: records the outcomes of its groups. If the database was busy, the groups
    /// whose deadline is not reached wait for the next commit instead.
    fn end_commit(
        &mut self,
        batch: Vec<Waiting<Item>>,
        outcome: Result<Vec<Vec<Outcome>>, StorageError>,
    ) {
        self.is_committing = false;
        let error = match outcome {
            Ok(published) => {
                let outcomes = batch.iter().map(|waiting| waiting.ticket);
                let outcomes = outcomes.zip(published.into_iter().map(Ok));
                return self.outcomes.extend(outcomes);
            }
            Err(error) => error,
        };
        let now = Instant::now();
        let (again, failed): (Vec<_>, Vec<_>) = batch
            .into_iter()
            .partition(|waiting| error.is_passing() && waiting.deadline > now);
        let failed = failed.into_iter();
        let failed = failed.map(|waiting| (waiting.ticket, Err(error.copy())));
        self.outcomes.extend(failed);
        self.waiting.splice(0..0, again);
    }
}

impl<Item, Outcome> CommitQueue<Item, Outcome> {
    /// Stores a group in one of the next commits, and waits for its outcomes. While the database is
    /// busy, waits at most `patience`. `commit` stores a batch of groups, and waits for the
    /// database at most the given time.
    pub(crate) fn publish(
        &self,
        group: &Arc<Vec<Item>>,
        patience: Duration,
        commit: impl Fn(&[&[Item]], Duration) -> Result<Vec<Vec<Outcome>>, StorageError>,
    ) -> Result<Vec<Outcome>, StorageError> {
        let mut state = self.state();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        let deadline = Instant::now() + patience;
        state.waiting.push(Waiting {
            ticket,
            group: Arc::clone(group),
            deadline,
        });
        loop {
            if let Some(outcome) = state.outcomes.remove(&ticket) {
                return outcome;
            }
            if state.is_committing {
                state = self.await_commit(state, ticket, deadline)?;
                continue;
            }
            state.is_committing = true;
            let count = state.batch_len();
            let batch: Vec<Waiting<Item>> = state.waiting.drain(..count).collect();
            drop(state);
            let groups: Vec<&[Item]> = batch
                .iter()
                .map(|waiting| waiting.group.as_slice())
                .collect();
            let first = batch.iter().map(|waiting| waiting.deadline).min();
            let left = first.unwrap_or(deadline);
            let left = left.saturating_duration_since(Instant::now());
            // A panic must not leave the others waiting; the panic hook has reported it.
            let outcome = catch_unwind(AssertUnwindSafe(|| commit(&groups, left)))
                .unwrap_or_else(|_panic| Err(StorageError::Database("the commit panicked".into())));
            state = self.state();
            state.end_commit(batch, outcome);
            self.committed.notify_all();
        }
    }

    /// Waits for the end of the commit in progress. If that commit does not contain the group,
    /// waits until `deadline` at most, then removes the group from the queue.
    fn await_commit<'a>(
        &'a self,
        mut state: MutexGuard<'a, State<Item, Outcome>>,
        ticket: u64,
        deadline: Instant,
    ) -> Result<MutexGuard<'a, State<Item, Outcome>>, StorageError> {
        let mut waiting = state.waiting.iter();
        let Some(position) = waiting.position(|waiting| waiting.ticket == ticket) else {
            let state = self.committed.wait(state);
            return Ok(state.unwrap_or_else(PoisonError::into_inner));
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            state.waiting.remove(position);
            return Err(StorageError::Busy);
        }
        let waited = self.committed.wait_timeout(state, left);
        let (state, _timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        Ok(state)
    }

    /// Returns the number of items that wait for the next commits.
    pub(crate) fn len(&self) -> usize {
        let state = self.state();
        let groups = state.waiting.iter();
        groups.map(|waiting| waiting.group.len()).sum()
    }

    fn state(&self) -> MutexGuard<'_, State<Item, Outcome>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use samovar_nix::StorePath;

    use super::*;
    use crate::metadata::{CacheId, NewPath, Published, SizeLimit};

    const LONG: Duration = Duration::from_secs(600);

    fn queue() -> CommitQueue<NewPath, Published> {
        CommitQueue::default()
    }

    fn new_path() -> Arc<Vec<NewPath>> {
        let base_name = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-a";
        Arc::new(vec![NewPath {
            cache: CacheId(1),
            token: Some(1),
            path: StorePath::from_base_name(base_name).unwrap(),
            nar_id: 1,
            references: Vec::new(),
            has_self_reference: false,
            deriver: None,
            signatures: Vec::new(),
            content_address: None,
            limit: SizeLimit {
                quota: None,
                extra_max: 0,
            },
        }])
    }

    #[test]
    fn a_full_disk_is_reported_as_such() {
        let queue = queue();
        let full = |_: &[&[NewPath]], _| {
            let error = io::ErrorKind::StorageFull.into();
            Err(StorageError::file("cannot write", "the database", error))
        };
        let error = queue.publish(&new_path(), LONG, full).unwrap_err();
        assert!(error.is_full(), "{error}");
    }

    #[test]
    fn a_commit_that_panics_fails_and_the_next_one_works() {
        let queue = queue();
        let panics = |_: &[&[NewPath]], _| std::panic::resume_unwind(Box::new(()));
        assert!(queue.publish(&new_path(), LONG, panics).is_err());
        let published = queue.publish(&new_path(), LONG, |batch, _| {
            Ok(vec![vec![Published::New]; batch.len()])
        });
        assert_eq!(published.unwrap(), [Published::New]);
    }

    #[test]
    fn a_commit_is_repeated_while_the_database_is_busy() {
        let queue = queue();
        let count = AtomicUsize::new(0);
        let busy_twice = |batch: &[&[NewPath]], _| match count.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err(StorageError::Busy),
            _ => Ok(vec![vec![Published::New]; batch.len()]),
        };
        let published = queue.publish(&new_path(), LONG, busy_twice);
        assert_eq!(published.unwrap(), [Published::New]);
        let busy = |_: &[&[NewPath]], left| {
            assert_eq!(left, Duration::ZERO);
            Err(StorageError::Busy)
        };
        let error = queue.publish(&new_path(), Duration::ZERO, busy);
        assert!(matches!(error, Err(StorageError::Busy)));
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_caller_gives_up_while_another_commit_takes_long() {
        let queue = queue();
        let (started, starts) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let queue = &queue;
            let first = scope.spawn(move || {
                queue.publish(&new_path(), LONG, |batch, _| {
                    started.send(()).unwrap();
                    ends.recv().unwrap();
                    Ok(vec![vec![Published::New]; batch.len()])
                })
            });
            starts.recv().unwrap();
            let never = |_: &[&[NewPath]], _| unreachable!("the first commit has not ended");
            let gave_up = queue.publish(&new_path(), Duration::ZERO, never);
            assert!(matches!(gave_up, Err(StorageError::Busy)));
            assert_eq!(queue.len(), 0);
            end.send(()).unwrap();
            assert_eq!(first.join().unwrap().unwrap(), [Published::New]);
        });
    }
}
