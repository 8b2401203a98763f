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
//! | blocked | `output` or `transfer` is set | writable: memory is sent here, a body by a worker |
//! | lingering | `is_lingering` | readable, until the peer closes or time is up |

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

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
use crate::proto::encode::{self, Delimiter};
use crate::proto::head::HeadIndex;
use crate::reply::{Outcome, Reply, Turn};
use crate::server::Shared;
use crate::service::{Exchange, Incident, Service};

/// One read. Large enough for any head and many pipelined requests.
const READ_LEN: usize = 64 * 1024;
/// Answers gathered before they are written, in bytes, while pipelined requests keep coming.
const GATHER_LEN: usize = 64 * 1024;
/// Events taken from the kernel at once.
const EVENT_COUNT: usize = 256;
/// Connections accepted in a row before others get their turn.
const ACCEPT_COUNT: usize = 64;
/// How often clocks are looked at, which is how exact the limits of time are.
const SWEEP_TIME: Duration = Duration::from_millis(250);
/// Bytes read and dropped from a peer that was told to go.
const LINGER_LEN_MAX: u64 = 256 * 1024;

const WAKE_KEY: u64 = u64::MAX;
/// Listeners count down from here. The slab never gives out keys this large.
const LISTENER_KEY: u64 = u64::MAX - 1;

/// What is to become of a connection after a step.
enum Next {
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
    shared: Arc<Shared<S>>,
    home: usize,
    poll: Poll,
    listeners: Vec<Listening>,
    slab: Slab,
    local: S::Local,
    /// Scratch memory, reused for every read and write.
    read_buffer: Box<[u8]>,
    out: Vec<u8>,
    index: HeadIndex,
    turn: u64,
    /// Connections with more to do.
    again: Vec<Key>,
    now: Instant,
    swept: Instant,
    date: Date,
    drain_by: Option<Instant>,
}

struct Listening {
    socket: Socket,
    /// Whether the poll knows it; not while descriptors are exhausted.
    is_polled: bool,
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
            read_buffer: vec![0; READ_LEN].into_boxed_slice(),
            out: Vec::with_capacity(GATHER_LEN),
            index: HeadIndex::default(),
            turn: 0,
            again: Vec::new(),
            now,
            swept: now,
            date: Date::default(),
            drain_by: None,
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
                        self.accept(usize::try_from(LISTENER_KEY - key).unwrap_or(usize::MAX));
                    }
                    key => self.on_event(Key::from_bits(key), ready.edges),
                }
            }
            std::mem::swap(&mut again, &mut self.again);
            for key in again.drain(..) {
                self.on_event(key, Edges::default());
            }
            if self.now.duration_since(self.swept) >= SWEEP_TIME || self.drain_by.is_some() {
                self.sweep();
            }
            if let Some(deadline) = self.drain_by
                && (self.slab.count() == 0 || self.now >= deadline)
            {
                self.cut_off();
                return;
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
        (!is_idle).then_some(if self.drain_by.is_some() {
            SWEEP_TIME / 10
        } else {
            SWEEP_TIME
        })
    }

    // Events.

    fn receive(&mut self, messages: &mut Vec<Message>) {
        self.shared.inboxes[self.home].drain(messages);
        for message in messages.drain(..) {
            match message {
                Message::Returned(conn, verdict) => self.on_return(conn, verdict),
                Message::Drain(deadline) => self.start_drain(deadline),
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
        let next = self.step(&mut conn, edges.writable);
        self.settle(conn, next);
    }

    fn on_return(&mut self, mut conn: Box<Conn>, verdict: Verdict) {
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

    fn settle(&mut self, conn: Box<Conn>, next: Next) {
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
                    self.refuse_overload(job.conn);
                }
            }
        }
    }

    // Connections come and go.

    fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPT_COUNT {
            let Some(listener) = self.listeners.get(index) else {
                return;
            };
            match sys::accept(&listener.socket) {
                Ok(Some((socket, peer))) => self.admit(socket, peer),
                Ok(None) => return,
                Err(error) if sys::is_exhaustion(&error) => {
                    self.shared
                        .service
                        .incident(&Incident::AcceptFailed { error: &error });
                    self.pause_listeners();
                    return;
                }
                // The peer gave up between knocking and our answer.
                Err(_) => {}
            }
        }
    }

    fn admit(&mut self, socket: std::os::fd::OwnedFd, peer: crate::head::Peer) {
        let count = self.shared.connection_count.fetch_add(1, Ordering::Relaxed);
        if count >= self.shared.limits.connections_max {
            self.shared.connection_count.fetch_sub(1, Ordering::Relaxed);
            self.shared.service.incident(&Incident::ConnectionsFull);
            let mut answer = Vec::new();
            overload_answer(&mut answer, &self.date);
            // Whether the peer hears it or not, the connection ends here.
            drop(sys::send(&socket, &answer, false));
            return;
        }
        let key = self.slab.reserve();
        let conn = Box::new(Conn::new(socket, peer, self.home, key, self.now));
        if self
            .poll
            .add_connection(&conn.socket, key.to_bits())
            .is_err()
        {
            return self.close(conn);
        }
        self.slab.put(key, conn);
    }

    fn close(&mut self, mut conn: Box<Conn>) {
        if let Some(mut transfer) = conn.transfer.take() {
            transfer.release(&self.shared.buffers);
        }
        self.slab.free(conn.key);
        self.shared.connection_count.fetch_sub(1, Ordering::Relaxed);
        // Closing the descriptor takes it out of the poll: nobody else holds a copy.
    }

    fn poll_listeners(&mut self) -> std::io::Result<()> {
        for (listener, index) in self.listeners.iter_mut().zip(0..) {
            if !listener.is_polled {
                let key = LISTENER_KEY - index;
                self.poll
                    .add_listener(&listener.socket, key, listener.socket.is_shared)?;
                listener.is_polled = true;
            }
        }
        Ok(())
    }

    /// Accepting would only fail again at once; the next sweep tries it.
    fn pause_listeners(&mut self) {
        for listener in &mut self.listeners {
            if listener.is_polled {
                listener.is_polled = self.poll.remove(&listener.socket).is_err();
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
    fn send_more(&mut self, conn: &mut Conn) -> Next {
        match conn.flush() {
            Err(_) => self.fail(conn),
            Ok(false) => Next::Wait,
            Ok(true) if conn.transfer.is_some() => Next::Give(Work::Pump),
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
    fn go_on(&mut self, conn: &mut Conn) -> Next {
        if conn.proto.phase() == Phase::Closed {
            return self.finish(conn);
        }
        if !conn.input.is_empty()
            && let Some(next) = self.serve_input(conn)
        {
            return next;
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

    /// Answers the requests in `input`; what is incomplete is left in `conn.input`. `None`: there is
    /// nothing to do but to read on.
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
            simple_answer(
                &mut self.out,
                status,
                body,
                head.version(),
                keep,
                &self.date,
            );
            Outcome::Sent(status, body.len() as u64)
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
                    crate::proto::head::Framing::Length(len) => len <= conn.body_len_max,
                    _ => conn.body_len_max > 0,
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

    fn refuse(&mut self, conn: &mut Conn, refusal: Refusal) {
        let peer = conn.peer;
        self.shared
            .service
            .incident(&Incident::Refused { peer, refusal });
        conn.request = None;
        conn.needs_linger = true;
        let status = refusal.status();
        let body = format!("{refusal}\n");
        simple_answer(
            &mut self.out,
            status,
            body.as_bytes(),
            Version::Http11,
            false,
            &self.date,
        );
    }

    /// No room in the workers' queue: the request is answered here.
    fn refuse_overload(&mut self, mut conn: Box<Conn>) {
        self.shared.service.incident(&Incident::WorkersFull);
        conn.proto.close_after();
        conn.proto.answered(false);
        overload_answer(&mut conn.output, &self.date);
        let next = self.send_more(&mut conn);
        self.settle(conn, next);
    }

    /// Writes the gathered answers; what the socket does not take goes into `conn.output`.
    fn flush_out(&mut self, conn: &mut Conn) -> std::io::Result<bool> {
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
        Ok(conn.output.is_empty())
    }

    /// The last answer is with the kernel.
    ///
    /// Unread bytes at close make the kernel send RST, and RST can destroy the answer before the
    /// client has read it (RFC 9112, 9.6). So, where bytes may be unread, our side is shut down
    /// first, and what still comes is dropped until the peer closes or time is up.
    fn finish(&mut self, conn: &mut Conn) -> Next {
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

    fn linger(&mut self, conn: &mut Conn) -> Next {
        while conn.readable {
            match conn.read(&mut self.read_buffer) {
                Ok(None) => {}
                Ok(Some(0)) | Err(_) => return Next::Close,
                Ok(Some(_)) if conn.moved_len > LINGER_LEN_MAX => return Next::Close,
                Ok(Some(_)) => {}
            }
        }
        Next::Wait
    }

    fn fail(&mut self, conn: &mut Conn) -> Next {
        exec::fail(&self.shared, conn);
        Next::Close
    }

    // Clocks.

    fn sweep(&mut self) {
        self.swept = self.now;
        if self.poll_listeners().is_err() {
            // Still no memory for it; tried again at the next sweep.
        }
        let mut keys = Vec::new();
        self.slab.keys_here(&mut keys);
        for key in keys {
            let Some(overdue) = self.slab.peek(key).and_then(|conn| self.overdue(conn)) else {
                continue;
            };
            let Some(mut conn) = self.slab.take(key) else {
                continue;
            };
            let next = self.on_overdue(&mut conn, overdue);
            self.settle(conn, next);
        }
    }

    fn overdue(&self, conn: &Conn) -> Option<Overdue> {
        let limits = &self.shared.limits;
        let waited = self.now.saturating_duration_since(conn.since);
        if conn.is_lingering {
            return (waited >= limits.linger_time).then_some(Overdue::Linger);
        }
        let phase = conn.proto.phase();
        if conn.is_sending() || phase == Phase::Body {
            return (waited >= limits.stall_time).then_some(Overdue::Window);
        }
        if conn.has_partial_head {
            return (waited >= limits.head_time).then_some(Overdue::Head);
        }
        let is_drained = self.drain_by.is_some() && conn.input.is_empty();
        (is_drained || waited >= limits.idle_time).then_some(Overdue::Idle)
    }

    fn on_overdue(&mut self, conn: &mut Conn, overdue: Overdue) -> Next {
        match overdue {
            Overdue::Linger | Overdue::Idle => Next::Close,
            Overdue::Window if conn.moved_len >= self.shared.limits.stall_len_min => {
                conn.restart_clock(self.now);
                Next::Wait
            }
            Overdue::Window if conn.is_sending() => {
                self.shared
                    .service
                    .incident(&Incident::TooSlow { peer: conn.peer });
                conn.reset_on_close();
                self.fail(conn)
            }
            Overdue::Window | Overdue::Head => {
                conn.proto.close_after();
                conn.proto.answered(false);
                self.refuse(conn, Refusal::Timeout);
                match self.flush_out(conn) {
                    Ok(true) => self.finish(conn),
                    Ok(false) => Next::Wait,
                    Err(_) => Next::Close,
                }
            }
        }
    }

    fn start_drain(&mut self, deadline: Instant) {
        let earlier = self
            .drain_by
            .map_or(deadline, |drain_by| drain_by.min(deadline));
        if self.drain_by.replace(earlier).is_none() {
            // Connections that the kernel has accepted for us are ours to serve.
            for index in 0..self.listeners.len() {
                self.accept(index);
            }
            // A shared socket stays known to the poll while another thread has it open.
            self.pause_listeners();
            self.listeners.clear();
        }
    }

    /// Time is up, or nothing is left.
    fn cut_off(&mut self) {
        if self.slab.count() > 0 {
            self.shared.is_cut_off.store(true, Ordering::Release);
        }
        let mut keys = Vec::new();
        self.slab.keys_here(&mut keys);
        for key in keys {
            if let Some(mut conn) = self.slab.take(key) {
                if conn.is_sending() {
                    conn.reset_on_close();
                    exec::fail(&self.shared, &mut conn);
                }
                self.close(conn);
            }
        }
    }
}

/// Which clock ran out.
enum Overdue {
    Idle,
    Head,
    Window,
    Linger,
}

fn simple_answer(
    out: &mut Vec<u8>,
    status: Status,
    body: &[u8],
    version: Version,
    keep: bool,
    date: &Date,
) {
    encode::status_line(out, status);
    encode::field(out, "Content-Type", b"text/plain");
    encode::delimiter(out, Delimiter::Length(body.len() as u64));
    encode::finish(out, version, keep, date.text());
    out.extend_from_slice(body);
}

fn overload_answer(out: &mut Vec<u8>, date: &Date) {
    let body = b"overloaded, try again\n";
    encode::status_line(out, Status::SERVICE_UNAVAILABLE);
    encode::field(out, "Content-Type", b"text/plain");
    encode::field(out, "Retry-After", b"1");
    encode::delimiter(out, Delimiter::Length(body.len() as u64));
    encode::finish(out, Version::Http11, false, date.text());
    out.extend_from_slice(body);
}

/// The `Date` field's text, made anew when the second changes.
#[derive(Debug)]
struct Date {
    second: u64,
    text: String,
}

impl Default for Date {
    fn default() -> Self {
        Self {
            second: 0,
            text: httpdate::fmt_http_date(SystemTime::UNIX_EPOCH),
        }
    }
}

impl Date {
    fn refresh(&mut self) {
        let now = SystemTime::now();
        let second = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |time| time.as_secs());
        if second != self.second {
            self.second = second;
            self.text = httpdate::fmt_http_date(now);
        }
    }

    fn text(&self) -> &[u8] {
        self.text.as_bytes()
    }
}
