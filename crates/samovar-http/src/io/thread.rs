//! An I/O thread: its sockets, and what it does when one of them is ready.
//!
//! # Theory of operation
//!
//! The thread waits for events. A readable connection is read once, into a buffer of the thread
//! where others' bytes may lie already (`gather.rs`); then every complete request is shown to
//! [`Service::inline`], and all answers of one read leave with one write. A request that the
//! service declines goes to the workers *with its connection*: the connection is then away, nothing
//! of it can be touched here, and edges that arrive are remembered. It returns through the inbox,
//! answered, or blocked on the socket, or to be reset.
//!
//! What it does for a connection that is here depends on the protocol: `http1.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admission::Reserve;
use super::answer::Date;
use super::conn::Conn;
use super::gather::Gathered;
use super::inbox::{Message, Verdict};
use super::link::Link;
use super::listener::Socket;
use super::room::Room;
use super::slab::{Key, Slab};
use super::sys::{self, Edges, Poll};
use crate::exec::{self, Job};
use crate::proto::head::HeadIndex;
use crate::request::Request;
use crate::server::Shared;
use crate::service::Service;

/// One read. Large enough for any head and many pipelined requests.
const READ_LEN: usize = 64 * 1024;
/// Answers gathered before they are written, in bytes, while pipelined requests keep coming.
pub(super) const GATHER_LEN: usize = 64 * 1024;
/// Events taken from the kernel at once.
const EVENT_COUNT: usize = 256;
/// The thread's memory for answers shrinks to this after a large one.
pub(super) const OUT_LEN_KEPT: usize = 4 * GATHER_LEN;

/// With fewer connections no request waits for others to come: see
/// [`Builder::spacing`](crate::Builder::spacing).
const CROWD_MIN: usize = 64;

const WAKE_KEY: u64 = u64::MAX;
/// Listeners count down from here. The slab never gives out keys this large.
pub(super) const LISTENER_KEY: u64 = u64::MAX - 1;

/// What is to become of a connection after a step.
pub(super) enum Next {
    /// It stays here and waits for events.
    Wait,
    /// It stays here and has more to do than one turn allows.
    Again,
    /// It goes to a worker, which answers this request.
    Handle(Box<Request>),
    /// It goes to a worker, which goes on with the handshake.
    #[cfg(feature = "tls")]
    Shake,
    /// It goes to a worker, which sends more of the answer.
    Pump,
    /// It has become a WebSocket.
    OpenSocket,
    /// It speaks HTTP/2.
    #[cfg(feature = "http2")]
    Http2,
    /// It is closed.
    Close,
}

/// One I/O thread.
pub(crate) struct IoThread<S: Service> {
    pub(super) shared: Arc<Shared<S>>,
    pub(super) home: usize,
    pub(super) poll: Poll,
    pub(super) listeners: Vec<Listening>,
    /// See [`Builder::spacing`](crate::Builder::spacing).
    spacing: Duration,
    /// The last wait was shorter than half of that.
    is_woken_early: bool,
    pub(super) slab: Slab,
    pub(super) local: S::Local,
    /// Scratch memory, reused for every read and write.
    pub(super) read_buffer: Box<[u8]>,
    pub(super) out: Vec<u8>,
    pub(super) gathered: Gathered,
    #[cfg(feature = "http2")]
    pub(super) scratch: Vec<u8>,
    pub(super) index: HeadIndex,
    pub(super) turn: u64,
    /// Connections with more to do.
    pub(super) again: Vec<Key>,
    pub(super) now: Instant,
    pub(super) swept: Instant,
    pub(super) date: Date,
    pub(super) reserve: Reserve,
    pub(super) room: Room,
    /// Workers have something new to do and were not woken yet.
    pub(super) has_given: bool,
    pub(super) drain_by: Option<Instant>,
    pub(super) drain_since: Option<Instant>,
}

pub(super) struct Listening {
    pub(super) socket: Socket,
    /// Whether the poll knows it; not while descriptors are exhausted.
    pub(super) is_polled: bool,
}

impl<S: Service> IoThread<S> {
    pub(crate) fn new(
        shared: Arc<Shared<S>>,
        home: usize,
        sockets: Vec<Socket>,
        spacing: Duration,
    ) -> std::io::Result<Self> {
        let poll = Poll::new()?;
        poll.add_listener(&shared.inboxes[home], WAKE_KEY, false)?;
        let now = Instant::now();
        let local = shared.service.local();
        let mut thread = Self {
            shared,
            home,
            poll,
            listeners: Vec::new(),
            spacing,
            is_woken_early: false,
            slab: Slab::default(),
            local,
            read_buffer: read_buffer(),
            out: Vec::with_capacity(GATHER_LEN),
            gathered: Gathered::default(),
            #[cfg(feature = "http2")]
            scratch: Vec::new(),
            index: HeadIndex::default(),
            turn: 0,
            again: Vec::new(),
            now,
            swept: now,
            date: Date::default(),
            reserve: Reserve::new()?,
            room: Room::default(),
            has_given: false,
            drain_by: None,
            drain_since: None,
        };
        for socket in sockets {
            thread.listeners.push(Listening {
                socket,
                is_polled: false,
            });
        }
        thread.poll_listeners()?;
        Ok(thread)
    }

    /// Runs until drained.
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENT_COUNT);
        let mut messages = Vec::new();
        let mut again = Vec::new();
        loop {
            self.wait(&mut events);
            self.date.refresh();
            for event in &events {
                let ready = sys::ready(event);
                match ready.key {
                    WAKE_KEY => self.receive(&mut messages),
                    key if key > LISTENER_KEY - self.listeners.len() as u64 => {
                        let index = usize::try_from(LISTENER_KEY - key).unwrap_or(usize::MAX);
                        self.guarded(None, |thread| thread.accept(index));
                    }
                    key => {
                        let key = Key::from_bits(key);
                        if ready.edges.readable && self.slab.is_away(key) {
                            self.slab.note(key, ready.edges);
                            self.shared.inboxes[self.home].miss(key, &mut messages);
                            self.take(&mut messages);
                        } else if !self.gather(key, ready.edges) {
                            self.on_event(key, ready.edges);
                        }
                    }
                }
            }
            self.answer_gathered();
            std::mem::swap(&mut again, &mut self.again);
            for key in again.drain(..) {
                self.on_event(key, Edges::default());
            }
            if self.now.duration_since(self.swept) >= self.sweep_time() {
                self.receive(&mut messages);
                self.sweep();
            }
            if self.has_given {
                self.has_given = false;
                self.shared.queue.wake();
            }
            if let Some(deadline) = self.drain_by
                && (self.slab.count() == 0 || self.now >= deadline)
            {
                return;
            }
        }
    }

    /// Does something that may run an application's code. A panic costs the connection with `key`,
    /// which is dropped on the way, and nobody else.
    pub(super) fn guarded(&mut self, key: Option<Key>, work: impl FnOnce(&mut Self)) {
        if catch_unwind(AssertUnwindSafe(|| work(self))).is_err() {
            self.out.clear();
            if self.read_buffer.is_empty() {
                self.read_buffer = read_buffer();
            }
            if let Some(key) = key {
                self.forget(key);
            }
        }
    }

    /// Waits for events; not before some may have gathered, if they come one upon the other.
    fn wait(&mut self, events: &mut Vec<sys::Event>) {
        let is_more = events.len() == EVENT_COUNT || !self.again.is_empty();
        if self.is_woken_early && !is_more && self.slab.count() >= CROWD_MIN {
            std::thread::sleep(self.spacing.saturating_sub(self.now.elapsed()));
        }
        let slept = (!self.spacing.is_zero()).then(Instant::now);
        self.poll
            .wait(events, self.wait_time())
            .expect("waiting on an open epoll descriptor does not fail");
        self.now = Instant::now();
        self.is_woken_early = slept.is_some_and(|slept| self.now - slept < self.spacing / 2);
    }

    /// How long to wait for events: no thread wakes for nothing.
    fn wait_time(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let is_idle = self.slab.count() == 0
            && self.drain_by.is_none()
            && self.listeners.iter().all(|listener| listener.is_polled);
        (!is_idle).then(|| self.sweep_time())
    }

    // Events.

    pub(super) fn receive(&mut self, messages: &mut Vec<Message>) {
        self.shared.inboxes[self.home].drain(messages);
        self.take(messages);
    }

    fn take(&mut self, messages: &mut Vec<Message>) {
        for message in messages.drain(..) {
            match message {
                Message::Returned(conn, verdict) => self.on_return(conn, verdict),
                #[cfg(feature = "http2")]
                Message::Stream(key, stream, news) => self.on_stream_news(key, stream, news),
                #[cfg(feature = "http2")]
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
                Message::Lost(key) => self.forget(key),
                Message::MakeRoom => {
                    self.make_room();
                }
                Message::Drain(deadline) => {
                    self.guarded(None, |thread| thread.start_drain(deadline));
                }
                // The asker may have given up waiting.
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
                let next = thread.step(&mut conn, edges);
                thread.settle(conn, next);
            }
            Link::Ws(conn) => thread.on_socket(conn, edges),
            #[cfg(feature = "http2")]
            Link::H2(mut conn) => {
                let next = thread.step_h2(&mut conn, edges);
                thread.settle_h2(conn, next);
            }
        });
    }

    fn on_return(&mut self, conn: Box<Conn>, verdict: Verdict) {
        self.guarded(Some(conn.key), |thread| thread.take_back(conn, verdict));
    }

    pub(super) fn settle(&mut self, mut conn: Box<Conn>, next: Next) {
        let key = conn.key;
        match next {
            Next::Wait => self.slab.put(key, Link::Http1(conn)),
            Next::Again => {
                self.slab.put(key, Link::Http1(conn));
                self.again.push(key);
            }
            Next::OpenSocket => self.open_socket(conn),
            Next::Close => self.close(conn),
            #[cfg(feature = "http2")]
            Next::Http2 => self.start_h2(*conn),
            Next::Handle(request) => {
                conn.left_at = self.now;
                if request.is_inline {
                    // It comes back by the inbox, as from a worker.
                    exec::handle(&self.shared, conn, request);
                } else {
                    self.give(Job::Handle(conn, request));
                }
            }
            #[cfg(feature = "tls")]
            Next::Shake => self.give(Job::Handshake(conn)),
            Next::Pump => {
                conn.left_at = self.now;
                self.give(Job::Pump(conn));
            }
        }
    }

    /// Whether HTTP/2 is offered.
    #[cfg(feature = "tls")]
    pub(super) fn speaks_http2(&self) -> bool {
        #[cfg(feature = "http2")]
        return self.shared.is_http2;
        #[cfg(not(feature = "http2"))]
        false
    }

    pub(super) fn give(&mut self, job: Job) {
        self.has_given = true;
        if let Err(job) = self.shared.queue.push(job) {
            self.refuse_overload(job);
        }
    }
}

impl<S: Service> Drop for IoThread<S> {
    /// Time is up, or nothing is left, or the thread panicked: no connection outlives it.
    fn drop(&mut self) {
        self.cut_off();
    }
}

fn read_buffer() -> Box<[u8]> {
    vec![0; READ_LEN].into_boxed_slice()
}
