//! [`Pipe`]: brings the pieces of a NAR from several threads into order.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::read_error::ReadError;

/// Length of a piece, in bytes.
pub(crate) const PIECE_LEN: usize = 256 << 10;

/// Number of bytes by which threads may be ahead of the consumer.
const WINDOW_LEN: u64 = 8 << 20;

/// Reason why a thread ends early.
pub(crate) enum Interrupt {
    Failed(ReadError),
    /// The consumer needs no more.
    Stopped,
}

impl From<ReadError> for Interrupt {
    fn from(error: ReadError) -> Self {
        Self::Failed(error)
    }
}

/// The way of the pieces from the threads to the consumer.
#[derive(Debug)]
pub(crate) struct Pipe {
    state: Mutex<PipeState>,
    /// The next piece has come, or a thread has ended.
    next_came: Condvar,
    /// The consumer has advanced, or needs no more.
    advanced: Condvar,
}

#[derive(Debug)]
struct PipeState {
    /// Pieces by their offset in the NAR.
    pieces: BTreeMap<u64, Vec<u8>>,
    /// Number of bytes that the consumer has taken.
    taken: u64,
    /// Length of the NAR.
    len: u64,
    /// Number of threads that send pieces.
    threads: usize,
    /// The first error.
    error: Option<ReadError>,
    is_stopped: bool,
    /// Empty buffers.
    free: Vec<Vec<u8>>,
}

/// Counts a thread until it ends, also by a panic.
pub(crate) struct Running<'a>(pub(crate) &'a Pipe);

pub(crate) struct StopOnDrop<'a>(pub(crate) &'a Pipe);

impl Pipe {
    /// Creates the pipe of a NAR of `len` bytes, with `threads` that are about to start.
    pub(crate) fn new(len: u64, threads: usize) -> Self {
        Self {
            state: Mutex::new(PipeState {
                pieces: BTreeMap::new(),
                taken: 0,
                len,
                threads,
                error: None,
                is_stopped: false,
                free: Vec::new(),
            }),
            next_came: Condvar::new(),
            advanced: Condvar::new(),
        }
    }

    pub(crate) fn start_thread(&self) -> Running<'_> {
        locked(&self.state).threads += 1;
        Running(self)
    }

    /// Returns an empty buffer.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        let free = locked(&self.state).free.pop();
        free.unwrap_or_else(|| Vec::with_capacity(PIECE_LEN))
    }

    pub(crate) fn recycle(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0 {
            buffer.clear();
            locked(&self.state).free.push(buffer);
        }
    }

    /// Delivers a piece, after waiting until the consumer is near.
    pub(crate) fn put(&self, offset: u64, piece: Vec<u8>) -> Result<(), Interrupt> {
        let mut state = locked(&self.state);
        while !state.is_stopped && offset >= state.taken + WINDOW_LEN {
            let woken = self.advanced.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_stopped {
            return Err(Interrupt::Stopped);
        }
        state.pieces.insert(offset, piece);
        if offset == state.taken {
            self.next_came.notify_one();
        }
        Ok(())
    }

    /// Ends the pipe with an error. The consumer gets the first one.
    pub(crate) fn fail(&self, error: ReadError) {
        let mut state = locked(&self.state);
        state.error.get_or_insert(error);
        state.is_stopped = true;
        self.next_came.notify_one();
        self.advanced.notify_all();
    }

    pub(crate) fn stop(&self) {
        locked(&self.state).is_stopped = true;
        self.advanced.notify_all();
    }

    /// Waits for the next piece; `None` at the end of the NAR.
    pub(crate) fn take(&self) -> Result<Option<Vec<u8>>, ReadError> {
        let mut state = locked(&self.state);
        loop {
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            if state.taken == state.len {
                return Ok(None);
            }
            let taken = state.taken;
            if let Some(piece) = state.pieces.remove(&taken) {
                state.taken += piece.len() as u64;
                self.advanced.notify_all();
                return Ok(Some(piece));
            }
            if state.threads == 0 || state.is_stopped {
                return Err(panicked());
            }
            let woken = self.next_came.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.fail(panicked());
        }
        locked(&self.0.state).threads -= 1;
        self.0.next_came.notify_one();
    }
}

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Returns the error for a thread that ended without its result.
pub(crate) fn panicked() -> ReadError {
    ReadError::Thread(io::Error::other("a thread has ended early"))
}

/// Locks a mutex. Its data is valid even if another thread panicked while it had the lock.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
