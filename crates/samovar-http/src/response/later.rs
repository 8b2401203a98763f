//! Deferred responses, completed by any thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::Response;
use crate::http::Status;
use crate::net::wake::Waker;
use crate::sync::Lock;

/// State of a deferred response, shared by the waiting connection and the [`Responder`].
#[derive(Debug, Default)]
pub(crate) struct Later {
    state: Mutex<State>,
    /// Set when the client has disconnected.
    is_abandoned: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    response: Option<Response>,
    /// Header fields of the placeholder.
    fields: Vec<u8>,
    waker: Option<Waker>,
}

impl Later {
    /// Takes the response if it is complete and `fits` accepts it; otherwise returns `None`.
    pub(crate) fn take_if(&self, fits: impl FnOnce(&Response) -> bool) -> Option<Response> {
        let mut state = self.state.locked();
        let mut response = state.response.take_if(|response| fits(response))?;
        response.add_fields_of_placeholder(&state.fields);
        Some(response)
    }

    /// Sets the header fields of the placeholder, before the first [`take_if`](Self::take_if).
    pub(crate) fn set_fields(&self, fields: Vec<u8>) {
        if !fields.is_empty() {
            self.state.locked().fields = fields;
        }
    }

    /// Calls `waker` when the response is complete; at once if it already is.
    pub(crate) fn watch(&self, waker: Waker) {
        let mut state = self.state.locked();
        if state.response.is_none() {
            state.waker = Some(waker);
            return;
        }
        drop(state);
        waker.wake();
    }

    /// Records that the client has disconnected.
    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }

    fn put(&self, response: Response) {
        let mut state = self.state.locked();
        state.response = Some(response);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Completes a deferred response; created by [`Response::later`](crate::Response::later). It can be
/// moved to any thread. If it is dropped without a response, the client gets 500, which no error
/// handler renders.
#[derive(Debug)]
pub struct Responder {
    later: Option<Arc<Later>>,
}

impl Responder {
    pub(crate) fn new(later: Arc<Later>) -> Self {
        Self { later: Some(later) }
    }

    /// Completes the response, which wakes the connection. Never blocks.
    pub fn respond(mut self, response: Response) {
        if let Some(later) = self.later.take() {
            later.put(response);
        }
    }

    /// Returns whether the client has disconnected, so that no response is needed: it closed the
    /// connection or shut down its sending side (see
    /// [`Limits::half_close`](crate::Limits::half_close)). The failure of a client's machine or
    /// network is not detected.
    pub fn is_abandoned(&self) -> bool {
        self.later
            .as_ref()
            .is_none_or(|later| later.is_abandoned.load(Ordering::Acquire))
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(later) = self.later.take() {
            let status = Status::INTERNAL_SERVER_ERROR;
            later.put(Response::text(status, "Internal Server Error\n"));
        }
    }
}
