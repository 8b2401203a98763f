//! Received bytes of an HTTP/2 request body that a handler reads as they arrive.
//!
//! The I/O thread adds received bytes, at most one stream window. The window opens by the number of
//! bytes that the handler has read.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

use crate::sync::Lock;
use crate::upload::BodyError;

/// The part of a request body that was received but not read yet.
#[derive(Debug, Default)]
pub(crate) struct Inflow {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pieces: VecDeque<Bytes>,
    /// The last pieces, merged because they are small: stored separately, a single byte would take
    /// forty bytes of memory.
    small: BytesMut,
    pub(super) end: Option<Result<(), BodyError>>,
}

/// Length below which pieces are merged, in bytes.
const SMALL_LEN: usize = 4096;

impl State {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.small.is_empty()
    }

    /// Appends `small` to the other pieces.
    fn gather(&mut self) {
        if !self.small.is_empty() {
            let small = self.small.split().freeze();
            self.pieces.push_back(small);
        }
    }

    /// Takes all pieces.
    pub(super) fn take(&mut self) -> VecDeque<Bytes> {
        self.gather();
        std::mem::take(&mut self.pieces)
    }

    /// Copies bytes of the first piece; returns `None` if there is no piece.
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
    /// Appends received bytes.
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

    /// Ends the body. Only the first call counts.
    pub(crate) fn end(&self, end: Result<(), BodyError>) {
        self.lock().end.get_or_insert(end);
        self.arrived.notify_one();
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.locked()
    }

    /// Waits until bytes or the end are added, or `time` has passed.
    pub(super) fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        time: Duration,
    ) -> MutexGuard<'a, State> {
        let waited = self.arrived.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
