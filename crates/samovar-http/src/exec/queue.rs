//! What waits for a worker, and how many workers there are.
//!
//! # Theory of operation
//!
//! At most `workers_max` threads *run* jobs. A job that waits for its peer (a handler that reads a
//! body as it comes) does not run meanwhile: it has given its place away, and if nobody is there to
//! take it while work is queued, one more thread is started. So peers that dawdle hold threads, up
//! to a limit of their own, but never keep other requests from being answered. When the wait is
//! over the job runs on at once: for a moment more threads run than should. A thread that finds
//! more than enough others ends.
//!
//! Waking a thread costs more than most handlers. So [`Queue::push`] wakes nobody: an I/O thread
//! pushes all it has and then calls [`Queue::wake`], which wakes one worker; that one wakes the
//! next if it finds more than one job. The thread that slept last is woken first: its stack is
//! warm, and those that are not needed sleep on.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};

use crate::io::conn::Conn;
#[cfg(feature = "http2")]
use crate::io::stream::{StreamJob, StreamWork};
use crate::request::Request;
use crate::ws::Socket;

/// Something to do that may block.
#[derive(Debug)]
pub(crate) enum Job {
    /// Answer the request that came on this connection.
    Handle(Box<Conn>, Box<Request>),
    /// Send more of the answer under way.
    Pump(Box<Conn>),
    /// Go on with the handshake.
    #[cfg(feature = "tls")]
    Handshake(Box<Conn>),
    /// Hand a WebSocket's events to its handler.
    Events(Socket),
    /// Something for a stream of a connection that stays where it is.
    #[cfg(feature = "http2")]
    Stream(Box<StreamJob>),
}

impl Job {
    /// Whether it begins something new, which may be refused.
    fn is_request(&self) -> bool {
        match self {
            Self::Handle(..) => true,
            Self::Pump(_) | Self::Events(_) => false,
            #[cfg(feature = "tls")]
            Self::Handshake(_) => true,
            #[cfg(feature = "http2")]
            Self::Stream(job) => matches!(job.work, StreamWork::Handle(_)),
        }
    }

    /// Whether it may wait for its peer.
    fn is_streamed(&self) -> bool {
        match self {
            Self::Handle(conn, _) => conn.proto.has_body(),
            Self::Pump(_) | Self::Events(_) => false,
            #[cfg(feature = "tls")]
            Self::Handshake(_) => false,
            #[cfg(feature = "http2")]
            Self::Stream(job) => match &job.work {
                StreamWork::Handle(request) => request.is_streamed(),
                StreamWork::Fulfil(..) | StreamWork::Pull(_) => false,
            },
        }
    }
}

/// Starts one more worker.
type Start = Box<dyn Fn() -> io::Result<()> + Send + Sync>;

/// A queue to all workers, bounded for new requests. Answers under way always get in: they are
/// bounded by the connections. They do not wait behind new requests, however many those are; where
/// both wait, workers take of them in turn.
pub(crate) struct Queue {
    state: Mutex<State>,
    start: OnceLock<Start>,
    len_max: usize,
    workers_max: usize,
    waiting_max: usize,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<Job>,
    pumps: VecDeque<Job>,
    /// The next job is a request, if one waits.
    is_requests_turn: bool,
    is_closed: bool,
    /// Threads there are.
    thread_count: usize,
    /// Threads that wait for a job, the one that came last at the end.
    idle: Vec<Thread>,
    /// A thread was woken and has not looked yet.
    is_waking: bool,
    /// Jobs that run.
    running_count: usize,
    /// Jobs that have given their place away.
    waiting_count: usize,
}

impl State {
    fn take(&mut self) -> Option<Job> {
        let first = if self.is_requests_turn {
            self.requests.pop_front()
        } else {
            None
        };
        let job = first
            .or_else(|| self.pumps.pop_front())
            .or_else(|| self.requests.pop_front())?;
        self.is_requests_turn = !job.is_request();
        Some(job)
    }

    fn has_jobs(&self) -> bool {
        !(self.requests.is_empty() && self.pumps.is_empty())
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

impl Queue {
    pub(crate) fn new(len_max: usize, workers_max: usize, waiting_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            start: OnceLock::new(),
            len_max,
            workers_max,
            waiting_max,
        }
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
    pub(crate) fn push(&self, job: Job) -> Result<(), Job> {
        let mut state = self.lock();
        if !job.is_request() {
            state.pumps.push_back(job);
        } else if state.requests.len() >= self.len_max
            || job.is_streamed() && state.waiting_count >= self.waiting_max
        {
            return Err(job);
        } else {
            state.requests.push_back(job);
        }
        Ok(())
    }

    /// Sees to it that what was pushed is taken up.
    pub(crate) fn wake(&self) {
        self.help(self.lock());
    }

    /// Waits for a job; `None` once this worker is not needed any more. `has_finished`: the caller
    /// has done a job.
    pub(crate) fn pop(&self, has_finished: bool) -> Option<Job> {
        let mut state = self.lock();
        if has_finished {
            state.running_count -= 1;
        }
        loop {
            if state.running_count < self.workers_max
                && let Some(job) = state.take()
            {
                state.running_count += 1;
                self.help(state);
                return Some(job);
            }
            let is_surplus = state.thread_count - state.waiting_count > self.workers_max;
            if is_surplus || state.is_closed && !state.has_jobs() {
                state.thread_count -= 1;
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
            // May return for no reason.
            thread::park();
            state = self.lock();
            if state.idle.iter().all(|thread| thread.id() != own.id()) {
                state.is_waking = false;
                return state;
            }
        }
    }

    /// Called by a job that is about to wait for its peer: others may run until the result is
    /// dropped. `None` if too many wait already.
    pub(crate) fn give_place(&self) -> Option<Waiting<'_>> {
        let mut state = self.lock();
        if state.waiting_count >= self.waiting_max {
            return None;
        }
        state.running_count -= 1;
        state.waiting_count += 1;
        self.help(state);
        Some(Waiting(self))
    }

    /// Lets the workers go once the queue is empty.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        idle.iter().for_each(Thread::unpark);
    }

    pub(crate) fn load(&self) -> Load {
        let state = self.lock();
        Load {
            queued_count: state.requests.len() + state.pumps.len(),
            running_count: state.running_count,
            waiting_count: state.waiting_count,
        }
    }

    /// Sees to it that a thread takes up what is queued.
    fn help(&self, mut state: MutexGuard<'_, State>) {
        let help = if !state.has_jobs() || state.is_waking {
            // A thread that was woken looks after the rest.
            Help::None
        } else if state.running_count >= self.workers_max {
            // Whoever finishes first takes it.
            Help::None
        } else if let Some(thread) = state.idle.pop() {
            state.is_waking = true;
            Help::Wake(thread)
        } else if state.thread_count - state.waiting_count < self.workers_max {
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
            Help::Start => drop(self.start_worker()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A job that has given its place away; takes it back when dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Queue);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.waiting_count -= 1;
        state.running_count += 1;
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.load()).finish()
    }
}

#[cfg(test)]
mod tests;
