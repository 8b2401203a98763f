//! What waits for a worker, and how many workers there are.
//!
//! # Theory of operation
//!
//! There are three [lanes](Lane), each with its queue and its places: so many threads *run* jobs of
//! it at most. A request is in the lane that its service has chosen, and all that is done for it is
//! done there. So when everything of the slow lane hangs, because a disk does, the prompt lane has
//! all its places still. Where handlers compute for long there are few places, because what they
//! take is the processors. Threads belong to no lane: there may be as many as all have places, and
//! one is started when a job finds a place and nobody to run it.
//!
//! A job that waits for its peer (a handler that reads a body as it comes) does not run meanwhile:
//! it has given its place away, and if nobody is there to take it while work is queued, one more
//! thread is started. So peers that dawdle hold threads, up to a limit of their own, but never keep
//! other requests from being answered. When the wait is over the job runs on at once: for a moment
//! more threads run than should. A thread that finds more than enough others ends.
//!
//! Waking a thread costs more than most handlers. So [`Queue::push`] wakes nobody: an I/O thread
//! pushes all it has and then calls [`Queue::wake`], which wakes one worker; that one wakes the
//! next if it finds more than one job. The thread that slept last is woken first: its stack is
//! warm, and those that are not needed sleep on.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread::{self, Thread};

use super::lane::{Lane, Slots};
use crate::sync::Lock;

/// Something that waits in a queue for a worker.
pub(crate) trait Task: Send {
    /// Whether it begins something new, which may be refused.
    fn is_request(&self) -> bool;

    /// The lane in which it runs.
    fn lane(&self) -> Lane;

    /// Whether it may wait for its client.
    fn is_streamed(&self) -> bool;
}

/// Starts one more worker.
type Start = Box<dyn Fn() -> io::Result<()> + Send + Sync>;

/// A queue to all workers, bounded for new requests. Answers under way always get in: they are
/// bounded by the connections. They do not wait behind new requests, however many those are; where
/// both wait, workers take of them in turn.
pub(crate) struct Queue<J> {
    state: Mutex<State<J>>,
    start: OnceLock<Start>,
    /// Requests that may wait in a lane.
    len_max: usize,
    /// Jobs that may run in a lane for what may block.
    places_max: usize,
    /// Threads that may run jobs at the same time, in all lanes.
    threads_max: usize,
    waiting_max: usize,
}

#[derive(Debug)]
struct State<J> {
    prompt: LaneState<J>,
    slow: LaneState<J>,
    costly: LaneState<J>,
    is_closed: bool,
    /// Threads there are.
    thread_count: usize,
    /// Threads that wait for a job, the one that came last at the end.
    idle: Vec<Thread>,
    /// A thread was woken or started and has not looked yet.
    is_waking: bool,
    /// Jobs that have given their place away.
    waiting_count: usize,
}

/// What waits and runs in one lane.
#[derive(Debug)]
struct LaneState<J> {
    /// Jobs that may run.
    places_max: usize,
    requests: VecDeque<J>,
    pumps: VecDeque<J>,
    /// The next job is a request, if one waits.
    is_requests_turn: bool,
    /// Jobs that run.
    running_count: usize,
}

impl<J: Task> LaneState<J> {
    fn new(places_max: usize) -> Self {
        Self {
            places_max,
            requests: VecDeque::new(),
            pumps: VecDeque::new(),
            is_requests_turn: false,
            running_count: 0,
        }
    }

    /// The next job, if there is a place for it.
    fn take(&mut self) -> Option<J> {
        if self.running_count >= self.places_max {
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

    /// Whether a job waits and there is a place for it.
    fn is_ready(&self) -> bool {
        self.len() > 0 && self.running_count < self.places_max
    }
}

impl<J: Task> State<J> {
    fn lane(&mut self, lane: Lane) -> &mut LaneState<J> {
        match lane {
            Lane::Prompt => &mut self.prompt,
            Lane::Slow => &mut self.slow,
            Lane::Costly => &mut self.costly,
        }
    }

    fn lanes(&self) -> [&LaneState<J>; 3] {
        [&self.prompt, &self.slow, &self.costly]
    }

    /// The next job. What is prompt comes first: it leaves the other lanes as many threads as those
    /// have places.
    fn take(&mut self) -> Option<J> {
        let prompt = self.prompt.take();
        let other = prompt.or_else(|| self.slow.take());
        other.or_else(|| self.costly.take())
    }

    fn is_ready(&self) -> bool {
        self.lanes().iter().any(|lane| lane.is_ready())
    }

    fn queued_count(&self) -> usize {
        self.lanes().iter().map(|lane| lane.len()).sum()
    }

    fn running_count(&self) -> usize {
        self.lanes().iter().map(|lane| lane.running_count).sum()
    }
}

/// What has to happen, outside the lock, so that a queued job is taken up.
enum Help {
    None,
    Wake(Thread),
    Start,
}

/// The workers as they are at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) queued_count: usize,
    pub(crate) running_count: usize,
    pub(crate) waiting_count: usize,
}

/// Places for what computes, for so many that may block: half the processors, if there are the
/// usual eight workers a core.
fn costly_places(places_max: usize) -> usize {
    places_max.div_ceil(16)
}

impl<J: Task> Queue<J> {
    pub(crate) fn new(len_max: usize, places_max: usize, waiting_max: usize) -> Self {
        let costly_max = costly_places(places_max);
        let state = State {
            prompt: LaneState::new(places_max),
            slow: LaneState::new(places_max),
            costly: LaneState::new(costly_max),
            is_closed: false,
            thread_count: 0,
            idle: Vec::new(),
            is_waking: false,
            waiting_count: 0,
        };
        Self {
            state: Mutex::new(state),
            start: OnceLock::new(),
            len_max,
            places_max,
            threads_max: places_max.saturating_mul(2).saturating_add(costly_max),
            waiting_max,
        }
    }

    /// Handlers that may run at once in a lane for what may block.
    pub(crate) fn places_max(&self) -> usize {
        self.places_max
    }

    /// The same in all lanes together.
    pub(crate) fn threads_max(&self) -> usize {
        self.threads_max
    }

    /// Says how to start a worker. Every thread so started has to call [`pop`](Self::pop) until
    /// that returns `None`.
    pub(crate) fn set_start(&self, start: Start) {
        // Said once, before the first thread.
        drop(self.start.set(start));
    }

    /// Starts one more worker.
    pub(crate) fn start_worker(&self) -> io::Result<()> {
        self.lock().thread_count += 1;
        let started = self.start.get().map_or_else(
            || Err(io::Error::other("no way to start workers")),
            |start| start(),
        );
        if started.is_err() {
            self.lock().thread_count -= 1;
        }
        started
    }

    /// Adds a job, or gives it back if it is a request and there is no room for it. Somebody has to
    /// call [`wake`](Self::wake) soon.
    pub(crate) fn push(&self, job: J) -> Result<(), J> {
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

    /// Sees to it that what was pushed is taken up.
    pub(crate) fn wake(&self) {
        self.help(self.lock());
    }

    /// Waits for a job; `None` once this worker is not needed any more. `finished`: the lane in
    /// which the caller has done a job; `None` if it is new.
    pub(crate) fn pop(&self, finished: Option<Lane>) -> Option<J> {
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
                    // Who slept when the queue was closed, because others had all places, may go.
                    Self::wake_all(state);
                }
                return None;
            }
            state = self.sleep(state);
        }
    }

    /// Waits until woken.
    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State<J>>) -> MutexGuard<'a, State<J>> {
        let own = thread::current();
        state.idle.push(own.clone());
        loop {
            drop(state);
            // May return for no reason.
            thread::park();
            state = self.lock();
            if state.idle.iter().all(|thread| thread.id() != own.id()) {
                state.is_waking = false;
                return state;
            }
        }
    }

    /// Lets the workers go once the queue is empty.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        Self::wake_all(state);
    }

    fn wake_all(mut state: MutexGuard<'_, State<J>>) {
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

    /// Sees to it that a thread takes up what is queued.
    fn help(&self, mut state: MutexGuard<'_, State<J>>) {
        let help = if state.is_waking {
            // A thread that was woken looks after the rest.
            Help::None
        } else if !state.is_ready() {
            // Whoever finishes first takes what there is.
            Help::None
        } else if let Some(thread) = state.idle.pop() {
            state.is_waking = true;
            Help::Wake(thread)
        } else if state.thread_count - state.waiting_count < self.threads_max {
            state.is_waking = true;
            Help::Start
        } else {
            // A thread is about to look.
            Help::None
        };
        drop(state);
        match help {
            Help::None => {}
            Help::Wake(thread) => thread.unpark(),
            // Without memory for a thread, the job waits for one that is there.
            Help::Start => {
                if self.start_worker().is_err() {
                    self.lock().is_waking = false;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.locked()
    }
}

impl<J: Task> Slots for Queue<J> {
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

impl<J: Task> fmt::Debug for Queue<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.load()).finish()
    }
}

#[cfg(test)]
mod tests;
