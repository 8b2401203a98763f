//! HTTP/1 on an I/O thread: handling of events in each [`Stage`].

use std::time::Duration;

use super::context::{Context, GATHER_LEN, LINGER_LEN_MAX, Next, OUT_LEN_KEPT};
use crate::answer::{answer_inline, last};
use crate::conn::{Conn, Stage, Verdict};
use crate::exec;
use crate::head::Head;
use crate::http::Method;
use crate::jobs::Job;
use crate::observer::{End, Incident};
use crate::proto::Refusal;
use crate::proto::conn::{Phase, Step};
use crate::proto::head::Framing;
use crate::request::Request;
use crate::response::{Outcome, Reply, Turn};
use crate::service::{Intake, Service};
use crate::sys::Edges;

impl<S: Service> Context<S> {
    /// Handles a connection that a worker has returned. `edges`: events since the connection moved
    /// to the worker.
    pub(super) fn on_return(&mut self, conn: &mut Conn, verdict: Verdict, edges: Edges) -> Next {
        match verdict {
            Verdict::Reset => {
                conn.transport.reset_on_close();
                Next::Close
            }
            // The socket may have become writable while the worker had the connection.
            Verdict::Blocked if edges.writable => self.send_more(conn),
            Verdict::Blocked => {
                conn.forgive(self.now);
                Next::Wait
            }
            Verdict::Waiting => {
                conn.enter(Stage::Waiting);
                self.wait_on(conn, edges)
            }
            Verdict::Handshake(handshake) => self.on_handshake(conn, handshake, edges),
            Verdict::Answered => {
                conn.restart_clock(self.now);
                let keep = conn.answer.keep;
                self.answered(conn, keep);
                self.go_on(conn)
            }
        }
    }

    pub(super) fn step(&mut self, conn: &mut Conn, edges: Edges) -> Next {
        match conn.stage() {
            Stage::Handshake => super::handshake::on_event(edges),
            Stage::Lingering => self.linger(conn),
            Stage::Waiting => self.wait_on(conn, edges),
            Stage::Receiving | Stage::Answering if !conn.is_sending() => self.go_on(conn),
            Stage::Receiving | Stage::Answering if edges.writable => self.send_more(conn),
            Stage::Receiving | Stage::Answering => Next::Wait,
        }
    }

    /// Handles events while the response waits for the application.
    fn wait_on(&mut self, conn: &mut Conn, edges: Edges) -> Next {
        // Check the socket as well as `edges`: the client may have disconnected before the wait
        // started.
        // A client that only ends its side still gets what a reader yields soon; see
        // `Overdue::Left`.
        if edges.hung_up || !conn.is_filling && conn.is_at_end() {
            return self.fail(conn, End::Left);
        }
        if edges.ended {
            // Unread requests delay the abort by one `stall_time`; see `Overdue::Left`.
            conn.restart_clock(self.now);
        }
        if edges.writable && conn.flush().is_err() {
            return self.fail(conn, End::Left);
        }
        if edges.woken && !conn.is_filling {
            conn.enter(Stage::Answering);
            // The I/O thread can send a response in memory without a worker.
            if exec::render_deferred(&self.shared.core, conn, self.now) {
                return self.send_more(conn);
            }
            return Next::Pump;
        }
        Next::Wait
    }

    /// Sends more of a response that the socket did not accept at once.
    pub(super) fn send_more(&mut self, conn: &mut Conn) -> Next {
        if conn.transfer.is_some() {
            // The transfer sends `output` itself, because unsent parts of the body may have to
            // precede it.
            return Next::Pump;
        }
        match conn.flush() {
            Err(_) => self.fail(conn, End::Left),
            Ok(false) => Next::Wait,
            Ok(true) if conn.stage() == Stage::Answering => {
                // The socket has now accepted the rest of a worker's response whose body was in
                // memory, so that it needed no transfer.
                exec::report(&self.shared, conn, End::Complete);
                let keep = conn.answer.keep;
                self.answered(conn, keep);
                self.go_on(conn)
            }
            Ok(true) => self.go_on(conn),
        }
    }

    /// Handles the input that an earlier turn has left, then reads from the socket.
    pub(super) fn go_on(&mut self, conn: &mut Conn) -> Next {
        if conn.upgrade.is_some() {
            return Next::OpenSocket;
        }
        if conn.proto.phase() == Phase::Closed {
            return self.finish(conn);
        }
        if !conn.input.is_empty() {
            // The input was read in an earlier turn. Data that was current in that turn may be
            // outdated now.
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
        let mut buffer = self.take_read_buffer();
        let next = match conn.read(&mut buffer) {
            Ok(Some(len)) if len > 0 => {
                self.turn += 1;
                self.serve_read(conn, &buffer[..len])
            }
            outcome => self.on_nothing(conn, outcome),
        };
        self.put_read_buffer(buffer);
        next
    }

    /// Handles a read that has returned no bytes.
    pub(super) fn on_nothing(
        &mut self,
        conn: &mut Conn,
        outcome: std::io::Result<Option<usize>>,
    ) -> Next {
        match outcome {
            Ok(None) => Next::Wait,
            // The client has disconnected between requests or in the middle of one.
            Ok(Some(_)) => {
                conn.transport.say_goodbye();
                Next::Close
            }
            Err(_) => Next::Close,
        }
    }

    /// Handles bytes that were just read from the connection.
    pub(super) fn serve_read(&mut self, conn: &mut Conn, bytes: &[u8]) -> Next {
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

    fn serve_input(&mut self, conn: &mut Conn) -> Option<Next> {
        let input = std::mem::take(&mut conn.input);
        self.serve(conn, &input)
    }

    /// Responds to the requests in `input`; an incomplete request stays in `conn.input`. Returns
    /// `None` if more input must be read.
    // Long: a loop over the requests of one read with all steps of the protocol.
    fn serve(&mut self, conn: &mut Conn, input: &[u8]) -> Option<Next> {
        let mut at = 0;
        let request = loop {
            // `advance` consumes no more than `rest`, so `at` stays within `input`.
            let rest = &input[at..];
            let (taken, step) = conn.proto.advance(
                rest,
                &self.shared.limits.head,
                conn.body_len_max,
                &mut self.index,
            );
            let consumed = &rest[..taken];
            at += taken;
            match step {
                Step::Head => {
                    conn.has_partial_head = false;
                    // A client that requested `Connection: close` sends nothing after its request.
                    conn.needs_linger = self.index.keep_alive;
                    conn.restart_clock(self.now);
                    if let Some(request) = self.on_head(conn, consumed, at < input.len()) {
                        break Some(request);
                    }
                }
                Step::Data => {
                    if let Some(request) = &mut conn.request
                        && !request.add_body(consumed, &self.shared.request_memory)
                    {
                        conn.proto.close_after();
                        conn.proto.answered(false);
                        self.refuse(conn, Refusal::BodyMemory);
                        break None;
                    }
                }
                Step::BodyEnd => break conn.request.take(),
                Step::Framing => {}
                Step::Refused(refusal) => {
                    self.refuse(conn, refusal);
                    break None;
                }
                Step::Http2 => {
                    if conn.answered_count == 0 {
                        conn.input.extend_from_slice(rest);
                        return Some(Next::Http2);
                    }
                    conn.proto.close_after();
                    self.refuse(conn, Refusal::HttpVersion);
                    break None;
                }
                Step::NeedMore | Step::Paused | Step::Closed => break None,
            }
            if self.out.len() >= GATHER_LEN {
                match self.flush_out(conn) {
                    Ok(true) => {}
                    // The client does not read, so the following requests wait.
                    Ok(false) => break None,
                    Err(_) => return Some(Next::Close),
                }
            }
        };
        let rest = &input[at..];
        if !rest.is_empty() {
            conn.input.extend_from_slice(rest);
        }
        if !rest.is_empty() && !conn.has_partial_head && conn.proto.phase() == Phase::Head {
            conn.has_partial_head = true;
            conn.restart_clock(self.now);
        }
        let flushed = self.flush_out(conn);
        match (flushed, request) {
            (Err(_), _) => Some(Next::Close),
            (Ok(_), Some(request)) => {
                conn.start_answer(request.lane, self.allows_keep(conn), self.now);
                Some(Next::Handle(request))
            }
            (Ok(false), None) => Some(Next::Wait),
            (Ok(true), None) if conn.proto.phase() == Phase::Closed => Some(self.finish(conn)),
            (Ok(true), None) => None,
        }
    }

    /// Handles a request head. Either sends the response and returns `None`, or returns the request
    /// for a worker. If the body must be received first, stores the request and returns `None`.
    fn on_head(
        &mut self,
        conn: &mut Conn,
        raw: &[u8],
        has_more_input: bool,
    ) -> Option<Box<Request>> {
        let has_lapsed = conn
            .session
            .as_ref()
            .is_some_and(|session| session.has_lapsed());
        let keep = self.may_keep(conn) && !has_lapsed;
        let shared = &*self.shared;
        let head = Head::new(raw, &self.index, conn.peer, conn.session.as_ref());
        let reply = Reply {
            out: &mut self.out,
            version: head.version(),
            keep,
            is_head: head.method() == Method::Head,
            date: self.date.text(),
            lines: &[],
        };
        let (local, turn) = (&mut self.local, Turn(self.turn));
        match answer_inline(&shared.service, local, turn, self.now, head, reply) {
            Outcome::Sent(..) => {
                conn.needs_linger |= conn.proto.has_body();
                self.answered(conn, keep);
                None
            }
            Outcome::Dispatch(place) if conn.proto.has_body() => {
                let intake = shared.service.intake(head);
                conn.body_len_max = intake.len_max();
                let mut request = Box::new(Request::of(head, place));
                request.is_inline = matches!(intake, Intake::Inline(_));
                let fits = match self.index.framing {
                    Framing::Length(len) => len <= conn.body_len_max,
                    // The length is unknown, so the limit is checked while the body arrives.
                    Framing::Chunked | Framing::None => true,
                };
                if fits && matches!(intake, Intake::Streamed(_)) {
                    return Some(request);
                }
                conn.request = Some(request);
                // RFC 9110, 10.1.1: no 100 if part of the body has arrived, or if the body will be
                // refused.
                if conn.proto.take_expect_continue() && !has_more_input && fits {
                    self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                }
                None
            }
            Outcome::Dispatch(place) => Some(Box::new(Request::of(head, place))),
        }
    }

    fn may_keep(&self, conn: &Conn) -> bool {
        conn.proto.may_keep() && self.allows_keep(conn)
    }

    /// Returns whether the server allows the connection to stay open.
    fn allows_keep(&self, conn: &Conn) -> bool {
        let max = self.shared.limits.requests_per_connection_max;
        self.drain.is_none()
            && self.shared.limits.idle_time > Duration::ZERO
            && (max == 0 || conn.answered_count + 1 < max)
    }

    fn answered(&mut self, conn: &mut Conn, keep: bool) {
        conn.enter(Stage::Receiving);
        conn.proto.answered(keep);
        conn.answered_count += 1;
        if self.drain.is_some() {
            conn.proto.close_after();
        }
    }

    pub(super) fn refuse(&mut self, conn: &mut Conn, refusal: Refusal) {
        let peer = conn.peer;
        self.incident(&Incident::Refused { peer, refusal });
        let request = conn.request.take();
        let is_head = request.is_some_and(|request| request.head().method() == Method::Head);
        conn.needs_linger = true;
        let reply = last(&mut self.out, is_head, &self.date);
        reply.refuse(&self.shared.service, refusal.status(), refusal.to_string());
    }

    /// Refuses a job that does not fit into the queue. Returns its connection and the next step;
    /// `None` for jobs that are not refused here.
    pub(super) fn refuse_overload(&mut self, job: Job) -> Option<(Box<Conn>, Next)> {
        self.incident(&Incident::WorkersFull);
        let (mut conn, is_head) = match job {
            Job::Handle(conn, request) => (conn, request.head().method() == Method::Head),
            // Without a TLS session no response can be sent.
            Job::Handshake(conn) => return Some((conn, Next::Close)),
            // These jobs are never refused here: the queue accepts them, or their callers handle
            // the refusal.
            _ => return None,
        };
        conn.needs_linger |= conn.proto.has_body();
        self.answered(&mut conn, false);
        last(&mut conn.output, is_head, &self.date).overload(&self.shared.service);
        let next = self.send_more(&mut conn);
        Some((conn, next))
    }

    /// Sends the gathered responses; `conn.output` keeps what the socket does not accept.
    pub(super) fn flush_out(&mut self, conn: &mut Conn) -> std::io::Result<bool> {
        let mut sent = 0;
        if conn.output.is_empty() {
            let outcome = conn.transport.send_all(&self.out);
            sent = outcome.inspect_err(|_| self.out.clear())?;
        }
        conn.output.extend_from_slice(&self.out[sent..]);
        self.out.clear();
        self.out.shrink_to(OUT_LEN_KEPT);
        Ok(conn.output.is_empty() && conn.transport.flush()?)
    }

    /// Finishes a connection after the kernel has accepted the last response.
    ///
    /// If a socket is closed with unread bytes, the kernel sends RST, which can destroy the
    /// response before the client has read it (RFC 9112, 9.6). So if there may be unread bytes,
    /// only the sending side is shut down, and received bytes are discarded until the client closes
    /// or `linger_time` has passed.
    pub(super) fn finish(&mut self, conn: &mut Conn) -> Next {
        if !conn.needs_linger && conn.input.is_empty() && !conn.readable {
            conn.transport.say_goodbye();
            return Next::Close;
        }
        if conn.transport.shutdown_write().is_err() {
            return Next::Close;
        }
        conn.enter(Stage::Lingering);
        conn.input = Vec::new();
        conn.restart_clock(self.now);
        self.linger(conn)
    }

    /// Discards received bytes, up to a limit. Beyond it, the client's TCP window closes, and the
    /// client still has the rest of `linger_time` to read its response.
    pub(super) fn linger(&mut self, conn: &mut Conn) -> Next {
        while conn.readable && conn.moved_len <= LINGER_LEN_MAX {
            if matches!(conn.read(self.read_buffer()), Ok(Some(0)) | Err(_)) {
                return Next::Close;
            }
        }
        Next::Wait
    }

    pub(super) fn fail(&mut self, conn: &mut Conn, end: End) -> Next {
        let transfer = exec::fail(&self.shared, conn, end);
        self.discard(transfer);
        Next::Close
    }
}
