//! What waits for a worker.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::head::Request;
use crate::io::conn::Conn;

/// Something to do for a connection, with the connection.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) conn: Box<Conn>,
    pub(crate) work: Work,
}

#[derive(Debug)]
pub(crate) enum Work {
    /// Answer the request.
    Handle(Box<Request>),
    /// Send more of the answer under way.
    Pump,
}

/// A queue to all workers, bounded for new requests. Answers under way always get in: they are
/// bounded by the connections.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
    len_max: usize,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

impl Queue {
    pub(crate) fn new(len_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            arrived: Condvar::new(),
            len_max,
        }
    }

    /// Adds a job, or gives it back if it is a request and the queue is full.
    pub(crate) fn push(&self, job: Job) -> Result<(), Job> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(job.work, Work::Handle(_)) && state.jobs.len() >= self.len_max {
            return Err(job);
        }
        state.jobs.push_back(job);
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for a job; `None` once the queue is closed.
    pub(crate) fn pop(&self) -> Option<Job> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.is_closed {
                return None;
            }
            state = self
                .arrived
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets the workers go once the queue is empty.
    pub(crate) fn close(&self) {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_closed = true;
        self.arrived.notify_all();
    }
}
