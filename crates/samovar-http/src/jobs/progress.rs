//! The requests whose handlers run, for the report after a drain and for the monitor.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::job::Job;
use super::slot::Slot;
use crate::conn::StreamWork;
use crate::lane::Lane;
use crate::request::Request;
use crate::sync::Lock;
use crate::sys;

/// A request that a worker is processing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unfinished {
    /// The method and target of the request, such as `GET /reports?year=2024`, or `WebSocket` for
    /// the handler of a WebSocket. Control characters are escaped.
    pub request: String,
    /// Time since the worker has started.
    pub duration: Duration,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:.1} s)", self.request, self.duration.as_secs_f64())
    }
}

/// The jobs of all workers.
#[derive(Debug, Default)]
pub(crate) struct Jobs(Mutex<Vec<Weak<Running>>>);

/// The job of one worker thread.
#[derive(Debug)]
pub(crate) struct Running {
    /// The thread, by the kernel's number.
    pub(super) thread: u32,
    pub(crate) slot: Arc<Slot>,
    started: Mutex<Started>,
}

#[derive(Debug, Default)]
struct Started {
    /// Method and target of the request, or the name of the job. Keeps its memory between jobs.
    text: Vec<u8>,
    /// Start of the job; `None` if the thread has none, or one that no request waits for.
    since: Option<Instant>,
}

impl Jobs {
    /// Adds the calling thread, which counts until the returned value is dropped.
    pub(crate) fn join(&self) -> Arc<Running> {
        let running = Arc::new(Running {
            thread: sys::thread_id(),
            slot: Arc::default(),
            started: Mutex::default(),
        });
        let mut all = self.0.locked();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&running));
        running
    }

    /// Returns the requests that workers are processing, those first that have run longest.
    pub(crate) fn unfinished(&self) -> Vec<Unfinished> {
        let workers = self.all();
        let report = |worker: &Arc<Running>| {
            let started = worker.started.locked();
            Some(Unfinished {
                request: started.text.escape_ascii().to_string(),
                duration: started.since?.elapsed(),
            })
        };
        let mut unfinished: Vec<_> = workers.iter().filter_map(report).collect();
        unfinished.sort_by_key(|one| std::cmp::Reverse(one.duration));
        unfinished
    }

    /// Returns the threads that occupy a slot of the lane.
    pub(super) fn in_lane(&self, lane: Lane) -> Vec<Arc<Running>> {
        let mut workers = self.all();
        workers.retain(|worker| worker.slot.lane() == Some(lane));
        workers
    }

    fn all(&self) -> Vec<Arc<Running>> {
        self.0.locked().iter().filter_map(Weak::upgrade).collect()
    }
}

impl Running {
    /// Records the job that the thread starts.
    pub(crate) fn start(&self, job: &Job) {
        let (request, name): (Option<&Request>, &[u8]) = match job {
            Job::Handle(_, request) => (Some(request), b""),
            Job::Pump(conn) => (conn.request.as_deref(), b"a response"),
            Job::Stream(job) => match &job.work {
                StreamWork::Handle(request) => (Some(request), b""),
                StreamWork::Fulfil(..) | StreamWork::Pull(_) => (None, b"a response"),
            },
            Job::Events(_) => (None, b"WebSocket"),
            Job::Discard(_) | Job::Handshake(_) => return,
        };
        let mut started = self.started.locked();
        started.text.clear();
        match request.map(Request::head) {
            Some(head) => {
                started.text.extend_from_slice(head.method_name());
                started.text.push(b' ');
                started.text.extend_from_slice(head.target());
            }
            None => started.text.extend_from_slice(name),
        }
        started.since = Some(Instant::now());
    }

    /// Records that the job has ended.
    pub(crate) fn end(&self) {
        self.started.locked().since = None;
    }

    /// Returns how long the job has run; `None` if there is none.
    pub(super) fn duration(&self) -> Option<Duration> {
        Some(self.started.locked().since?.elapsed())
    }
}
