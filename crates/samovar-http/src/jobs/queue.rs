//! The job queue and the pool of worker threads.
//!
//! # Theory of operation
//!
//! There are five [lanes](Lane), each with its own queue and worker slots. The slots limit the
//! number of threads that run jobs of the lane at the same time. The service chooses the lane of a
//! request, and all work for that request runs there. So if a disk hangs and blocks every job of
//! the slow lane, the prompt lane still has all its slots; and if it blocks every job of the
//! writing lane, the slow lane still reads what it can. The costly lane has few slots, because its
//! jobs keep processors busy, and there clients take turns (`turns.rs`), because one may ask for
//! many computations. TLS handshakes have a lane of their own, so handlers that block never delay a
//! new connection. Threads belong to no lane: their number is limited to the slots of all lanes,
//! and a new thread is started when a job finds a free slot but no free thread.
//!
//! A handler that reads a body as it arrives may have to wait for its client. Meanwhile it lends
//! its slot to other jobs; if work is queued and no thread is free, another thread is started. So
//! slow clients occupy threads, up to a limit of their own, but never delay other requests. After
//! the wait the handler continues at once, even if more jobs then run than there are slots. A
//! thread that finishes a job while there are too many threads ends.
//!
//! The number of slots of a lane may grow while jobs wait for handlers that block (`growth.rs`).
//! When a job finds no free slot, the queue wakes the monitor (`monitor.rs`), which changes the
//! number. Threads beyond those of the initial slots end after some time without a job.
//!
//! Waking a thread costs more than most handlers. So [`Queue::push`] wakes none: an I/O thread
//! pushes all its jobs and then calls [`Queue::wake`], which wakes one worker. This worker wakes
//! the next if it finds more than one job. The thread that went to sleep last is woken first,
//! because its stack is still in the cache; threads that are not needed stay asleep.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::growth::{LOOK_TIME, LOOK_TIME_MAX};
use super::job::Job;
use super::slot::Slot;
use super::turns::Requests;
use super::uploads::Uploads;
use crate::client::Peer;
use crate::lane::Lane;
use crate::limits::Limits;
use crate::sync::Lock;

/// Function that starts one more worker thread.
type Start = Box<dyn Fn() -> io::Result<()> + Send + Sync>;

/// Time without a job after which a thread ends, if there are more threads than initial slots.
const IDLE_TIME: Duration = match cfg!(test) {
    true => Duration::from_millis(10),
    false => Duration::from_secs(10),
};

/// The numbers of worker slots in the prompt lane. The slow and the writing lane have as many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slots {
    /// Initial number.
    pub(crate) base: usize,
    /// Maximum number, at least `base`.
    pub(crate) max: usize,
    /// Whether handlers that hang lend their slot by themselves.
    pub(crate) lends: bool,
}

/// The queue of all workers. It limits the number of queued requests, but always accepts jobs that
/// continue a response: their number is limited by the number of connections. Workers alternate
/// between both kinds, so that continuing jobs do not wait behind new requests.
pub(crate) struct Queue {
    state: Mutex<State>,
    start: OnceLock<Start>,
    /// Maximum number of queued requests in each lane.
    len_max: usize,
    pub(crate) slots: Slots,
    /// Maximum number of worker slots in all lanes together.
    pub(crate) threads_max: usize,
    /// Initial number of worker slots in all lanes together.
    threads_base: usize,
    /// Maximum number of jobs that have lent their slot, for each kind of [`Wait`].
    waiting_max: usize,
    /// Uploads whose handlers have waited for their clients.
    pub(crate) uploads: Arc<Uploads>,
}

#[derive(Debug, Default)]
struct State {
    /// The lanes, indexed by [`Lane`].
    lanes: [LaneState; 5],
    is_closed: bool,
    /// Number of worker threads.
    thread_count: usize,
    /// Threads that wait for a job, longest wait first.
    idle: Vec<Thread>,
    /// Whether a thread was woken or started but has not checked the queue yet.
    is_waking: bool,
    /// Numbers of jobs that have lent their slot, indexed by [`Wait`].
    lent_counts: [usize; 3],
    /// The monitor, if it sleeps until a job waits.
    monitor: Option<Thread>,
}

/// The queue and the slots of one lane.
#[derive(Debug, Default)]
struct LaneState {
    /// Number of worker slots.
    slots: usize,
    /// Whether the monitor may change the number of slots.
    is_monitored: bool,
    /// Jobs that start new work.
    requests: Requests,
    /// Jobs that continue a response.
    continuing: VecDeque<Job>,
    /// Whether the next job is a new request if one is queued.
    is_requests_turn: bool,
    /// Number of occupied slots.
    running_count: usize,
}

impl LaneState {
    fn new(slots: usize, is_monitored: bool) -> Self {
        Self {
            slots,
            is_monitored,
            ..Self::default()
        }
    }

    /// Takes the next job; returns `None` if no slot is free or no job is queued.
    fn take(&mut self) -> Option<Job> {
        if self.running_count >= self.slots {
            return None;
        }
        let first = if self.is_requests_turn {
            self.requests.pop()
        } else {
            None
        };
        let job = first
            .or_else(|| self.continuing.pop_front())
            .or_else(|| self.requests.pop())?;
        self.is_requests_turn = !job.is_request();
        self.running_count += 1;
        Some(job)
    }

    fn len(&self) -> usize {
        self.requests.len() + self.continuing.len()
    }

    /// Returns whether a job is queued and a slot is free.
    fn is_ready(&self) -> bool {
        self.len() > 0 && self.running_count < self.slots
    }

    /// Returns whether a job is queued, no slot is free, and the monitor can do something about it.
    fn is_starved(&self) -> bool {
        self.is_monitored && self.running_count >= self.slots && self.len() > 0
    }

    /// Returns whether no job is queued and a slot is free.
    fn is_idle(&self) -> bool {
        self.len() == 0 && self.running_count < self.slots
    }
}

impl State {
    fn lane(&mut self, lane: Lane) -> &mut LaneState {
        &mut self.lanes[lane as usize]
    }

    /// Takes the next job of any lane; returns `None` if no lane has both a job and a free slot.
    /// The prompt lane comes first: its slots are limited, so threads remain for the other lanes.
    fn take(&mut self) -> Option<Job> {
        self.lanes.iter_mut().find_map(LaneState::take)
    }

    fn is_ready(&self) -> bool {
        self.lanes.iter().any(LaneState::is_ready)
    }

    /// Wakes the monitor if it sleeps and a job waits for a slot.
    fn alert(&mut self) {
        if self.monitor.is_some() && self.is_starved() {
            self.monitor.take().iter().for_each(Thread::unpark);
        }
    }

    fn is_starved(&self) -> bool {
        self.lanes.iter().any(LaneState::is_starved)
    }

    /// Returns the number of jobs that have lent their slot.
    fn lent_count(&self) -> usize {
        self.lent_counts.iter().sum()
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

/// Returns the number of slots of the costly lane: half the processors, if there are initially
/// eight workers per core.
fn costly_slots(base: usize) -> usize {
    base.div_ceil(16)
}

/// Returns the number of slots of the handshake lane: one for each processor, if there are
/// initially eight workers per core.
fn handshake_slots(base: usize) -> usize {
    base.div_ceil(8)
}

impl Slots {
    /// Creates a number that never changes.
    #[cfg(test)]
    pub(crate) fn fixed(count: usize) -> Self {
        Self {
            base: count,
            max: count,
            lends: false,
        }
    }

    pub(crate) fn may_grow(self) -> bool {
        self.max > self.base
    }
}

impl Queue {
    pub(crate) fn new(len_max: usize, slots: Slots, waiting_max: usize) -> Self {
        let (costly, handshake) = (costly_slots(slots.base), handshake_slots(slots.base));
        let many = || LaneState::new(slots.base, slots.may_grow());
        let few = |slots| LaneState::new(slots, false);
        let mut state = State {
            lanes: [many(), many(), many(), few(costly), few(handshake)],
            ..State::default()
        };
        state.lane(Lane::Costly).requests = Requests::in_turns();
        let all = |slots: usize| slots.saturating_mul(3).saturating_add(costly + handshake);
        Self {
            state: Mutex::new(state),
            start: OnceLock::new(),
            len_max,
            slots,
            threads_max: all(slots.max),
            threads_base: all(slots.base),
            waiting_max,
            uploads: Arc::default(),
        }
    }

    /// Sets the function that starts a worker thread. The thread must call [`pop`](Self::pop) until
    /// that returns `None`.
    pub(crate) fn set_start(&self, start: Start) {
        // Called only once, before the first thread starts, so it cannot fail.
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

    /// Adds a job; returns the job if it starts new work and its lane's queue is full. The caller
    /// must call [`wake`](Self::wake) soon.
    pub(crate) fn push(&self, job: Job) -> Result<(), Job> {
        self.add(job, self.waiting_max)
    }

    /// Ends a slow upload to make room for `job`, an upload for which [`push`](Self::push) has
    /// found no place. Returns the client of the ended upload; `None` if there is none to end.
    pub(crate) fn make_room(&self, job: &Job, limits: &Limits) -> Option<Peer> {
        let is_crowded = self.lock().lent_counts[Wait::Other as usize] >= self.waiting_max;
        let peer = job.peer().filter(|_| is_crowded)?;
        self.uploads.make_room(peer, limits)
    }

    /// As [`push`](Self::push), for an upload for which another one [makes room](Self::make_room).
    pub(crate) fn push_into_room(&self, job: Job) -> Result<(), Job> {
        self.add(job, usize::MAX)
    }

    /// As [`push`](Self::push), but refuses a request with a streamed body only if `waiting_max`
    /// jobs have lent their slot.
    fn add(&self, job: Job, waiting_max: usize) -> Result<(), Job> {
        let mut state = self.lock();
        let waiting_count = state.lent_counts[Wait::Other as usize];
        let lane = state.lane(job.lane());
        if !job.is_request() {
            lane.continuing.push_back(job);
        } else if job.is_streamed() && waiting_count >= waiting_max {
            return Err(job);
        } else {
            return lane.requests.push(job, self.len_max);
        }
        Ok(())
    }

    /// Returns whether a job of the lane is queued, so that a running job should end its turn.
    pub(crate) fn has_queued(&self, lane: Lane) -> bool {
        self.lock().lane(lane).len() > 0
    }

    /// Returns whether no job of the lane is queued, and a slot is free.
    pub(crate) fn is_idle(&self, lane: Lane) -> bool {
        self.lock().lane(lane).is_idle()
    }

    /// Wakes or starts a thread for queued jobs, if one is needed.
    pub(crate) fn wake(&self) {
        self.ensure_thread(self.lock());
    }

    /// Waits for a job; returns `None` if this worker is not needed any more or the queue is
    /// closed. `finished` is the job that the caller has just finished; `None` for a new thread.
    pub(crate) fn pop(&self, finished: Option<Finished>) -> Option<Job> {
        let mut state = self.lock();
        match finished {
            Some(Finished::In(lane)) => state.lane(lane).running_count -= 1,
            Some(Finished::Hanging) => state.lent_counts[Wait::Hanging as usize] -= 1,
            None => state.is_waking = false,
        }
        let mut has_rested = false;
        loop {
            if let Some(job) = state.take() {
                self.ensure_thread(state);
                return Some(job);
            }
            let is_surplus = state.thread_count - state.lent_count() > self.threads_max;
            let is_over = state.is_closed && state.queued_count() == 0;
            if is_surplus || is_over || has_rested {
                state.thread_count -= 1;
                if is_over {
                    // Wake the sleeping threads, so that they can end, too.
                    Self::wake_all(state);
                }
                return None;
            }
            state.alert();
            (state, has_rested) = self.sleep(state);
        }
    }

    /// Sleeps until woken. Returns `true` if the thread has slept for long and is not needed.
    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, bool) {
        let own = thread::current();
        state.idle.push(own.clone());
        let started = Instant::now();
        loop {
            let is_extra = state.thread_count - state.lent_count() > self.threads_base;
            let left = is_extra.then(|| IDLE_TIME.saturating_sub(started.elapsed()));
            drop(state);
            // Both may return spuriously.
            match left {
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
            state = self.lock();
            let Some(at) = state.idle.iter().position(|idle| idle.id() == own.id()) else {
                state.is_waking = false;
                return (state, false);
            };
            let is_extra = state.thread_count - state.lent_count() > self.threads_base;
            if is_extra && started.elapsed() >= IDLE_TIME {
                state.idle.remove(at);
                return (state, true);
            }
        }
    }

    /// Closes the queue: workers end once it is empty.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.monitor.take().iter().for_each(Thread::unpark);
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
            waiting_count: state.lent_count(),
        }
    }

    /// Wakes or starts a thread if a queued job needs one.
    fn ensure_thread(&self, mut state: MutexGuard<'_, State>) {
        // No further thread is needed if one was woken already, or if no queued job has a free
        // slot: the thread that frees a slot checks the queue.
        if state.is_waking {
            return;
        }
        if !state.is_ready() {
            return state.alert();
        }
        let idle = state.idle.pop();
        let running_count = state.thread_count - state.lent_count();
        // If no thread is idle and the maximum number is running, one of the running threads will
        // check the queue soon.
        state.is_waking = idle.is_some() || running_count < self.threads_max;
        let is_waking = state.is_waking;
        drop(state);
        if let Some(thread) = idle {
            thread.unpark();
        } else if is_waking && self.start_worker().is_err() {
            // If no thread can be created, the job waits for an existing one.
            self.lock().is_waking = false;
        }
    }

    /// Lends the caller's slot to other jobs; returns `false` if too many slots are lent already.
    pub(crate) fn lend(&self, lane: Lane, wait: Wait) -> bool {
        let mut state = self.lock();
        if state.lent_counts[wait as usize] >= self.waiting_max {
            return false;
        }
        state.lane(lane).running_count -= 1;
        state.lent_counts[wait as usize] += 1;
        self.ensure_thread(state);
        true
    }

    /// Reclaims a lent slot immediately. Until another job ends, more jobs may run than the lane
    /// has slots.
    pub(crate) fn reclaim(&self, lane: Lane, wait: Wait) {
        let mut state = self.lock();
        state.lent_counts[wait as usize] -= 1;
        state.lane(lane).running_count += 1;
    }

    // Methods for the monitor.

    /// Returns whether handlers that hang lend their slot by themselves.
    pub(crate) fn lends_hanging(&self) -> bool {
        self.slots.lends
    }

    /// Lends the slot of a thread whose handler hangs; returns `false` if too many are lent.
    pub(super) fn lend_for_thread(&self, slot: &Slot) -> bool {
        let mut state = self.lock();
        if state.lent_counts[Wait::Hanging as usize] >= self.waiting_max {
            return false;
        }
        // The job may have ended meanwhile.
        if let Some(lane) = slot.give_up_for_thread() {
            state.lane(lane).running_count -= 1;
            state.lent_counts[Wait::Hanging as usize] += 1;
            self.ensure_thread(state);
        }
        true
    }

    /// Returns the numbers of queued and of running jobs of a lane.
    pub(super) fn counts(&self, lane: Lane) -> (usize, usize) {
        let mut state = self.lock();
        let lane = state.lane(lane);
        (lane.len(), lane.running_count)
    }

    /// Sets the number of slots of a lane.
    pub(super) fn set_slots(&self, lane: Lane, count: usize) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.lane(lane).slots, count) < count {
            self.ensure_thread(state);
        }
    }

    /// Lets the monitor sleep for this time, or until shortly after a job must wait. `None`: only
    /// the latter. Returns `false` if the queue is closed.
    pub(super) fn rest(&self, time: Option<Duration>) -> bool {
        let mut state = self.lock();
        let pause = if state.is_starved() {
            time.filter(|time| *time <= LOOK_TIME_MAX)
        } else {
            let deadline = time.map(|time| Instant::now() + time);
            state.monitor = (!state.is_closed).then(thread::current);
            while state.monitor.is_some() {
                let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
                drop(state);
                match left {
                    Some(left) => thread::park_timeout(left),
                    None => thread::park(),
                }
                state = self.lock();
                if left == Some(Duration::ZERO) {
                    state.monitor = None;
                    return !state.is_closed;
                }
            }
            None
        };
        let is_closed = state.is_closed;
        drop(state);
        if !is_closed {
            thread::sleep(pause.unwrap_or(LOOK_TIME));
        }
        !is_closed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.locked()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.load()).finish()
    }
}

/// What a job that lends its slot waits for. Each kind has a limit of its own, so that slow sources
/// of responses and handlers that hang leave the places of uploads free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// For the source of a body that is sent.
    Reading,
    /// For anything else, such as the body of an upload.
    Other,
    /// For something that the engine does not know: the monitor has lent the slot.
    Hanging,
}

/// A job that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finished {
    /// A job that has occupied a slot of this lane.
    In(Lane),
    /// A job whose slot the monitor had lent.
    Hanging,
}

#[cfg(test)]
mod tests;
