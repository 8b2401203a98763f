//! An I/O thread, which waits for events and dispatches them to connections.
//!
//! # Theory of operation
//!
//! The thread waits for events. It reads each readable connection once, into a buffer of the thread
//! that may already hold bytes of other connections (`gather.rs`). Then it passes every complete
//! request to [`Service::inline`], and sends all responses to one read in one write. A request that
//! the service declines moves to a worker *together with its connection*. While the worker has it,
//! the thread cannot access the connection and only records its events. The connection returns
//! through the inbox: with a complete response, blocked on the socket, waiting for the application,
//! or to be reset.
//!
//! Each protocol (`http1.rs`, `h2/`, `ws.rs`) handles the events of its connections, with a
//! [`Context`], and returns the next step for the thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::acceptor::Acceptor;
use super::context::{Context, Next, Stay};
use super::eviction::Eviction;
use super::gather::{Arrival, Gathered, is_between_requests};
use super::h2::H2Conn;
use super::link::Link;
use super::slab::Slab;
use super::ws_conn::SocketConn;
use super::yield_policy::YieldPolicy;
use super::{clock, h2, http1, ws, ws_clock};
use crate::body::Transfer;
use crate::conn::{Conn, Message, Stage, StreamNews, Verdict};
use crate::core::Shared;
use crate::exec;
use crate::jobs::Job;
use crate::net::key::Key;
use crate::net::listener::Socket;
use crate::observer::End;
use crate::service::Service;
use crate::sys::{self, Edges, Poll};

/// Maximum number of events taken from the kernel at once.
const EVENT_COUNT: usize = 256;

/// Minimum number of connections for coalescing: with fewer, no request waits for others. See
/// [`Builder::coalescing`](crate::Builder::coalescing).
const COALESCED_MIN: usize = 64;

const WAKE_KEY: u64 = u64::MAX;

/// One I/O thread.
pub(crate) struct IoThread<S: Service> {
    pub(super) cx: Context<S>,
    pub(super) poll: Poll,
    pub(super) acceptor: Acceptor,
    pub(super) slab: Slab,
    pub(super) eviction: Eviction,
    gathered: Gathered,
    /// Connections that must continue after the others were served.
    again: Vec<Key>,
    /// Time of the last check of the time limits.
    swept: Instant,
    /// Time that the thread sleeps between two rounds while it is busy; see
    /// [`Builder::coalescing`](crate::Builder::coalescing).
    coalescing: Duration,
    /// Whether the last wait was shorter than half of `coalescing`.
    is_woken_early: bool,
    yield_policy: YieldPolicy,
}

impl<S: Service> IoThread<S> {
    pub(crate) fn new(
        shared: Arc<Shared<S>>,
        home: usize,
        sockets: Vec<Socket>,
        coalescing: Duration,
    ) -> std::io::Result<Self> {
        let poll = Poll::new()?;
        poll.add_listener(&shared.inboxes[home], WAKE_KEY, false)?;
        let mut acceptor = Acceptor::new(sockets)?;
        acceptor.poll(&poll)?;
        let cx = Context::new(shared, home);
        Ok(Self {
            poll,
            acceptor,
            slab: Slab::default(),
            eviction: Eviction::default(),
            gathered: Gathered::default(),
            again: Vec::new(),
            swept: cx.now,
            coalescing,
            is_woken_early: false,
            yield_policy: YieldPolicy::default(),
            cx,
        })
    }

    /// Runs the thread until it is drained.
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENT_COUNT);
        let mut messages = Vec::new();
        let mut again = Vec::new();
        loop {
            self.wait(&mut events);
            self.cx.date.refresh();
            for event in &events {
                let (bits, edges) = sys::decode(event);
                if bits == WAKE_KEY {
                    self.receive(&mut messages);
                } else if let Some(index) = self.acceptor.index_of(bits) {
                    self.guarded(None, |thread| {
                        thread.accept(index);
                    });
                } else {
                    let key = Key::from_bits(bits);
                    if edges.readable && self.slab.is_away(key) {
                        self.slab.note(key, edges);
                        self.cx.shared.inboxes[self.cx.home].miss(key, &mut messages);
                        self.take(&mut messages);
                        if edges.ended {
                            self.reclaim(key);
                        }
                    } else if !self.gather(key, edges) {
                        self.on_event(key, edges);
                    }
                }
            }
            self.answer_gathered();
            std::mem::swap(&mut again, &mut self.again);
            // A connection that also had an event is here twice.
            again.sort_unstable();
            again.dedup();
            for key in again.drain(..) {
                self.on_event(key, Edges::default());
            }
            if self.cx.now.duration_since(self.swept) >= self.cx.sweep_time() {
                self.receive(&mut messages);
                self.sweep();
            }
            self.cx.wake_workers();
            self.yield_policy.yield_after(events.len());
            if let Some(drain) = &self.cx.drain
                && (self.slab.count() == 0 || self.cx.now >= drain.deadline)
            {
                return;
            }
        }
    }

    /// Runs code that may call the application. If it panics, only the connection with `key` is
    /// dropped.
    pub(super) fn guarded(&mut self, key: Option<Key>, work: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| work(self))).is_err() {
            self.cx.recover();
            if let Some(key) = key {
                self.forget(key);
            }
        }
    }

    /// Waits for events. If events follow each other closely, it sleeps first, so that several can
    /// gather.
    fn wait(&mut self, events: &mut Vec<sys::Event>) {
        let has_more = events.len() == EVENT_COUNT || !self.again.is_empty();
        if self.is_woken_early && !has_more && self.slab.count() >= COALESCED_MIN {
            std::thread::sleep(self.coalescing.saturating_sub(self.cx.now.elapsed()));
        }
        let slept = (!self.coalescing.is_zero()).then(Instant::now);
        self.poll
            .wait(events, self.wait_time())
            .expect("waiting on an open epoll descriptor does not fail");
        self.cx.now = Instant::now();
        self.is_woken_early = slept.is_some_and(|slept| self.cx.now - slept < self.coalescing / 2);
    }

    /// Returns the maximum time to wait for events; `None` if there is no time limit to check, so
    /// that the thread may wait forever.
    fn wait_time(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let is_idle =
            self.slab.count() == 0 && self.cx.drain.is_none() && self.acceptor.is_polled();
        (!is_idle).then(|| self.cx.sweep_time())
    }

    // Methods for reading several connections before responding.

    /// Reads from a connection that is between requests. Returns `false` if the connection is in
    /// another state; the caller must then handle the event.
    fn gather(&mut self, key: Key, edges: Edges) -> bool {
        if !edges.readable || !self.slab.peek(key).is_some_and(is_between_requests) {
            return false;
        }
        if self.gathered.is_full() {
            self.answer_gathered();
        }
        let Some(Link::Http1(mut conn)) = self.slab.take(key) else {
            return false;
        };
        conn.note(edges);
        if let Err((mut conn, outcome)) = self.gathered.read(conn) {
            let next = http1::on_nothing(&mut conn, outcome);
            self.settle(conn, next);
        }
        true
    }

    /// Responds to the requests of the gathered connections.
    fn answer_gathered(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        self.cx.turn += 1;
        let (buffer, mut arrivals) = self.gathered.take();
        let mut start = 0;
        for Arrival { mut conn, end } in arrivals.drain(..) {
            let bytes = &buffer[start..end];
            self.guarded(Some(conn.key), |thread| {
                let next = http1::serve_read(&mut thread.cx, &mut conn, bytes);
                thread.settle(conn, next);
            });
            start = end;
        }
        self.gathered.reuse(buffer, arrivals);
    }

    // Methods for events and messages.

    pub(super) fn receive(&mut self, messages: &mut Vec<Message>) {
        self.cx.shared.inboxes[self.cx.home].drain(messages);
        self.take(messages);
    }

    fn take(&mut self, messages: &mut Vec<Message>) {
        for message in messages.drain(..) {
            match message {
                Message::Returned(conn, verdict) => self.on_return(conn, verdict),
                Message::Stream(key, stream, news) => self.on_stream_news(key, stream, news),
                Message::Wake(key, stream) if stream > 0 => self.on_stream_wake(key, stream),
                Message::Wake(key, _stream) => {
                    let woken = true;
                    self.on_event(
                        key,
                        Edges {
                            woken,
                            ..Edges::default()
                        },
                    );
                }
                Message::Departed(key) => self.reclaim(key),
                Message::Filled(key, transfer, output) => self.on_filled(key, transfer, output),
                Message::Lost(key) => {
                    self.cx.shared.inboxes[self.cx.home].forget_ended(key);
                    self.forget(key);
                }
                Message::Evict => {
                    self.evict();
                }
                Message::Drain(deadline) => {
                    self.guarded(None, |thread| thread.start_drain(deadline));
                }
                // The caller may have stopped waiting for the reply.
                Message::Ping(sender) => drop(sender.try_send(())),
            }
        }
    }

    fn on_event(&mut self, key: Key, edges: Edges) {
        let Some(mut link) = self.slab.take(key) else {
            return self.slab.note(key, edges);
        };
        link.note(edges);
        self.guarded(Some(key), |thread| match link {
            Link::Http1(mut conn) => {
                let next = http1::step(&mut thread.cx, &mut conn, edges);
                thread.settle(conn, next);
            }
            Link::Ws(mut conn) => {
                let next = ws::step(&mut thread.cx, &mut conn, edges);
                thread.settle_socket(conn, next);
            }
            Link::H2(mut conn) => {
                let next = h2::step(&mut thread.cx, &mut conn, edges);
                thread.settle_h2(conn, next);
            }
        });
    }

    fn on_return(&mut self, mut conn: Box<Conn>, verdict: Verdict) {
        self.guarded(Some(conn.key), |thread| {
            let edges = thread.slab.take_edges(conn.key);
            if edges.ended {
                thread.cx.shared.inboxes[conn.home].forget_ended(conn.key);
            }
            conn.note(edges);
            let next = http1::on_return(&mut thread.cx, &mut conn, verdict, edges);
            thread.settle(conn, next);
        });
    }

    /// Takes a connection whose client has ended its side, if a worker has laid it by.
    fn reclaim(&mut self, key: Key) {
        if self.slab.is_away(key)
            && let Some(mut conn) = self.cx.shared.inboxes[self.cx.home].take_ended(key)
        {
            conn.restart_clock(self.cx.now);
            self.on_return(conn, Verdict::Waiting);
        }
    }

    /// Continues a response whose source has waited.
    fn on_filled(&mut self, key: Key, transfer: Box<Transfer>, output: Vec<u8>) {
        match self.slab.take(key) {
            Some(Link::Http1(mut conn)) if conn.is_filling => {
                conn.resume(transfer, output);
                conn.restart_clock(self.cx.now);
                conn.enter(Stage::Answering);
                self.settle(conn, Next::Pump);
            }
            Some(other) => self.slab.put(key, other),
            None => self.cx.discard(Some(transfer)),
        }
    }

    /// Handles a worker's result for a stream. The results are handled together, before the thread
    /// sleeps.
    fn on_stream_news(&mut self, key: Key, stream: u32, news: StreamNews) {
        match self.slab.take(key) {
            Some(Link::H2(mut conn)) => self.guarded(Some(key), |thread| {
                h2::answers::on_news(&mut thread.cx, &mut conn, stream, news);
                thread.settle_h2(conn, Stay::Again);
            }),
            Some(other) => self.slab.put(key, other),
            None => self.cx.discard(news.into_outflow()),
        }
    }

    fn on_stream_wake(&mut self, key: Key, stream: u32) {
        match self.slab.take(key) {
            Some(Link::H2(mut conn)) => self.guarded(Some(key), |thread| {
                h2::answers::wake_stream(&mut thread.cx, &mut conn, stream);
                thread.settle_h2(conn, Stay::Wait);
            }),
            Some(other) => self.slab.put(key, other),
            None => {}
        }
    }

    /// Checks the time limits of all connections, except those that were taken out.
    fn sweep(&mut self) {
        self.swept = self.cx.now;
        if self.acceptor.poll(&self.poll).is_err() {
            // Memory is still exhausted; the next sweep tries again.
        }
        let mut keys = Vec::new();
        self.slab.keys_here(&mut keys);
        for key in keys {
            self.check(key);
        }
    }

    /// Checks the time limits of a connection.
    fn check(&mut self, key: Key) {
        let Some(link) = self.slab.take(key) else {
            return;
        };
        self.guarded(Some(key), |thread| match link {
            Link::Http1(mut conn) => {
                let next = clock::check(&mut thread.cx, &mut conn);
                thread.settle(conn, next);
            }
            Link::Ws(mut conn) => {
                let next = ws_clock::check(&mut thread.cx, &mut conn);
                thread.settle_socket(conn, next);
            }
            Link::H2(mut conn) => {
                let next = h2::clock::check(&mut thread.cx, &mut conn);
                thread.settle_h2(conn, next);
            }
        });
    }

    // Methods for the next steps of connections.

    pub(super) fn settle(&mut self, mut conn: Box<Conn>, next: Next) {
        let key = conn.key;
        match next {
            Next::Wait => self.slab.put(key, Link::Http1(conn)),
            Next::Again => {
                self.slab.put(key, Link::Http1(conn));
                self.again.push(key);
            }
            Next::OpenSocket => match ws::open(&mut self.cx, conn) {
                Some((conn, next)) => self.settle_socket(conn, next),
                None => self.forget(key),
            },
            Next::Close => self.close(conn),
            Next::Http2 => match h2::start(&mut self.cx, conn) {
                Ok((conn, next)) => self.settle_h2(conn, next),
                Err(conn) => self.close(conn),
            },
            Next::Handle(request) => {
                conn.left_at = self.cx.now;
                if request.is_inline {
                    // The connection returns through the inbox, as it does from a worker.
                    exec::handle(&self.cx.shared, conn, request);
                } else {
                    self.give(Job::Handle(conn, request));
                }
            }
            Next::Shake => self.give(Job::Handshake(conn)),
            Next::Pump => {
                conn.left_at = self.cx.now;
                self.give(Job::Pump(conn));
            }
        }
    }

    pub(super) fn settle_socket(&mut self, conn: Box<SocketConn>, next: Stay) {
        let key = conn.key;
        match next {
            Stay::Wait => self.slab.put(key, Link::Ws(conn)),
            Stay::Again => {
                self.slab.put(key, Link::Ws(conn));
                self.again.push(key);
            }
            Stay::Close => {
                drop(conn);
                self.forget(key);
            }
        }
    }

    fn settle_h2(&mut self, mut conn: Box<H2Conn>, next: Stay) {
        let key = conn.key;
        match next {
            Stay::Wait => self.slab.put(key, Link::H2(conn)),
            Stay::Again => {
                if !std::mem::replace(&mut conn.is_scheduled, true) {
                    self.again.push(key);
                }
                self.slab.put(key, Link::H2(conn));
            }
            Stay::Close => {
                h2::fail(&mut self.cx, &mut conn, End::Left);
                self.forget(key);
            }
        }
    }

    fn give(&mut self, job: Job) {
        if let Err(job) = self.cx.queue(job)
            && let Some((conn, next)) = http1::refuse_overload(&mut self.cx, job)
        {
            self.settle(conn, next);
        }
    }
}

impl<S: Service> Drop for IoThread<S> {
    /// Closes all connections, however the thread ends.
    fn drop(&mut self) {
        self.cut_off();
    }
}
