//! [`Pool`]: threads that send the requests to one upstream, and their queue.
//!
//! An upstream that does not answer occupies only the threads of its own pool. Threads are started
//! when jobs wait, and end after [`IDLE_TIME`] without a job.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use samovar_nix::HashPart;

use crate::sync::{Locked, unpoisoned};

/// Time after which a thread without a job ends.
const IDLE_TIME: Duration = Duration::from_secs(20);

/// Maximum number of jobs that wait.
const QUEUE_LEN_MAX: usize = 20_000;

/// Maximum number of jobs in the background that wait.
const BACKGROUND_LEN_MAX: usize = 8192;

/// Size of a thread's stack, in bytes. Only what is used takes memory.
const STACK_LEN: usize = 512 << 10;

/// A job of a pool.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The threads of one upstream, for one kind of request.
pub(super) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    thread_count_max: usize,
    state: Mutex<State>,
    /// Signalled when a job is added, and when the pool is closed.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    urgent: VecDeque<Job>,
    /// Jobs for which no client waits yet, with the paths that they ask for.
    background: VecDeque<(HashPart, Job)>,
    thread_count: usize,
    idle_count: usize,
    /// Number of jobs in the background that run.
    background_count: usize,
    is_closed: bool,
}

/// The queue of a pool is full.
#[derive(Debug)]
pub(super) struct Full;

impl Pool {
    /// Creates a pool without threads. `name`: the name of its threads.
    pub(super) fn new(name: String, thread_count_max: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                name,
                thread_count_max,
                state: Mutex::default(),
                changed: Condvar::new(),
            }),
        }
    }

    /// Adds a job for which a client waits.
    pub(super) fn run(&self, job: Job) -> Result<(), Full> {
        let mut state = self.shared.state.locked();
        if state.urgent.len() >= QUEUE_LEN_MAX {
            return Err(Full);
        }
        state.urgent.push_back(job);
        self.shared.wake(state);
        Ok(())
    }

    /// Adds a job for which no client waits yet.
    pub(super) fn run_in_background(&self, path: HashPart, job: Job) -> Result<(), Full> {
        let mut state = self.shared.state.locked();
        if state.background.len() >= BACKGROUND_LEN_MAX {
            return Err(Full);
        }
        state.background.push_back((path, job));
        self.shared.wake(state);
        Ok(())
    }

    /// Moves a waiting job in the background to the others, because a client waits for it now.
    pub(super) fn hurry(&self, path: &HashPart) {
        let mut state = self.shared.state.locked();
        let at = state.background.iter().position(|(other, _)| other == path);
        if let Some((_, job)) = at.and_then(|at| state.background.remove(at)) {
            state.urgent.push_back(job);
            self.shared.wake(state);
        }
    }
}

impl Shared {
    /// Wakes an idle thread, or starts one.
    fn wake(self: &Arc<Self>, mut state: std::sync::MutexGuard<'_, State>) {
        let waiting = state.urgent.len() + state.background.len();
        if state.idle_count >= waiting || state.thread_count >= self.thread_count_max {
            drop(state);
            self.changed.notify_one();
            return;
        }
        state.thread_count += 1;
        drop(state);
        let shared = Arc::clone(self);
        let builder = thread::Builder::new().name(self.name.clone());
        let started = builder.stack_size(STACK_LEN).spawn(move || shared.work());
        if started.is_err() {
            // If the pool has no thread, the job waits until one can be started. Its look-up ends
            // when its budget is used up.
            self.state.locked().thread_count -= 1;
        }
    }

    fn work(&self) {
        let mut state = self.state.locked();
        loop {
            // The remaining threads are free for jobs for which clients wait.
            let background_count_max = (self.thread_count_max * 3 / 4).max(1);
            let may_run_background = state.background_count < background_count_max;
            let (job, is_background) = if let Some(job) = state.urgent.pop_front() {
                (job, false)
            } else if let Some((_, job)) = may_run_background
                .then(|| state.background.pop_front())
                .flatten()
            {
                (job, true)
            } else if state.is_closed {
                state.thread_count -= 1;
                return;
            } else {
                state.idle_count += 1;
                let waited = self.changed.wait_timeout(state, IDLE_TIME);
                let (guard, timeout) = unpoisoned(waited);
                state = guard;
                state.idle_count -= 1;
                if timeout.timed_out() && state.urgent.is_empty() && state.background.is_empty() {
                    state.thread_count -= 1;
                    return;
                }
                continue;
            };
            state.background_count += usize::from(is_background);
            drop(state);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            // The panic hook has reported a panic. The panic has dropped everything that the job
            // owned, which tells the threads that wait for the job.
            drop(done);
            state = self.state.locked();
            state.background_count -= usize::from(is_background);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.shared.state.locked();
        state.is_closed = true;
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_run_at_once_up_to_the_limit_and_urgent_ones_first() {
        let pool = Pool::new("test".to_owned(), 1);
        let (sender, receiver) = mpsc::channel();
        let (release, held) = mpsc::channel::<()>();
        pool.run(Box::new(move || held.recv().unwrap_or_default()))
            .unwrap();
        let job = |number: u8| -> Job {
            let sender = sender.clone();
            Box::new(move || sender.send(number).unwrap())
        };
        let path = |number| HashPart::from_bytes([number; 20]);
        pool.run_in_background(path(1), job(1)).unwrap();
        pool.run_in_background(path(2), job(2)).unwrap();
        pool.run(job(3)).unwrap();
        pool.hurry(&path(2));
        release.send(()).unwrap();
        let order: Vec<u8> = receiver.iter().take(3).collect();
        assert_eq!(order, [3, 2, 1]);
    }

    #[test]
    fn a_panic_ends_neither_the_thread_nor_the_pool() {
        let pool = Pool::new("test".to_owned(), 1);
        let (sender, receiver) = mpsc::channel();
        let kept = sender.clone();
        pool.run(Box::new(move || {
            let _kept = kept;
            panic!("a test");
        }))
        .unwrap();
        pool.run(Box::new(move || sender.send(()).unwrap()))
            .unwrap();
        assert_eq!(receiver.recv(), Ok(()));
    }
}
