//! An I/O thread: its sockets, and what it does when one of them is ready.
//!
//! # Theory of operation
//!
//! The thread waits for events. A readable connection is read once, into a buffer of the thread;
//! every complete request in it is shown to [`Service::inline`], and all answers of one read leave
//! with one write. A request that the service declines goes to the workers *with its connection*:
//! the connection is then away, nothing of it can be touched here, and edges that arrive are
//! remembered. It returns through the inbox, answered, or blocked on the socket, or to be reset.
//!
//! A connection that is here is in one of these situations:
//!
//! | situation | recognised by | goes on when |
//! |---|---|---|
//! | between requests | nothing to send | readable |
//! | reading a body | `request` is set, nothing to send | readable |
//! | blocked | `output` or `transfer` is set | writable: a worker sends what is a body |
//! | lingering | `is_lingering` | readable, until the peer closes or time is up |

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::answer::{self, Date};
use super::conn::Conn;
use super::inbox::{Message, Verdict};
use super::listener::Socket;
use super::slab::{Key, Slab};
use super::sys::{self, Edges, Poll};
use crate::exec::{self, Job, Work};
use crate::head::Head;
use crate::http::{Method, Status, Version};
use crate::proto::Refusal;
use crate::proto::conn::{Phase, Step};
use crate::proto::head::{Framing, HeadIndex};
use crate::reply::{Outcome, Reply, Turn};
use crate::server::Shared;
use crate::service::{Exchange, Incident, Service};

/// One read. Large enough for any head and many pipelined requests.
const READ_LEN: usize = 64 * 1024;
/// Answers gathered before they are written, in bytes, while pipelined requests keep coming.
const GATHER_LEN: usize = 64 * 1024;
/// Events taken from the kernel at once.
const EVENT_COUNT: usize = 256;
/// Bytes read and dropped from a peer that was told to go.
const LINGER_LEN_MAX: u64 = 256 * 1024;
/// The thread's memory for answers shrinks to this after a large one.
const OUT_LEN_KEPT: usize = 4 * GATHER_LEN;

const WAKE_KEY: u64 = u64::MAX;
/// Listeners count down from here. The slab never gives out keys this large.
pub(super) const LISTENER_KEY: u64 = u64::MAX - 1;

/// What is to become of a connection after a step.
pub(super) enum Next {
    /// It stays here and waits for events.
    Wait,
    /// It stays here and has more to do than one turn allows.
    Again,
    /// It goes to a worker.
    Give(Work),
    /// It is closed.
    Close,
}

/// One I/O thread.
pub(crate) struct IoThread<S: Service> {
    pub(super) shared: Arc<Shared<S>>,
    pub(super) home: usize,
    pub(super) poll: Poll,
    pub(super) listeners: Vec<Listening>,
    pub(super) slab: Slab,
    local: S::Local,
    /// Scratch memory, reused for every read and write.
    read_buffer: Box<[u8]>,
    pub(super) out: Vec<u8>,
    index: HeadIndex,
    turn: u64,
    /// Connections with more to do.
    pub(super) again: Vec<Key>,
    pub(super) now: Instant,
    pub(super) swept: Instant,
    pub(super) date: Date,
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
            slab: Slab::default(),
            local,
            read_buffer: read_buffer(),
            out: Vec::with_capacity(GATHER_LEN),
            index: HeadIndex::default(),
            turn: 0,
            again: Vec::new(),
            now,
            swept: now,
            date: Date::default(),
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
            self.poll
                .wait(&mut events, self.wait_time())
                .expect("waiting on an open epoll descriptor does not fail");
            self.now = Instant::now();
            self.date.refresh();
            for event in &events {
                let ready = sys::ready(event);
                match ready.key {
                    WAKE_KEY => self.receive(&mut messages),
                    key if key > LISTENER_KEY - self.listeners.len() as u64 => {
                        let index = usize::try_from(LISTENER_KEY - key).unwrap_or(usize::MAX);
                        self.guarded(None, |thread| thread.accept(index));
                    }
                    key => self.on_event(Key::from_bits(key), ready.edges),
                }
            }
            std::mem::swap(&mut again, &mut self.again);
            for key in again.drain(..) {
                self.on_event(key, Edges::default());
            }
            if self.now.duration_since(self.swept) >= self.sweep_time() {
                self.sweep();
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

    fn receive(&mut self, messages: &mut Vec<Message>) {
        self.shared.inboxes[self.home].drain(messages);
        for message in messages.drain(..) {
            match message {
                Message::Returned(conn, verdict) => self.on_return(conn, verdict),
                Message::Lost(key) => self.forget(key),
                Message::Drain(deadline) => {
                    self.guarded(None, |thread| thread.start_drain(deadline));
                }
                // The asker may have given up waiting.
                Message::Ping(sender) => drop(sender.try_send(())),
            }
        }
    }

    fn on_event(&mut self, key: Key, edges: Edges) {
        let Some(mut conn) = self.slab.take(key) else {
            return self.slab.note(key, edges);
        };
        conn.note(edges);
        self.guarded(Some(key), |thread| {
            let next = thread.step(&mut conn, edges.writable);
            thread.settle(conn, next);
        });
    }

    fn on_return(&mut self, conn: Box<Conn>, verdict: Verdict) {
        self.guarded(Some(conn.key), |thread| thread.take_back(conn, verdict));
    }

    fn take_back(&mut self, mut conn: Box<Conn>, verdict: Verdict) {
        let edges = self.slab.take_edges(conn.key);
        conn.note(edges);
        let next = match verdict {
            Verdict::Reset => {
                conn.reset_on_close();
                Next::Close
            }
            // The edge that says "writable" may have come while it was away.
            Verdict::Blocked if edges.writable => self.send_more(&mut conn),
            Verdict::Blocked => Next::Wait,
            Verdict::Answered { keep } => {
                conn.restart_clock(self.now);
                self.answered(&mut conn, keep);
                self.go_on(&mut conn)
            }
        };
        self.settle(conn, next);
    }

    pub(super) fn settle(&mut self, conn: Box<Conn>, next: Next) {
        let key = conn.key;
        match next {
            Next::Wait => self.slab.put(key, conn),
            Next::Again => {
                self.slab.put(key, conn);
                self.again.push(key);
            }
            Next::Close => self.close(conn),
            Next::Give(work) => {
                if let Err(job) = self.shared.queue.push(Job { conn, work }) {
                    self.refuse_overload(job);
                }
            }
        }
    }

    // What a connection does.

    fn step(&mut self, conn: &mut Conn, writable: bool) -> Next {
        if conn.is_lingering {
            return self.linger(conn);
        }
        if conn.is_sending() {
            return if writable {
                self.send_more(conn)
            } else {
                Next::Wait
            };
        }
        self.go_on(conn)
    }

    /// Sends what a blocked connection still has.
    pub(super) fn send_more(&mut self, conn: &mut Conn) -> Next {
        if conn.transfer.is_some() {
            // `output` is its lead, and may have to go behind what it holds already.
            return Next::Give(Work::Pump);
        }
        match conn.flush() {
            Err(_) => self.fail(conn),
            Ok(false) => Next::Wait,
            Ok(true) if conn.proto.phase() == Phase::Busy => {
                // A worker's answer that fitted into memory and blocked there.
                exec::report(&self.shared, conn, true);
                let keep = conn.answer.keep;
                self.answered(conn, keep);
                self.go_on(conn)
            }
            Ok(true) => self.go_on(conn),
        }
    }

    /// Works on what was read, then reads.
    pub(super) fn go_on(&mut self, conn: &mut Conn) -> Next {
        if conn.proto.phase() == Phase::Closed {
            return self.finish(conn);
        }
        if !conn.input.is_empty() {
            // It was read in an earlier turn, and much may have changed since.
            self.turn += 1;
            if let Some(next) = self.serve_input(conn) {
                return next;
            }
        }
        self.read(conn)
    }

    fn read(&mut self, conn: &mut Conn) -> Next {
        if !conn.readable {
            return Next::Wait;
        }
        let mut buffer = std::mem::take(&mut self.read_buffer);
        let next = match conn.read(&mut buffer) {
            Ok(None) => Next::Wait,
            // Half a request, or none, and nothing more to come.
            Ok(Some(0)) | Err(_) => Next::Close,
            Ok(Some(len)) => {
                self.turn += 1;
                let bytes = buffer.get(..len).unwrap_or_default();
                let served = if conn.input.is_empty() {
                    self.serve(conn, bytes)
                } else {
                    conn.input.extend_from_slice(bytes);
                    self.serve_input(conn)
                };
                served.unwrap_or(if conn.readable {
                    Next::Again
                } else {
                    Next::Wait
                })
            }
        };
        self.read_buffer = buffer;
        next
    }

    fn serve_input(&mut self, conn: &mut Conn) -> Option<Next> {
        let input = std::mem::take(&mut conn.input);
        self.serve(conn, &input)
    }

    /// Answers the requests in `input`; what is incomplete is left in `conn.input`. `None`: there
    /// is nothing to do but to read on.
    fn serve(&mut self, conn: &mut Conn, input: &[u8]) -> Option<Next> {
        let mut at = 0;
        let job = loop {
            let rest = input.get(at..).unwrap_or_default();
            let (taken, step) = conn.proto.advance(
                rest,
                &self.shared.limits.head,
                conn.body_len_max,
                &mut self.index,
            );
            let consumed = rest.get(..taken).unwrap_or_default();
            at += taken;
            match step {
                Step::Head => {
                    conn.has_partial_head = false;
                    // A peer that asked for the end sends nothing behind its request.
                    conn.needs_linger = self.index.keep_alive;
                    conn.restart_clock(self.now);
                    if let Some(work) = self.on_head(conn, consumed, at < input.len()) {
                        break Some(work);
                    }
                }
                Step::Data => {
                    if let Some(request) = &mut conn.request {
                        request.body.extend_from_slice(consumed);
                    }
                }
                Step::BodyEnd => break conn.request.take().map(Work::Handle),
                Step::Framing => {}
                Step::Refused(refusal) => {
                    self.refuse(conn, refusal);
                    break None;
                }
                Step::NeedMore | Step::Paused | Step::Closed => break None,
            }
            if self.out.len() >= GATHER_LEN {
                match self.flush_out(conn) {
                    Ok(true) => {}
                    // The peer asks and does not read: it gets no further answer until it does.
                    Ok(false) => break None,
                    Err(_) => return Some(Next::Close),
                }
            }
        };
        let rest = input.get(at..).unwrap_or_default();
        if !rest.is_empty() {
            conn.input.extend_from_slice(rest);
        }
        if !rest.is_empty() && !conn.has_partial_head && conn.proto.phase() == Phase::Head {
            conn.has_partial_head = true;
            conn.restart_clock(self.now);
        }
        let flushed = self.flush_out(conn);
        match (flushed, job) {
            (Err(_), _) => Some(Next::Close),
            (Ok(_), Some(work)) => {
                let keep = self.may_keep(conn);
                exec::begin(conn, keep, self.now);
                Some(Next::Give(work))
            }
            (Ok(false), None) => Some(Next::Wait),
            (Ok(true), None) if conn.proto.phase() == Phase::Closed => Some(self.finish(conn)),
            (Ok(true), None) => None,
        }
    }

    /// A request head. Answers it here, or says what a worker has to do, or neither: then its body
    /// comes first.
    fn on_head(&mut self, conn: &mut Conn, raw: &[u8], has_more_input: bool) -> Option<Work> {
        let keep = self.may_keep(conn);
        let shared = &*self.shared;
        let head = Head::new(raw, &self.index, conn.peer);
        let observes = shared.service.observes();
        let started = if observes { Instant::now() } else { self.now };
        let out_len = self.out.len();
        let reply = Reply {
            out: &mut self.out,
            version: head.version(),
            keep,
            is_head: head.method() == Method::Head,
            date: self.date.text(),
        };
        let (local, turn) = (&mut self.local, Turn(self.turn));
        let inline = catch_unwind(AssertUnwindSafe(|| {
            shared.service.inline(local, turn, head, reply).0
        }));
        let outcome = inline.unwrap_or_else(|_panic| {
            shared.service.incident(&Incident::HandlerPanicked { head });
            self.out.truncate(out_len);
            let body = b"Internal Server Error\n";
            let status = Status::INTERNAL_SERVER_ERROR;
            let (version, is_head) = (head.version(), head.method() == Method::Head);
            let out = &mut self.out;
            let body_len = answer::plain(out, status, body, version, is_head, keep, &self.date);
            Outcome::Sent(status, body_len)
        });
        match outcome {
            Outcome::Sent(status, body_len) => {
                if observes {
                    let duration = started.elapsed();
                    shared.service.exchanged(&Exchange {
                        head,
                        status,
                        body_len,
                        complete: true,
                        duration,
                    });
                }
                conn.needs_linger |= conn.proto.has_body();
                self.answered(conn, keep);
                None
            }
            Outcome::Dispatch if conn.proto.has_body() => {
                conn.body_len_max = shared.service.body_len_max(head);
                conn.request = Some(Box::new(head.to_request(Vec::new())));
                let fits = match self.index.framing {
                    Framing::Length(len) => len <= conn.body_len_max,
                    // How long it will be is not known, and silence is not an answer.
                    Framing::Chunked | Framing::None => true,
                };
                // RFC 9110, 10.1.1: no 100 if the body is on its way already, nor if it will be
                // refused.
                if conn.proto.take_expect_continue() && !has_more_input && fits {
                    self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                }
                None
            }
            Outcome::Dispatch => Some(Work::Handle(Box::new(head.to_request(Vec::new())))),
        }
    }

    fn may_keep(&self, conn: &Conn) -> bool {
        let max = self.shared.limits.requests_per_connection_max;
        conn.proto.may_keep()
            && self.drain_by.is_none()
            && self.shared.limits.idle_time > Duration::ZERO
            && (max == 0 || conn.answered_count + 1 < max)
    }

    fn answered(&mut self, conn: &mut Conn, keep: bool) {
        conn.proto.answered(keep);
        conn.answered_count += 1;
        if self.drain_by.is_some() {
            conn.proto.close_after();
        }
    }

    pub(super) fn refuse(&mut self, conn: &mut Conn, refusal: Refusal) {
        let peer = conn.peer;
        self.shared
            .service
            .incident(&Incident::Refused { peer, refusal });
        let request = conn.request.take();
        let is_head = request.is_some_and(|request| request.head().method() == Method::Head);
        conn.needs_linger = true;
        let (status, body) = (refusal.status(), format!("{refusal}\n"));
        let (version, body) = (Version::Http11, body.as_bytes());
        answer::plain(
            &mut self.out,
            status,
            body,
            version,
            is_head,
            false,
            &self.date,
        );
    }

    /// No room in the workers' queue: the request is answered here.
    fn refuse_overload(&mut self, job: Job) {
        self.shared.service.incident(&Incident::WorkersFull);
        let Job { mut conn, work } = job;
        let is_head = match work {
            Work::Handle(request) => request.head().method() == Method::Head,
            Work::Pump => false,
        };
        conn.proto.answered(false);
        answer::overload(&mut conn.output, is_head, &self.date);
        let next = self.send_more(&mut conn);
        self.settle(conn, next);
    }

    /// Writes the gathered answers; what the socket does not take goes into `conn.output`.
    pub(super) fn flush_out(&mut self, conn: &mut Conn) -> std::io::Result<bool> {
        let mut sent = 0;
        if conn.output.is_empty() {
            while sent < self.out.len() {
                let bytes = self.out.get(sent..).unwrap_or_default();
                match sys::send(&conn.socket, bytes, false) {
                    Ok(Some(len)) => sent += len,
                    Ok(None) => break,
                    Err(error) => {
                        self.out.clear();
                        return Err(error);
                    }
                }
            }
        }
        conn.output
            .extend_from_slice(self.out.get(sent..).unwrap_or_default());
        self.out.clear();
        self.out.shrink_to(OUT_LEN_KEPT);
        Ok(conn.output.is_empty())
    }

    /// The last answer is with the kernel.
    ///
    /// Unread bytes at close make the kernel send RST, and RST can destroy the answer before the
    /// client has read it (RFC 9112, 9.6). So, where bytes may be unread, our side is shut down
    /// first, and what still comes is dropped until the peer closes or time is up.
    pub(super) fn finish(&mut self, conn: &mut Conn) -> Next {
        if !conn.needs_linger && conn.input.is_empty() && !conn.readable {
            return Next::Close;
        }
        if sys::shutdown_write(&conn.socket).is_err() {
            return Next::Close;
        }
        conn.is_lingering = true;
        conn.input = Vec::new();
        conn.restart_clock(self.now);
        self.linger(conn)
    }

    /// Past the limit nothing more is read: the peer's window closes, and it still has until the
    /// time is up to look at its answer.
    fn linger(&mut self, conn: &mut Conn) -> Next {
        while conn.readable && conn.moved_len <= LINGER_LEN_MAX {
            if matches!(conn.read(&mut self.read_buffer), Ok(Some(0)) | Err(_)) {
                return Next::Close;
            }
        }
        Next::Wait
    }

    pub(super) fn fail(&mut self, conn: &mut Conn) -> Next {
        exec::fail(&self.shared, conn);
        Next::Close
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
