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
/// bounded by the connections. They do not wait behind new requests, however many those are; where
/// both wait, workers take of them in turn.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
    len_max: usize,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<Job>,
    pumps: VecDeque<Job>,
    /// The next job is a request, if one waits.
    is_requests_turn: bool,
    is_closed: bool,
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
        self.is_requests_turn = matches!(job.work, Work::Pump);
        Some(job)
    }
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
        match job.work {
            Work::Pump => state.pumps.push_back(job),
            Work::Handle(_) if state.requests.len() >= self.len_max => return Err(job),
            Work::Handle(_) => state.requests.push_back(job),
        }
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for a job; `None` once the queue is closed.
    pub(crate) fn pop(&self) -> Option<Job> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = state.take() {
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Instant;

    use super::*;
    use crate::head::{Head, Peer};
    use crate::io::slab::Key;
    use crate::proto::head::HeadIndex;

    fn job(work: Work) -> Job {
        let (socket, _) = UnixStream::pair().unwrap();
        let key = Key::from_bits(0);
        Job {
            conn: Box::new(Conn::new(socket.into(), Peer::Unix, 0, key, Instant::now())),
            work,
        }
    }

    fn request() -> Job {
        let index = HeadIndex::default();
        let head = Head::new(b"", &index, Peer::Unix);
        job(Work::Handle(Box::new(head.to_request(Vec::new()))))
    }

    #[test]
    fn answers_under_way_and_new_requests_take_turns() {
        let queue = Queue::new(4);
        for _ in 0..4 {
            queue.push(request()).unwrap();
        }
        assert!(queue.push(request()).is_err());
        for _ in 0..3 {
            queue.push(job(Work::Pump)).unwrap();
        }
        queue.close();
        let order: String = std::iter::from_fn(|| queue.pop())
            .map(|job| match job.work {
                Work::Pump => 'p',
                Work::Handle(_) => 'h',
            })
            .collect();
        assert_eq!(order, "phphphh");
    }
}
