//! The link of an HTTP/2 stream to its request, while a handler has the request.

use std::any::Any;
use std::io;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::inflow::{Inflow, State};
use crate::client::Peer;
use crate::conn::{StreamNews, StreamRef};
use crate::core::Core;
use crate::exec::patience::{self, Patience};
use crate::http::Status;
use crate::upload::RequestLink;

/// Number of bytes that a handler reads before the client's window is opened by that number. An
/// update for every small read would cost too much.
const RELEASE_LEN: usize = 16 * 1024;

/// The link of an HTTP/2 stream to its request, through which a handler reads the request body.
#[derive(Debug)]
pub(crate) struct StreamLink {
    stream: StreamRef,
    core: Arc<Core>,
    peer: Peer,
    /// The request body, if the handler reads it as it arrives; otherwise `None`.
    inflow: Option<Arc<Inflow>>,
    expects_continue: bool,
    /// Number of bytes that were read but not yet returned to the client's window.
    unreleased_len: usize,
    patience: Patience,
}

impl StreamLink {
    pub(crate) fn new(
        stream: StreamRef,
        core: &Arc<Core>,
        peer: Peer,
        inflow: Option<Arc<Inflow>>,
        expects_continue: bool,
    ) -> Self {
        Self {
            stream,
            core: Arc::clone(core),
            peer,
            inflow,
            expects_continue,
            unreleased_len: 0,
            patience: Patience::default(),
        }
    }

    /// Takes the received part of the body out of a request's link; returns `None` if the handler
    /// does not read the body as it arrives.
    pub(super) fn take_inflow(link: Box<dyn RequestLink>) -> Option<Arc<Inflow>> {
        link.into_any().downcast::<Self>().ok()?.inflow
    }

    fn release(&mut self, len: usize, is_empty: bool) {
        self.patience.moved(len);
        self.unreleased_len += len;
        if is_empty || self.unreleased_len >= RELEASE_LEN {
            let len = std::mem::take(&mut self.unreleased_len);
            self.core.send_news(self.stream, StreamNews::Release(len));
        }
    }

    /// Waits for the client. Meanwhile the worker slot is lent to other jobs.
    fn wait<'a>(
        &mut self,
        inflow: &'a Inflow,
        state: MutexGuard<'a, State>,
    ) -> io::Result<MutexGuard<'a, State>> {
        drop(state);
        // RFC 9110, 10.1.1: no byte of the body has arrived, so the client waits for `100
        // Continue`.
        if std::mem::take(&mut self.expects_continue) {
            let news = StreamNews::Inform(Status::CONTINUE, Vec::new());
            self.core.send_news(self.stream, news);
        }
        let core = Arc::clone(&self.core);
        let mut waiting = self.patience.wait(&core, self.peer, self.stream.lane);
        let outcome = loop {
            // Lending a slot may start a thread, so the state is not locked meanwhile.
            let time = match self.patience.check(&mut waiting) {
                Ok(time) => time,
                Err(error) => break Err(error),
            };
            let state = inflow.lock();
            if !state.is_empty() || state.end.is_some() {
                break Ok(state);
            }
            let started = Instant::now();
            drop(inflow.wait(state, time));
            if let Err(error) = self.patience.waited(started.elapsed(), &core.limits) {
                break Err(error);
            }
        };
        self.patience.end(waiting);
        Ok(outcome?)
    }
}

impl RequestLink for StreamLink {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(inflow) = self.inflow.clone() else {
            return Ok(0);
        };
        let mut state = inflow.lock();
        loop {
            if let Some(len) = state.read(buffer) {
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

    fn inform(&mut self, status: Status, fields: &[u8]) -> io::Result<()> {
        let news = StreamNews::Inform(status, fields.to_vec());
        self.core.send_news(self.stream, news);
        Ok(())
    }

    fn wait(&self, is_ready: &mut dyn FnMut(Duration) -> bool) -> io::Result<()> {
        patience::wait(&self.core, self.stream.lane, is_ready)
    }

    fn is_streamed(&self) -> bool {
        self.inflow.is_some()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
