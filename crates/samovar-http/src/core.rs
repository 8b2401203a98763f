//! State that all threads of a server share.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::Instant;

#[cfg(feature = "compression")]
use crate::compress::Compression;
use crate::conn::{Inbox, Message, StreamNews, StreamRef};
use crate::jobs::{Job, Jobs, Queue};
use crate::limits::Limits;
use crate::memory::{Blocks, Budget, BufferPool};
use crate::net::key::Key;
use crate::net::wake::{Host, Waker};
use crate::observer::Incident;
use crate::service::Service;

/// The application and the engine's shared state.
#[derive(Debug)]
pub(crate) struct Shared<S> {
    pub(crate) service: S,
    pub(crate) core: Arc<Core>,
}

impl<S> Deref for Shared<S> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl<S: Service> Shared<S> {
    /// Queues a job, as [`Queue::push`] does. If it is an upload for which no place is free, a slow
    /// upload may have to make room for it.
    pub(crate) fn submit(&self, job: Job) -> Result<(), Job> {
        let job = match self.queue.push(job) {
            Err(job) if job.is_streamed() => job,
            outcome => return outcome,
        };
        let Some(peer) = self.queue.make_room(&job, &self.limits) else {
            return Err(job);
        };
        let incident = Incident::TooSlow { peer };
        self.service.observer().incident(&incident);
        self.queue.push_into_room(job)
    }
}

/// The engine's shared state, which does not depend on the application.
pub(crate) struct Core {
    pub(crate) limits: Limits,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) queue: Queue,
    /// The jobs that workers run.
    pub(crate) jobs: Jobs,
    pub(crate) inboxes: Vec<Inbox>,
    pub(crate) request_memory: Arc<Budget>,
    pub(crate) buffers: Arc<BufferPool>,
    pub(crate) connection_count: AtomicUsize,
    pub(crate) accepted_count: AtomicU64,
    /// Set when a drain begins: responses then contain `Connection: close`.
    pub(crate) is_draining: AtomicBool,
    /// Time from which handlers no longer wait for their clients, shortly before the drain timeout
    /// expires; `None` before a drain.
    pub(crate) stops_at: Mutex<Option<Instant>>,
    /// Set when the drain timeout has expired or the I/O threads have ended: responses in progress
    /// are then aborted.
    pub(crate) is_cut_off: AtomicBool,
    /// Budget of TLS handshakes in progress.
    pub(crate) handshakes: Arc<Budget>,
    #[cfg(feature = "compression")]
    pub(crate) compression: Option<Compression>,
}

impl Core {
    /// Queues a message for an I/O thread; returns the message if that thread has ended.
    pub(crate) fn send_home(&self, home: usize, message: Message) -> Result<(), Message> {
        self.inboxes[home].push(message)
    }

    /// Creates a waker for an HTTP/1 connection or a WebSocket.
    pub(crate) fn waker(self: &Arc<Self>, home: usize, key: Key) -> Waker {
        Waker::new(Arc::clone(self) as Arc<dyn Host>, home, key, 0)
    }

    pub(crate) fn stream_waker(self: &Arc<Self>, stream: StreamRef) -> Waker {
        let host = Arc::clone(self) as Arc<dyn Host>;
        Waker::new(host, stream.home, stream.key, stream.stream)
    }

    /// Sends an update of a stream to the stream's I/O thread. Ignored if that thread has ended,
    /// because its streams have ended too.
    pub(crate) fn send_news(&self, stream: StreamRef, news: StreamNews) {
        let message = Message::Stream(stream.key, stream.stream, news);
        drop(self.send_home(stream.home, message));
    }
}

impl Host for Core {
    fn wake(&self, home: usize, key: Key, stream: u32) {
        // If the I/O thread has ended, so have its connections.
        drop(self.send_home(home, Message::Wake(key, stream)));
    }

    fn buffers(&self) -> &Arc<BufferPool> {
        &self.buffers
    }

    fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}
