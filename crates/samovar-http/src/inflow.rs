//! Request bodies of HTTP/2 that a handler reads as they come.
//!
//! The I/O thread puts in what arrives; no more arrives than the stream's window, which opens by
//! what the handler has read.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::{Buf, Bytes, BytesMut};

use crate::http::Status;
use crate::io::stream::{StreamNews, StreamRef};
use crate::patience::{GLANCE_TIME, Patience};
use crate::server::Core;
use crate::upload::BodyError;

/// Bytes read before the peer is told, so that it is not told of every few.
const RELEASE_LEN: usize = 16 * 1024;

/// The part of a body that has come and was not read.
#[derive(Debug, Default)]
pub(crate) struct Inflow {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Bytes>,
    /// What came last in pieces too small to be kept one by one: a byte would cost forty.
    small: BytesMut,
    end: Option<Result<(), BodyError>>,
}

/// Pieces below this length, in bytes, are put together.
const SMALL_LEN: usize = 4096;

impl State {
    fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.small.is_empty()
    }

    /// Moves what is small behind the other pieces.
    fn gather(&mut self) {
        if !self.small.is_empty() {
            let small = self.small.split().freeze();
            self.pieces.push_back(small);
        }
    }
}

impl Inflow {
    /// More has come.
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

    /// No more comes. The first end counts.
    pub(crate) fn end(&self, end: Result<(), BodyError>) {
        self.lock().end.get_or_insert(end);
        self.arrived.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream of an HTTP/2 connection, while a handler has its request.
#[derive(Debug)]
pub(crate) struct StreamLink {
    stream: StreamRef,
    core: Arc<Core>,
    /// The body, where it is streamed.
    pub(crate) inflow: Option<Arc<Inflow>>,
    expects_continue: bool,
    /// Bytes read that the peer was not told of.
    unreleased_len: usize,
    patience: Patience,
}

impl StreamLink {
    pub(crate) fn new(
        stream: StreamRef,
        core: &Arc<Core>,
        inflow: Option<Arc<Inflow>>,
        expects_continue: bool,
    ) -> Self {
        Self {
            stream,
            core: Arc::clone(core),
            inflow,
            expects_continue,
            unreleased_len: 0,
            patience: Patience::default(),
        }
    }

    /// Sends an interim response.
    pub(crate) fn inform(&self, status: Status, fields: Vec<u8>) {
        self.stream
            .send(&self.core, StreamNews::Inform(status, fields));
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(inflow) = self.inflow.clone() else {
            return Ok(0);
        };
        let mut state = inflow.lock();
        loop {
            if state.pieces.is_empty() {
                state.gather();
            }
            if let Some(piece) = state.pieces.front_mut() {
                let len = piece.len().min(buffer.len());
                piece.copy_to_slice(buffer.get_mut(..len).unwrap_or_default());
                if piece.is_empty() {
                    state.pieces.pop_front();
                }
                let is_empty = state.is_empty();
                drop(state);
                self.release(len, is_empty);
                return Ok(len);
            }
            match state.end {
                Some(Ok(())) => return Ok(0),
                Some(Err(error)) => return Err(error.into()),
                None => state = self.wait(&inflow, state)?,
            }
        }
    }

    fn release(&mut self, len: usize, is_empty: bool) {
        self.patience.moved(len);
        self.unreleased_len += len;
        if is_empty || self.unreleased_len >= RELEASE_LEN {
            let len = std::mem::take(&mut self.unreleased_len);
            self.stream.send(&self.core, StreamNews::Release(len));
        }
    }

    /// Waits for the peer, with another worker in this one's place.
    fn wait<'a>(
        &mut self,
        inflow: &'a Inflow,
        state: MutexGuard<'a, State>,
    ) -> io::Result<MutexGuard<'a, State>> {
        drop(state);
        // RFC 9110, 10.1.1: nothing has come yet, so the peer waits to be asked.
        if std::mem::take(&mut self.expects_continue) {
            self.inform(Status::CONTINUE, Vec::new());
        }
        // Where too many wait already it keeps its place: for one stall time at most.
        let _place = self.core.queue.give_place(self.stream.lane);
        let mut state = inflow.lock();
        while state.is_empty() && state.end.is_none() {
            if self.core.is_cut_off.load(Ordering::Acquire) {
                return Err(BodyError::Stopped.into());
            }
            let started = Instant::now();
            (state, _) = inflow
                .arrived
                .wait_timeout(state, GLANCE_TIME)
                .unwrap_or_else(PoisonError::into_inner);
            self.patience.waited(started.elapsed(), &self.core.limits)?;
        }
        Ok(state)
    }
}
