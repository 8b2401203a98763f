//! Responses without a connection, for tests of handlers: waits for deferred responses, and reads
//! bodies into memory.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::later::Later;
use super::{Body, Response};
use crate::body::{Batch, Progress, Source};
use crate::memory::{Blocks, BufferPool};
use crate::net::key::Key;
use crate::net::wake::{Host, Waker};
use crate::sync::Lock;

/// Takes the place of the server that a body or a deferred response wakes.
#[derive(Default)]
struct Alone {
    is_woken: Mutex<bool>,
    woken: Condvar,
    buffers: Arc<BufferPool>,
    blocks: Arc<Blocks>,
}

impl Host for Alone {
    fn wake(&self, _: usize, _: Key, _: u32) {
        *self.is_woken.locked() = true;
        self.woken.notify_all();
    }

    fn buffers(&self) -> &Arc<BufferPool> {
        &self.buffers
    }

    fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }
}

impl Alone {
    /// Returns the place and the waker that wakes it.
    fn new() -> (Arc<Self>, Waker) {
        let alone = Arc::new(Self::default());
        let key = Key {
            index: 0,
            generation: 0,
        };
        let host = Arc::clone(&alone) as Arc<dyn Host>;
        (alone, Waker::new(host, 0, key, 0))
    }

    /// Waits until the waker was called after the last wait.
    fn wait(&self) {
        let mut is_woken = self.is_woken.locked();
        while !std::mem::take(&mut *is_woken) {
            is_woken = self
                .woken
                .wait(is_woken)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Waits for a deferred response; returns any other response at once.
pub(crate) fn completed(mut response: Response) -> Response {
    let Some(later) = response.later.take() else {
        return response;
    };
    later.set_fields(response.fields);
    let mut own = wait_for(&later);
    // A deferred response cannot be deferred again.
    own.later = None;
    own
}

fn wait_for(later: &Later) -> Response {
    let (alone, waker) = Alone::new();
    later.watch(waker);
    loop {
        alone.wait();
        if let Some(response) = later.take_if(|_| true) {
            return response;
        }
    }
}

/// Reads a body into memory.
pub(super) fn read(body: Body) -> io::Result<Vec<u8>> {
    match body {
        Body::Source(source) => read_source(source),
        body => Ok(body.in_memory().unwrap_or_default().to_vec()),
    }
}

fn read_source(mut source: Box<dyn Source>) -> io::Result<Vec<u8>> {
    let (alone, waker) = Alone::new();
    let mut batch = Batch::new(waker);
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 16 * 1024]);
    loop {
        let progress = source.pull(&mut batch)?;
        loop {
            let len = batch.read(&mut piece)?;
            if len == 0 {
                break;
            }
            bytes.extend_from_slice(&piece[..len]);
        }
        batch.clear();
        match progress {
            Progress::More => {}
            Progress::End => return Ok(bytes),
            Progress::Wait => alone.wait(),
        }
    }
}
