//! The requests whose handlers run, for the report after a drain.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use super::job::Job;
use crate::conn::StreamWork;
use crate::request::Request;
use crate::sync::Lock;

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
#[derive(Debug, Default)]
pub(crate) struct Running(Mutex<Started>);

#[derive(Debug, Default)]
struct Started {
    /// Method and target of the request, or the name of the job. Keeps its memory between jobs.
    text: Vec<u8>,
    /// Start of the job; `None` if the thread has none, or one that no request waits for.
    since: Option<Instant>,
}

impl Jobs {
    /// Adds a worker thread, which counts until the returned value is dropped.
    pub(crate) fn join(&self) -> Arc<Running> {
        let running = Arc::default();
        let mut all = self.0.locked();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&running));
        running
    }

    /// Returns the requests that workers are processing, those first that have run longest.
    pub(crate) fn unfinished(&self) -> Vec<Unfinished> {
        let workers: Vec<_> = self.0.locked().iter().filter_map(Weak::upgrade).collect();
        let report = |worker: &Arc<Running>| {
            let started = worker.0.locked();
            Some(Unfinished {
                request: started.text.escape_ascii().to_string(),
                duration: started.since?.elapsed(),
            })
        };
        let mut unfinished: Vec<_> = workers.iter().filter_map(report).collect();
        unfinished.sort_by_key(|one| std::cmp::Reverse(one.duration));
        unfinished
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
        let mut started = self.0.locked();
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
        self.0.locked().since = None;
    }
}
