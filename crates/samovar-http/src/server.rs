//! Starts, monitors and stops a server.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[cfg(feature = "compression")]
use crate::compress::Compression;
use crate::conn::{Inbox, Message};
use crate::core::{Core, Shared};
use crate::exec;
use crate::io::thread::IoThread;
use crate::jobs::{Jobs, Queue, Slots, Unfinished, monitor};
use crate::limits::Limits;
use crate::memory::{Budget, BufferPool};
use crate::net::listener::{Listener, Socket};
use crate::service::Service;
use crate::sync::Lock;
use crate::sys;
use crate::threads::Threads;

/// Minimum number of descriptors reserved for files: bodies, logs and databases.
const DESCRIPTORS_RESERVED: u64 = 256;

/// Number of worker slots that are there from the start, for each core.
const WORKERS_PER_CORE: usize = 8;

/// Default of the maximum number of worker slots in a lane. A thread that waits takes some tens of
/// kilobytes.
const WORKERS_MAX: usize = 512;

/// Maximum coalescing time. A sleeping I/O thread does not respond to events, not even to a drain.
const COALESCING_MAX: Duration = Duration::from_millis(100);

/// Time for which a drop waits for handlers, unless the server was drained.
const DROP_TIME: Duration = Duration::from_secs(10);

/// Time before the end of a drain from which handlers no longer wait for request bodies, so that
/// their responses are sent before the end.
const NOTICE_TIME: Duration = Duration::from_millis(500);

/// Maximum part of a drain that is notice.
const NOTICE_SHARE: u32 = 4;

/// Time that threads get after a drain to notice its end. Longer than the `STOP_CHECK_TIME` of
/// handlers that wait for a request body, so that they end even if the drain has given no notice.
const END_TIME: Duration = Duration::from_millis(250);

/// Part of the notice that [`Server::end`] keeps for the threads to notice the end.
const END_SHARE: u32 = 5;

/// Limit of descriptors below which half of them are reserved: a response may open several files.
const DESCRIPTORS_FEW: u64 = 4096;

/// Configuration of a server; created by [`Server::builder`].
#[derive(Debug)]
pub struct Builder<S> {
    service: S,
    limits: Limits,
    listeners: Vec<Listener>,
    io_threads: usize,
    coalescing: Duration,
    cores: usize,
    /// Maximum number of worker slots; `None` for the default.
    workers: Option<usize>,
    name: String,
    #[cfg(feature = "compression")]
    is_compressing: bool,
}

impl<S: Service> Builder<S> {
    /// Adds a listener, with or without TLS. A server needs at least one.
    #[must_use]
    pub fn listen(mut self, listener: Listener) -> Self {
        self.listeners.push(listener);
        self
    }

    /// Sets the limits of the server. Default: [`Limits::default`].
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the number of I/O threads; at least 1. Default: the number of cores.
    #[must_use]
    pub fn io_threads(mut self, count: usize) -> Self {
        self.io_threads = count.max(1);
        self
    }

    /// Sets the wake-up coalescing time: how long a busy I/O thread sleeps between two rounds, so
    /// that each round finds more events. Network cards do the same by interrupt moderation. At
    /// most 100 ms; default: zero, which means no sleep.
    ///
    /// Suited to many clients with infrequent requests, such as sensors: waking a thread costs more
    /// than most requests. A request that arrives at an idle thread is not delayed, and a thread
    /// with fewer than 64 connections never sleeps. A client that waits for each response before it
    /// sends the next request gets at most one response per interval: for such clients, even one
    /// millisecond is long.
    #[must_use]
    pub fn coalescing(mut self, time: Duration) -> Self {
        self.coalescing = time.min(COALESCING_MAX);
        self
    }

    /// Sets the maximum number of worker slots, at least 1, in each of the prompt, the slow and the
    /// writing lane: the number of handlers that may block at the same time, except those that lend
    /// their slot, or have lent it before: a handler goes on at once after it has waited for bytes
    /// of a [streamed](crate::Route::streaming) body, or in [`lend_slot`](crate::lend_slot). For
    /// handlers that wait for something of limited capacity, such as a database with so many
    /// connections. Slots beyond eight per core are used only while handlers block instead of
    /// computing.
    ///
    /// Default: 512. Only with the default, a handler that has waited for more than a second lends
    /// its slot by itself, if further requests need it; see [`manual::threads`].
    ///
    /// [`manual::threads`]: crate::manual::threads
    #[must_use]
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = Some(count.max(1));
        self
    }

    /// Sets a prefix for the names of the server's threads, to distinguish several servers in one
    /// process. Default: empty, so the names are `io-0`, `io-1` and `worker`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Compresses responses, including event streams, for clients that accept it. Default: as the
    /// service [chooses](Service::compresses), without event streams; a
    /// [`Router`](crate::Router::compression) compresses. See [`compress`](crate::compress).
    #[cfg(feature = "compression")]
    #[must_use]
    pub fn compression(mut self) -> Self {
        self.is_compressing = true;
        self
    }

    /// Starts the server's threads.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the builder has no
    /// [listener](Self::listen); other errors if descriptors or threads cannot be created.
    // Long: starts the parts of the server in order; the steps share the builder's fields.
    pub fn start(mut self) -> io::Result<Server<S>> {
        if self.listeners.is_empty() {
            let message = "a server without a listener: call Builder::listen before start";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let connections_max = connections_max(sys::descriptors_max().unwrap_or(u64::MAX));
        self.limits.connections_max = self
            .limits
            .connections_max
            .min(usize::try_from(connections_max).unwrap_or(usize::MAX));
        let addrs = self
            .listeners
            .iter()
            .filter_map(Listener::local_addr)
            .collect();
        let mut sockets: Vec<Vec<Socket>> = Vec::new();
        sockets.resize_with(self.io_threads, Vec::new);
        let mut listening = Vec::new();
        for listener in self.listeners {
            let (shares, copies) = listener.into_sockets(self.io_threads, &self.limits)?;
            listening.push(copies);
            for (thread, share) in sockets.iter_mut().zip(shares) {
                thread.extend(share);
            }
        }
        let inboxes = (0..self.io_threads)
            .map(|_| Inbox::new())
            .collect::<io::Result<_>>()?;
        let slots = slots(self.cores, self.workers);
        let queue = Queue::new(
            self.limits.queue_len_max,
            slots,
            self.limits.waiting_handlers_max,
        );
        #[cfg(feature = "compression")]
        let compression = (self.is_compressing || self.service.compresses())
            .then(|| Compression::new(self.is_compressing));
        let shared = Arc::new(Shared {
            service: self.service,
            core: Arc::new(Core {
                queue,
                jobs: Jobs::default(),
                buffers: Arc::new(BufferPool::new(self.limits.body_memory_max, slots.base)),
                request_memory: Arc::new(Budget::new(self.limits.request_memory_max)),
                handshakes: Arc::new(Budget::new(self.limits.handshakes_max)),
                limits: self.limits,
                blocks: Arc::default(),
                inboxes,
                connection_count: AtomicUsize::new(0),
                accepted_count: AtomicU64::new(0),
                is_draining: AtomicBool::new(false),
                stops_at: Mutex::default(),
                is_cut_off: AtomicBool::new(false),
                #[cfg(feature = "compression")]
                compression,
            }),
        });
        let server = Server {
            shared: Arc::clone(&shared),
            addrs,
            listening: Mutex::new(listening),
            drain_deadline: Mutex::default(),
            io_threads: Arc::default(),
            workers: Arc::default(),
            has_ended: false,
        };
        let weak = Arc::downgrade(&shared);
        let workers = Arc::clone(&server.workers);
        let name = self.name.clone();
        shared.queue.set_start(Box::new(move || {
            let Some(shared) = weak.upgrade() else {
                return Err(io::Error::other("the server is gone"));
            };
            workers.spawn(format!("{name}worker"), move || exec::run(&shared))
        }));
        // The queue starts the other workers when jobs need them.
        shared.queue.start_worker()?;
        if slots.may_grow() {
            let (core, cores) = (Arc::clone(&shared.core), self.cores);
            let look = move || monitor::run(&core.queue, &core.jobs, cores);
            server
                .workers
                .spawn(format!("{}monitor", self.name), look)?;
        }
        for (home, sockets) in sockets.into_iter().enumerate() {
            let thread = IoThread::new(Arc::clone(&shared), home, sockets, self.coalescing)?;
            let name = format!("{}io-{home}", self.name);
            server.io_threads.spawn(name, move || thread.run())?;
        }
        Ok(server)
    }

    /// Serves until `signal` returns, then [drains](Server::drain) the server for up to `drain`.
    /// Returns the requests that are left behind: those whose handlers or response bodies still
    /// run. It returns at most 0.1 s after `drain`, whatever they do, so the process can end. If
    /// they end before, so does the drain. Handlers that wait for the rest of a request body are
    /// told before the end, as [`Server::drain`] documents.
    ///
    /// `signal` is called once the server runs. It may be any function that waits, and
    /// [`stop_signal`](crate::stop_signal) returns one that waits for SIGTERM or SIGINT.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn serve_until(
        self,
        signal: impl FnOnce(),
        drain: Duration,
    ) -> io::Result<Vec<Unfinished>> {
        let server = self.start()?;
        signal();
        Ok(server.end(drain))
    }
}

/// Returns the number of worker slots; `workers` is the maximum that the application has set.
fn slots(cores: usize, workers: Option<usize>) -> Slots {
    let base = cores.saturating_mul(WORKERS_PER_CORE);
    let max = workers.unwrap_or(base.max(WORKERS_MAX));
    Slots {
        base: base.min(max),
        max,
        lends: workers.is_none(),
    }
}

/// Returns the maximum number of connections for a limit of descriptors.
fn connections_max(descriptors_max: u64) -> u64 {
    let max = descriptors_max.saturating_sub(DESCRIPTORS_RESERVED).max(16);
    if descriptors_max < DESCRIPTORS_FEW {
        max.min(descriptors_max / 2)
    } else {
        max
    }
}

/// Returns the time after `timeout`, at most a century from now, because a larger time overflows.
fn deadline(timeout: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(timeout.min(CENTURY)).unwrap_or(now)
}

/// Returns the time before the end of a drain from which handlers no longer wait for their clients.
fn notice(timeout: Duration) -> Duration {
    NOTICE_TIME.min(timeout / NOTICE_SHARE)
}

/// Sets a time, unless an earlier one is set.
fn advance(time: &Mutex<Option<Instant>>, to: Instant) {
    let mut time = time.locked();
    *time = Some(time.map_or(to, |earlier| earlier.min(to)));
}

/// Gauges of a server's load at one moment, for metrics. Cheap to obtain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Load {
    /// Number of open connections.
    pub connection_count: usize,
    /// Maximum number of open connections.
    pub connection_count_max: usize,
    /// Number of connections accepted since the start.
    pub accepted_count: u64,
    /// Number of TLS handshakes in progress.
    pub handshake_count: usize,
    /// Maximum number of worker slots in the prompt lane. The
    /// [slow](crate::Reply::dispatch_slow) and the [writing](crate::Reply::dispatch_writing) lane
    /// have as many.
    pub worker_count: usize,
    /// Maximum number of worker slots in all lanes, including the
    /// [costly](crate::Reply::dispatch_costly) lane and the lane for TLS handshakes.
    pub worker_count_max: usize,
    /// Number of jobs in the queue: new requests and responses to be continued.
    pub queued_count: usize,
    /// Number of occupied worker slots.
    pub running_count: usize,
    /// Number of handlers that have lent their slot while they wait: for their client, with
    /// [`lend_slot`](crate::lend_slot), or because they have waited for long.
    pub waiting_count: usize,
    /// Memory in use for response bodies in progress, in bytes.
    pub body_memory_len: usize,
    /// Maximum of `body_memory_len` before bodies get small buffers, in bytes.
    pub body_memory_len_max: usize,
    /// Memory in use for request bodies that are received before their handlers start, in bytes.
    pub request_memory_len: usize,
}

/// A running server. Dropping it stops the server. If it was not [drained](Self::drain), the drop
/// waits up to ten seconds for running handlers. The drop interrupts no handler: a handler that
/// runs longer keeps its thread, which does not prevent the process from ending.
#[derive(Debug)]
pub struct Server<S: Service> {
    shared: Arc<Shared<S>>,
    addrs: Vec<SocketAddr>,
    /// Copies of the sockets of each listener, for a handover; empty once the server is draining.
    listening: Mutex<Vec<Vec<OwnedFd>>>,
    /// The earliest deadline of all drains; `None` before the first.
    drain_deadline: Mutex<Option<Instant>>,
    io_threads: Arc<Threads>,
    workers: Arc<Threads>,
    /// Whether the drop must not wait for any thread.
    has_ended: bool,
}

impl<S: Service> Server<S> {
    /// Returns a builder for a server of `service`.
    pub fn builder(service: S) -> Builder<S> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Builder {
            service,
            limits: Limits::default(),
            listeners: Vec::new(),
            io_threads: cores,
            coalescing: Duration::ZERO,
            cores,
            workers: None,
            name: String::new(),
            #[cfg(feature = "compression")]
            is_compressing: false,
        }
    }

    /// Returns the addresses of the server's TCP listeners.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Returns copies of the listening sockets, grouped by listener.
    pub(crate) fn listening(&self) -> io::Result<Vec<Vec<OwnedFd>>> {
        let copy = |sockets: &Vec<OwnedFd>| sockets.iter().map(OwnedFd::try_clone).collect();
        self.listening.locked().iter().map(copy).collect()
    }

    /// Returns the application.
    pub fn service(&self) -> &S {
        &self.shared.service
    }

    /// Returns the number of open connections.
    pub fn connection_count(&self) -> usize {
        self.shared.connection_count.load(Ordering::Relaxed)
    }

    /// Returns the current load.
    pub fn load(&self) -> Load {
        let workers = self.shared.queue.load();
        Load {
            connection_count: self.connection_count(),
            connection_count_max: self.shared.limits.connections_max,
            accepted_count: self.shared.accepted_count.load(Ordering::Relaxed),
            handshake_count: self.shared.handshakes.used(),
            worker_count: self.shared.queue.slots.max,
            worker_count_max: self.shared.queue.threads_max,
            queued_count: workers.queued_count,
            running_count: workers.running_count,
            waiting_count: workers.waiting_count,
            body_memory_len: self.shared.buffers.used_len(),
            body_memory_len_max: self.shared.limits.body_memory_max,
            request_memory_len: self.shared.request_memory.used(),
        }
    }

    /// Returns whether every I/O thread responds within `timeout`, for health checks.
    pub fn answers_within(&self, timeout: Duration) -> bool {
        let deadline = deadline(timeout);
        let (sender, receiver) = sync_channel(self.shared.inboxes.len());
        for inbox in &self.shared.inboxes {
            // If the thread has ended, the sender is dropped with the message, which `recv_timeout`
            // reports.
            drop(inbox.push(Message::Ping(sender.clone())));
        }
        drop(sender);
        self.shared.inboxes.iter().all(|_| {
            receiver
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
                .is_ok()
        })
    }

    /// Returns whether the server is [draining](Self::drain).
    pub fn is_draining(&self) -> bool {
        self.listening.locked().is_empty()
    }

    /// Returns the requests whose handlers or response bodies occupy a thread now, those first that
    /// have run longest. After a [drain](Self::drain), these are the ones that it has left behind.
    pub fn unfinished(&self) -> Vec<Unfinished> {
        self.shared.jobs.unfinished()
    }

    /// Shuts down gracefully: accepts no more connections, closes idle ones, and completes
    /// responses in progress. Returns when that is done or `timeout` has passed; unfinished
    /// responses are then aborted. It may be called again from another thread with a shorter
    /// timeout.
    ///
    /// Idle connections are closed at once, except those that have not sent a request yet: their
    /// clients are about to, so they get [`linger_time`](Limits::linger_time) from the start of the
    /// connection. A client that does not close a connection after its last response delays the end
    /// by the same time.
    ///
    /// In the last half second, and at most the last quarter, of `timeout`, handlers no longer wait
    /// for the rest of a request body: reading it fails with
    /// [`BodyError::Stopped`](crate::BodyError::Stopped). A handler that then returns its response
    /// in time, such as a 503, has it sent to the client.
    ///
    /// Handlers that run longer than `timeout` are not interrupted, and neither the return of this
    /// function nor the [drop](Drop) of the server waits for them, so the process can end.
    /// [`unfinished`](Self::unfinished) names their requests.
    ///
    /// WebSockets are closed with 1001. A [channel](crate::Body::channel) is a response in progress
    /// until its [`Sender`](crate::Sender) finishes. A program with server-sent events should
    /// finish these first, or the drain takes the whole `timeout`.
    pub fn drain(&self, timeout: Duration) {
        let stops_at = deadline(timeout.saturating_sub(notice(timeout)));
        self.drain_until(stops_at, deadline(timeout), END_TIME);
    }

    /// As [`drain`](Self::drain). `stops_at`: time from which handlers no longer wait for request
    /// bodies. `end_time`: time that I/O threads get after the deadline.
    fn drain_until(&self, stops_at: Instant, deadline: Instant, end_time: Duration) {
        self.listening.locked().clear();
        self.shared.is_draining.store(true, Ordering::Relaxed);
        advance(&self.shared.stops_at, stops_at);
        for inbox in &self.shared.inboxes {
            // A thread that has ended needs no drain.
            drop(inbox.push(Message::Drain(deadline)));
        }
        advance(&self.drain_deadline, deadline);
        self.wait_for_io_threads(end_time);
        self.shared.is_cut_off.store(true, Ordering::Release);
    }

    /// Ends the server within `time`, as [`Builder::serve_until`] documents.
    fn end(mut self, time: Duration) -> Vec<Unfinished> {
        let notice = notice(time);
        let end_time = notice / END_SHARE;
        let end = deadline(time);
        self.drain_until(deadline(time - notice), deadline(time - end_time), end_time);
        self.shared.queue.close();
        self.workers.wait_until(end);
        self.has_ended = true;
        self.unfinished()
    }

    /// Waits until all I/O threads have ended, or the drain is over although a thread is stuck in a
    /// handler of an [inline body](crate::Intake::Inline).
    fn wait_for_io_threads(&self, end_time: Duration) {
        /// Interval at which another call may have set an earlier deadline.
        const CHECK_TIME: Duration = Duration::from_millis(100);
        loop {
            let now = Instant::now();
            let end = self.drain_deadline.locked().unwrap_or(now) + end_time;
            if self.io_threads.wait_until(end.min(now + CHECK_TIME)) || now >= end {
                return;
            }
        }
    }

    /// Stops at once. Running handlers are not interrupted, but their responses are discarded.
    pub fn stop(&self) {
        self.drain(Duration::ZERO);
    }
}

impl<S: Service> Drop for Server<S> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let time = match self.is_draining() {
            true => END_TIME,
            false => DROP_TIME,
        };
        self.stop();
        self.shared.queue.close();
        self.workers.wait_until(Instant::now() + time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_default_number_of_workers_lends_slots() {
        let slots = |cores, workers| {
            let Slots { base, max, lends } = slots(cores, workers);
            (base, max, lends)
        };
        assert_eq!(slots(2, None), (16, 512, true));
        assert_eq!(slots(100, None), (800, 800, true));
        assert_eq!(slots(2, Some(16)), (16, 16, false));
        assert_eq!(slots(2, Some(5)), (5, 5, false));
        assert_eq!(slots(2, Some(100)), (16, 100, false));
    }

    #[test]
    fn connections_leave_descriptors_for_files() {
        for (descriptors_max, expected) in [
            (20, 10),
            (256, 16),
            (300, 44),
            (1024, 512),
            (4095, 2047),
            (4096, 3840),
            (u64::MAX, u64::MAX - 256),
        ] {
            assert_eq!(connections_max(descriptors_max), expected);
        }
    }
}
