//! Received bytes of HTTP/2 request bodies that a handler reads while they arrive.
//!
//! The I/O thread adds received bytes, at most the stream's window. The window opens by the bytes
//! that the handler has read.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

use crate::sync::Lock;
use crate::upload::BodyError;

/// The part of a body that was received and not read yet.
#[derive(Debug, Default)]
pub(crate) struct Inflow {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pieces: VecDeque<Bytes>,
    /// The last pieces, if they are too small to be kept one by one: a byte would cost forty.
    small: BytesMut,
    pub(super) end: Option<Result<(), BodyError>>,
}

/// Pieces below this length, in bytes, are merged.
const SMALL_LEN: usize = 4096;

impl State {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.small.is_empty()
    }

    /// Moves `small` behind the other pieces.
    fn gather(&mut self) {
        if !self.small.is_empty() {
            let small = self.small.split().freeze();
            self.pieces.push_back(small);
        }
    }

    /// Copies bytes of the first piece; `None` if there is none.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Option<usize> {
        if self.pieces.is_empty() {
            self.gather();
        }
        let piece = self.pieces.front_mut()?;
        let len = piece.len().min(buffer.len());
        piece.copy_to_slice(&mut buffer[..len]);
        if piece.is_empty() {
            self.pieces.pop_front();
        }
        Some(len)
    }
}

impl Inflow {
    /// Adds received bytes.
    pub(crate) fn put(&self, bytes: Bytes) {
        let mut state = self.lock();
        if bytes.len() < SMALL_LEN {
            state.small.extend_from_slice(&bytes);
        }
        if bytes.len() >= SMALL_LEN || state.small.len() >= SMALL_LEN {
            state.gather();
        }
        if bytes.len() >= SMALL_LEN {
            state.pieces.push_back(bytes);
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Ends the body; the first end counts.
    pub(crate) fn end(&self, end: Result<(), BodyError>) {
        self.lock().end.get_or_insert(end);
        self.arrived.notify_one();
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.locked()
    }

    /// Waits until something is added, or `time` has passed.
    pub(super) fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        time: Duration,
    ) -> MutexGuard<'a, State> {
        let waited = self.arrived.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
