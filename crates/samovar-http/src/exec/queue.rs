//! The job queue, and the number of worker threads.
//!
//! # Theory of operation
//!
//! There are three [lanes](Lane), each with its own queue and worker slots: at most that many
//! threads run jobs of the lane. The service chooses the lane of a request, and all work for the
//! request is done there. So if every job of the slow lane hangs, because a disk does, the prompt
//! lane still has all its slots. The costly lane has few, because its jobs use the processors.
//! Threads belong to no lane: there are at most as many as all lanes have slots, and one is started
//! when a job finds a slot but no thread.
//!
//! A job that waits for its client (a handler that reads a body while it arrives) does not run
//! meanwhile: it lends its slot to other jobs, and if work is queued and no thread is free, another
//! thread is started. So slow clients occupy threads, up to a limit of their own, but never delay
//! other requests. After the wait the job continues at once: for a moment more threads run than
//! there are slots. A thread that finds too many others ends.
//!
//! Waking a thread costs more than most handlers. So [`Queue::push`] wakes none: an I/O thread
//! pushes all its jobs and then calls [`Queue::wake`], which wakes one worker; that one wakes the
//! next if it finds more than one job. The thread that slept last is woken first, because its stack
//! is still in the cache, and surplus threads sleep on.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread::{self, Thread};

use super::job::Job;
use super::lane::{Lane, Slots};
use crate::sync::Lock;

/// Starts one more worker.
type Start = Box<dyn Fn() -> io::Result<()> + Send + Sync>;

/// The queue of all workers, with a limit for new requests. Jobs that continue an answer are always
/// accepted, because connections limit their number. They do not wait behind new requests: workers
/// alternate between both.
pub(crate) struct Queue {
    state: Mutex<State>,
    start: OnceLock<Start>,
    /// Requests that may wait in a lane.
    len_max: usize,
    /// Worker slots in each of the prompt and the slow lane.
    slots_max: usize,
    /// Worker slots in all lanes.
    threads_max: usize,
    waiting_max: usize,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of [`Lane`].
    lanes: [LaneState; 3],
    is_closed: bool,
    /// Number of worker threads.
    thread_count: usize,
    /// Threads that wait for a job, in the order in which they began to wait.
    idle: Vec<Thread>,
    /// A thread was woken or started, and has not checked the queue yet.
    is_waking: bool,
    /// Jobs that have lent their slot.
    waiting_count: usize,
}

/// The queue and the slots of one lane.
#[derive(Debug, Default)]
struct LaneState {
    /// Worker slots.
    slots_max: usize,
    requests: VecDeque<Job>,
    pumps: VecDeque<Job>,
    /// Whether the next job is a request, if one is queued.
    is_requests_turn: bool,
    /// Occupied slots.
    running_count: usize,
}

impl LaneState {
    fn new(slots_max: usize) -> Self {
        Self {
            slots_max,
            ..Self::default()
        }
    }

    /// The next job, if a slot is free.
    fn take(&mut self) -> Option<Job> {
        if self.running_count >= self.slots_max {
            return None;
        }
        let first = if self.is_requests_turn {
            self.requests.pop_front()
        } else {
            None
        };
        let job = first
            .or_else(|| self.pumps.pop_front())
            .or_else(|| self.requests.pop_front())?;
        self.is_requests_turn = !job.is_request();
        self.running_count += 1;
        Some(job)
    }

    fn len(&self) -> usize {
        self.requests.len() + self.pumps.len()
    }

    /// Whether a job is queued and a slot is free.
    fn is_ready(&self) -> bool {
        self.len() > 0 && self.running_count < self.slots_max
    }
}

impl State {
    fn lane(&mut self, lane: Lane) -> &mut LaneState {
        &mut self.lanes[lane as usize]
    }

    /// The next job, of the prompt lane first: its slots leave enough threads for the other lanes.
    fn take(&mut self) -> Option<Job> {
        self.lanes.iter_mut().find_map(LaneState::take)
    }

    fn is_ready(&self) -> bool {
        self.lanes.iter().any(LaneState::is_ready)
    }

    fn queued_count(&self) -> usize {
        self.lanes.iter().map(LaneState::len).sum()
    }

    fn running_count(&self) -> usize {
        self.lanes.iter().map(|lane| lane.running_count).sum()
    }
}

/// Gauges of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) queued_count: usize,
    pub(crate) running_count: usize,
    pub(crate) waiting_count: usize,
}

/// Slots of the costly lane: half the processors, with the default of eight workers per core.
fn costly_slots(slots_max: usize) -> usize {
    slots_max.div_ceil(16)
}

impl Queue {
    pub(crate) fn new(len_max: usize, slots_max: usize, waiting_max: usize) -> Self {
        let costly_max = costly_slots(slots_max);
        let state = State {
            lanes: [slots_max, slots_max, costly_max].map(LaneState::new),
            ..State::default()
        };
        Self {
            state: Mutex::new(state),
            start: OnceLock::new(),
            len_max,
            slots_max,
            threads_max: slots_max.saturating_mul(2).saturating_add(costly_max),
            waiting_max,
        }
    }

    /// Worker slots in each of the prompt and the slow lane.
    pub(crate) fn slots_max(&self) -> usize {
        self.slots_max
    }

    /// Worker slots in all lanes.
    pub(crate) fn threads_max(&self) -> usize {
        self.threads_max
    }

    /// Sets the function that starts a worker thread. The thread must call [`pop`](Self::pop) until
    /// it returns `None`.
    pub(crate) fn set_start(&self, start: Start) {
        // Called once, before the first thread.
        drop(self.start.set(start));
    }

    /// Starts one more worker.
    pub(crate) fn start_worker(&self) -> io::Result<()> {
        self.lock().thread_count += 1;
        let started = self.start.get().map_or_else(
            || Err(io::Error::other("no function to start workers")),
            |start| start(),
        );
        if started.is_err() {
            self.lock().thread_count -= 1;
        }
        started
    }

    /// Adds a job; returns it if it is a request and its lane is full. The caller calls
    /// [`wake`](Self::wake) soon after.
    pub(crate) fn push(&self, job: Job) -> Result<(), Job> {
        let mut state = self.lock();
        let waiting_count = state.waiting_count;
        let lane = state.lane(job.lane());
        if !job.is_request() {
            lane.pumps.push_back(job);
        } else if lane.requests.len() >= self.len_max
            || job.is_streamed() && waiting_count >= self.waiting_max
        {
            return Err(job);
        } else {
            lane.requests.push_back(job);
        }
        Ok(())
    }

    /// Wakes or starts a thread for queued jobs.
    pub(crate) fn wake(&self) {
        self.help(self.lock());
    }

    /// Waits for a job; `None` if this worker is surplus or the queue is closed. `finished`: the
    /// lane of the caller's last job; `None` for a new thread.
    pub(crate) fn pop(&self, finished: Option<Lane>) -> Option<Job> {
        let mut state = self.lock();
        match finished {
            Some(lane) => state.lane(lane).running_count -= 1,
            None => state.is_waking = false,
        }
        loop {
            if let Some(job) = state.take() {
                self.help(state);
                return Some(job);
            }
            let is_surplus = state.thread_count - state.waiting_count > self.threads_max;
            let is_over = state.is_closed && state.queued_count() == 0;
            if is_surplus || is_over {
                state.thread_count -= 1;
                if is_over {
                    // Threads that slept when the queue was closed can end too.
                    Self::wake_all(state);
                }
                return None;
            }
            state = self.sleep(state);
        }
    }

    /// Waits until woken.
    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let own = thread::current();
        state.idle.push(own.clone());
        loop {
            drop(state);
            // May return spuriously.
            thread::park();
            state = self.lock();
            if state.idle.iter().all(|thread| thread.id() != own.id()) {
                state.is_waking = false;
                return state;
            }
        }
    }

    /// Ends the workers once the queue is empty.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        Self::wake_all(state);
    }

    fn wake_all(mut state: MutexGuard<'_, State>) {
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        idle.iter().for_each(Thread::unpark);
    }

    pub(crate) fn load(&self) -> Load {
        let state = self.lock();
        Load {
            queued_count: state.queued_count(),
            running_count: state.running_count(),
            waiting_count: state.waiting_count,
        }
    }

    /// Wakes or starts a thread if a queued job needs one.
    fn help(&self, mut state: MutexGuard<'_, State>) {
        // The thread that was woken continues, or the next one to finish a job takes a queued one.
        if state.is_waking || !state.is_ready() {
            return;
        }
        let idle = state.idle.pop();
        let running_count = state.thread_count - state.waiting_count;
        // Otherwise a running thread is about to check.
        state.is_waking = idle.is_some() || running_count < self.threads_max;
        let is_waking = state.is_waking;
        drop(state);
        if let Some(thread) = idle {
            thread.unpark();
        } else if is_waking && self.start_worker().is_err() {
            // Without memory for a thread, the job waits for an existing one.
            self.lock().is_waking = false;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.locked()
    }
}

impl Slots for Queue {
    fn lend(&self, lane: Lane) -> bool {
        let mut state = self.lock();
        if state.waiting_count >= self.waiting_max {
            return false;
        }
        state.lane(lane).running_count -= 1;
        state.waiting_count += 1;
        self.help(state);
        true
    }

    fn reclaim(&self, lane: Lane) {
        let mut state = self.lock();
        state.waiting_count -= 1;
        state.lane(lane).running_count += 1;
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.load()).finish()
    }
}

#[cfg(test)]
mod tests;
