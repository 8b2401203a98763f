//! Runs jobs on several threads; a job can wait for earlier jobs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError, mpsc};
use std::thread;

/// Runs the jobs `0..count` on at most `at_once` threads. `work` gets the number of a job, and a
/// function that waits until the jobs in `before(job)` have ended. That function ignores jobs with
/// the same or a higher number, so jobs cannot wait for each other in a circle. `each` gets the
/// outcomes as they arrive.
///
/// # Errors
///
/// The first error of `each`, after all jobs have ended.
pub(super) fn run<T: Send>(
    count: usize,
    at_once: usize,
    before: &(dyn Fn(usize) -> Vec<usize> + Sync),
    work: &(dyn Fn(usize, &dyn Fn()) -> T + Sync),
    mut each: impl FnMut(usize, T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let (ended, changed) = (Mutex::new(vec![false; count]), Condvar::new());
    let lock = || ended.lock().unwrap_or_else(PoisonError::into_inner);
    let wait = |at: usize| {
        let earlier: Vec<usize> = before(at).into_iter().filter(|job| *job < at).collect();
        let is_early = |ended: &mut Vec<bool>| earlier.iter().any(|job| !ended[*job]);
        drop(changed.wait_while(lock(), is_early));
    };
    let (sender, outcomes) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..at_once.min(count) {
            let sender = sender.clone();
            let (next, wait, lock, changed) = (&next, &wait, &lock, &changed);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return;
                    }
                    let outcome = work(at, &|| wait(at));
                    lock()[at] = true;
                    changed.notify_all();
                    // Sending fails after an error of `each`, which ends the receiver.
                    sender.send((at, outcome)).ok();
                }
            });
        }
        drop(sender);
        outcomes
            .into_iter()
            .try_for_each(|(at, outcome)| each(at, outcome))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_wait_for_earlier_ones_and_circles_do_not_block() {
        let published = Mutex::new(Vec::new());
        // Each job waits for the two before it. `before` also names job 99, which must be ignored.
        let before = |at: usize| vec![at.saturating_sub(1), at.saturating_sub(2), 99];
        let work = |at: usize, wait: &dyn Fn()| {
            wait();
            published.lock().unwrap().push(at);
            at
        };
        let mut outcomes = 0;
        let each = |at, outcome| {
            assert_eq!(at, outcome);
            outcomes += 1;
            Ok(())
        };
        run(100, 8, &before, &work, each).unwrap();
        assert_eq!(outcomes, 100);
        let published = published.into_inner().unwrap();
        assert!(published.is_sorted(), "{published:?}");
    }
}
