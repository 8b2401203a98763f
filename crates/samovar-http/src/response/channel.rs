//! Response bodies that any thread can write.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::body::{Batch, Progress, Source};
use crate::net::wake::Waker;
use crate::sync::Lock;

/// Capacity of a channel's queue, in bytes.
pub(crate) const CAPACITY_LEN: usize = 256 * 1024;

/// Maximum length of a queued piece to which further bytes are added, in bytes.
const GATHER_LEN: usize = 16 * 1024;

/// Creates the two ends of a channel: the sender and the source of the body.
pub(crate) fn channel() -> (Sender, Receiver) {
    let pipe = Arc::new(Pipe::default());
    (Sender(Arc::clone(&pipe)), Receiver(pipe))
}

#[derive(Default)]
struct Pipe {
    state: Mutex<State>,
    drained: Condvar,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Vec<u8>>,
    /// Number of bytes already taken from the first piece; less than its length.
    taken_len: usize,
    queued_len: usize,
    waker: Option<Waker>,
    /// The end of the body; `None` until the sender has finished or was dropped.
    end: Option<End>,
    is_reader_gone: bool,
    beat: Option<Box<Beat>>,
}

/// The heartbeat of a channel.
struct Beat {
    bytes: Vec<u8>,
    interval: Duration,
    /// Time at which bytes were last taken from the channel.
    since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Finished,
    Abandoned,
}

/// The writing end of a body made by [`Body::channel`](crate::Body::channel).
///
/// Any thread can use it. At most 256 KiB are queued. The body is complete only after
/// [`finish`](Self::finish). If the sender is dropped before, for example by a panic, the
/// connection is reset, so that the client does not mistake a truncated body for a complete one.
pub struct Sender(Arc<Pipe>);

/// Reason why [`Sender`] could not queue bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The client has disconnected.
    #[error("client has left")]
    Gone,
    /// The queue is full: the client reads too slowly.
    #[error("queue is full")]
    Full,
}

impl From<SendError> for io::Error {
    fn from(error: SendError) -> Self {
        let kind = match error {
            SendError::Gone => io::ErrorKind::BrokenPipe,
            SendError::Full => io::ErrorKind::WouldBlock,
        };
        Self::new(kind, error)
    }
}

impl Sender {
    /// Queues bytes; blocks while the queue is full. The queue drains only after the handler has
    /// returned the body, so a handler that sends more than 256 KiB before it returns blocks
    /// forever; such a handler sends from another thread.
    ///
    /// # Errors
    ///
    /// [`SendError::Gone`] if the client has disconnected.
    pub fn send(&self, bytes: impl Into<Vec<u8>>) -> Result<(), SendError> {
        let mut state = self.0.state.locked();
        while state.queued_len >= CAPACITY_LEN && !state.is_reader_gone {
            state = self
                .0
                .drained
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.put(state, bytes.into())
    }

    /// Queues bytes if the queue has capacity. Never blocks.
    ///
    /// # Errors
    ///
    /// A [`SendError`] if the queue is full or the client has disconnected; nothing was queued
    /// then.
    pub fn try_send(&self, bytes: impl Into<Vec<u8>>) -> Result<(), SendError> {
        let state = self.0.state.locked();
        if state.queued_len >= CAPACITY_LEN && !state.is_reader_gone {
            return Err(SendError::Full);
        }
        self.put(state, bytes.into())
    }

    /// Returns whether the client has disconnected: it closed the connection, or it shut down its
    /// sending side while all queued bytes were sent (see
    /// [`Limits::half_close`](crate::Limits::half_close)). If the client's machine or network
    /// fails, only sending detects that.
    pub fn is_gone(&self) -> bool {
        self.0.state.locked().is_reader_gone
    }

    /// Sends `bytes` whenever nothing else was sent for `interval`, until the body ends. For event
    /// streams behind proxies, which close connections that are silent for long, often after a
    /// minute: a comment such as `": \n\n"` every 15 seconds. A heartbeat also detects clients
    /// that have vanished.
    ///
    /// The I/O threads keep the time, so a heartbeat needs no thread. It is at most a quarter of a
    /// second late, and is not sent while the client reads too slowly. A later call replaces the
    /// heartbeat; without bytes, there is none any more.
    pub fn beat(&self, bytes: impl Into<Vec<u8>>, interval: Duration) {
        let bytes = bytes.into();
        let beat = Beat {
            bytes,
            interval,
            since: Instant::now(),
        };
        let mut state = self.0.state.locked();
        state.beat = (!beat.bytes.is_empty()).then(|| Box::new(beat));
        // If the source waits, the engine must learn until when.
        let waker = state.waker.take();
        drop(state);
        wake(waker);
    }

    /// Completes the body.
    pub fn finish(self) {
        self.end(End::Finished);
    }

    fn put(&self, mut state: MutexGuard<'_, State>, bytes: Vec<u8>) -> Result<(), SendError> {
        if state.is_reader_gone {
            return Err(SendError::Gone);
        }
        if !bytes.is_empty() {
            state.queued_len += bytes.len();
            match state.pieces.back_mut() {
                // Join small pieces: each piece has an overhead that can exceed its bytes.
                Some(last) if last.len() + bytes.len() <= GATHER_LEN => {
                    last.extend_from_slice(&bytes);
                }
                _ => state.pieces.push_back(bytes),
            }
            let waker = state.waker.take();
            drop(state);
            wake(waker);
        }
        Ok(())
    }

    fn end(&self, end: End) {
        let mut state = self.0.state.locked();
        if state.end.is_none() {
            state.end = Some(end);
            let waker = state.waker.take();
            drop(state);
            wake(waker);
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.end(End::Abandoned);
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

/// The receiving end of a channel, as the source of a body.
pub(crate) struct Receiver(Arc<Pipe>);

impl State {
    /// Records that bytes are sent. If there are none and the heartbeat is due, adds it.
    fn add_beat(&mut self) {
        let Some(beat) = &mut self.beat else {
            return;
        };
        let now = Instant::now();
        if self.pieces.is_empty() {
            if self.end.is_some() || now.saturating_duration_since(beat.since) < beat.interval {
                return;
            }
            self.queued_len += beat.bytes.len();
            self.pieces.push_back(beat.bytes.clone());
        }
        beat.since = now;
    }
}

impl Source for Receiver {
    fn len(&self) -> Option<u64> {
        None
    }

    fn next_pull(&self) -> Option<Instant> {
        let state = self.0.state.locked();
        let beat = state.beat.as_ref()?;
        // `None` if the time cannot be expressed: nobody waits until then.
        beat.since.checked_add(beat.interval)
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        let mut state = self.0.state.locked();
        state.add_beat();
        while let Some(piece) = state.pieces.front() {
            let rest = &piece[state.taken_len..];
            let len = batch.put(rest);
            if len < rest.len() {
                state.taken_len += len;
                state.queued_len -= len;
                break;
            }
            state.taken_len = 0;
            state.queued_len -= len;
            state.pieces.pop_front();
        }
        if state.queued_len < CAPACITY_LEN {
            self.0.drained.notify_all();
        }
        match state.end {
            _ if !state.pieces.is_empty() => Ok(Progress::More),
            Some(End::Finished) => Ok(Progress::End),
            Some(End::Abandoned) => Err(io::Error::other("body was not finished")),
            None => {
                state.waker = Some(batch.waker().clone());
                Ok(Progress::Wait)
            }
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut state = self.0.state.locked();
        state.is_reader_gone = true;
        state.pieces = VecDeque::new();
        self.0.drained.notify_all();
    }
}
