//! What an I/O thread does for an HTTP/2 connection.
//!
//! It reads, shows what came to the session, deals with what that has to tell, and writes what it
//! has to send; all of it here, while workers run handlers and make pieces of bodies.
//!
//! | a stream is | whose turn it is | goes on when |
//! |---|---|---|
//! | receiving | the peer's | its request is complete, or its head where the body is streamed |
//! | away | a worker's | the worker's news are in the inbox |
//! | waiting | the application's | woken by the body, or by whoever has promised the answer |
//! | sending | the peer's | its windows let the last piece go: then a worker makes the next |
//!
//! One stream never holds another up, nor a thread: what waits for the peer is a piece of memory.

mod answers;
mod clock;
mod conn;
mod inflow;
mod requests;
mod upload;

use std::io;

pub(crate) use self::conn::H2Conn;
use self::conn::{Report, Stream, StreamState};
use super::conn::Conn;
use super::context::{Context, LINGER_LEN_MAX, OUT_LEN_KEPT, Stay};
use super::sys::Edges;
use crate::h2::{ErrorCode, Event, Session};
use crate::observer::{End, Exchange, Incident};
use crate::service::Service;

/// Reads of one connection before others get their turn.
const READ_COUNT: usize = 4;
/// Bytes one connection may send before others get their turn.
const TURN_LEN: u64 = 4 << 20;
impl<S: Service> Context<S> {
    /// A connection that speaks HTTP/2 from here on, with what it has said so far.
    pub(super) fn start_h2(&mut self, conn: Conn) -> (Box<H2Conn>, Stay) {
        let Conn {
            transport,
            peer,
            key,
            session: secure,
            input,
            peer_ended,
            ..
        } = conn;
        let limits = &self.shared.limits;
        let session = Session::new(&limits.http2, &limits.head, self.now);
        let conn = H2Conn::new(transport, peer, secure, key, session, self.now);
        let mut conn = Box::new(conn);
        // Announced once, so perhaps to the connection as it was.
        conn.peer_ended = peer_ended;
        conn.session.receive(&input, self.now);
        let next = self.step_h2(&mut conn, Edges::default());
        (conn, next)
    }

    /// Time is up.
    pub(super) fn cut_off_h2(&mut self, conn: &mut H2Conn) {
        if conn.session.stream_count() > 0 || !conn.output.is_empty() {
            conn.reset_on_close();
        }
        self.fail_h2(conn, End::Cut);
    }

    /// Gives up what is under way.
    pub(super) fn fail_h2(&mut self, conn: &mut H2Conn, end: End) {
        conn.session.abort(ErrorCode::Cancel);
        while let Some(event) = conn.session.poll() {
            match event {
                Event::Sent { stream } => Self::gather_report(conn, stream),
                Event::Reset { stream } => self.report_failure(conn, stream, end),
                _ => {}
            }
        }
        self.report_all(conn, end);
    }

    // The connection.

    pub(super) fn step_h2(&mut self, conn: &mut H2Conn, edges: Edges) -> Stay {
        conn.is_scheduled = false;
        if conn.is_lingering {
            return self.linger_h2(conn);
        }
        if edges.hung_up {
            return Stay::Close;
        }
        self.turn += 1;
        match self.go_on_h2(conn) {
            Ok(next) => next,
            // The peer is gone, and what was under way with it.
            Err(_) => Stay::Close,
        }
    }

    fn go_on_h2(&mut self, conn: &mut H2Conn) -> io::Result<Stay> {
        let mut is_clear = conn.flush()?;
        conn.turn_len = 0;
        for _ in 0..READ_COUNT {
            is_clear = self.drive(conn, is_clear)?;
            if conn.session.is_closed() {
                return Ok(if is_clear {
                    self.finish_h2(conn)
                } else {
                    Stay::Wait
                });
            }
            if !conn.readable || conn.has_ended || !is_clear || !conn.session.wants_input() {
                break;
            }
            self.read_h2(conn)?;
        }
        is_clear = self.drive(conn, is_clear)?;
        let has_sent_all = is_clear && conn.turn_len < TURN_LEN;
        if conn.has_ended && has_sent_all && self.drop_blocked(conn) {
            is_clear = self.drive(conn, is_clear)?;
        }
        if conn.has_ended && conn.session.stream_count() == 0 && is_clear {
            conn.transport.say_goodbye();
            return Ok(Stay::Close);
        }
        if conn.session.is_closed() && is_clear {
            return Ok(self.finish_h2(conn));
        }
        let has_more = conn.readable && !conn.has_ended || conn.turn_len >= TURN_LEN;
        Ok(if is_clear && has_more {
            Stay::Again
        } else {
            Stay::Wait
        })
    }

    fn read_h2(&mut self, conn: &mut H2Conn) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.read_buffer);
        let received = conn.read(&mut buffer);
        if let Ok(Some(len)) = received {
            conn.session
                .receive(buffer.get(..len).unwrap_or_default(), self.now);
        }
        self.read_buffer = buffer;
        if received? == Some(0) {
            self.end_input(conn);
        }
        Ok(())
    }

    /// The peer sends nothing more. Answers under way are finished, as far as its windows let them:
    /// it may still read.
    fn end_input(&mut self, conn: &mut H2Conn) {
        conn.has_ended = true;
        let is_receiving =
            |stream: &Stream| stream.state == StreamState::Receiving || stream.inflow.is_some();
        let incomplete: Vec<_> = conn
            .session
            .streams()
            .filter(|(_, stream)| is_receiving(stream))
            .map(|(id, _)| id)
            .collect();
        for id in incomplete {
            self.drop_stream(conn, id, ErrorCode::Cancel);
        }
    }

    /// Gives up the answers that wait for the application, which the peer is taken to have left
    /// (see `Limits::half_close`), and those that the peer's windows hold back: it cannot open them
    /// any more. Only once everything they allow has been sent.
    fn drop_blocked(&mut self, conn: &mut H2Conn) -> bool {
        let may_wait = self.shared.limits.half_close;
        let is_blocked = |stream: &Stream| match stream.state {
            StreamState::Sending => true,
            StreamState::Waiting => !may_wait,
            StreamState::Receiving | StreamState::Away => false,
        };
        let blocked: Vec<_> = conn
            .session
            .streams()
            .filter(|(_, stream)| is_blocked(stream))
            .map(|(id, _)| id)
            .collect();
        for id in &blocked {
            self.drop_stream(conn, *id, ErrorCode::Cancel);
        }
        !blocked.is_empty()
    }

    /// Deals with all events and sends the output; `true` once that is with the kernel.
    fn drive(&mut self, conn: &mut H2Conn, mut is_clear: bool) -> io::Result<bool> {
        let mut out = std::mem::take(&mut self.out);
        let outcome = loop {
            while let Some(event) = conn.session.poll() {
                self.on_stream_event(conn, event);
            }
            conn.watch_block(self.now);
            if !is_clear || conn.turn_len >= TURN_LEN {
                break Ok(is_clear);
            }
            out.clear();
            conn.session.take_output(&mut out);
            if out.is_empty() {
                break Ok(true);
            }
            conn.turn_len += out.len() as u64;
            match conn.send(&out) {
                Ok(sent) => is_clear = sent,
                Err(error) => break Err(error),
            }
            if is_clear {
                self.report_all(conn, End::Complete);
            }
        };
        out.clear();
        out.shrink_to(OUT_LEN_KEPT);
        self.out = out;
        if is_clear {
            self.report_all(conn, End::Complete);
        }
        outcome
    }

    /// The session has said its last word.
    fn finish_h2(&mut self, conn: &mut H2Conn) -> Stay {
        if let Some(abuse) = conn.session.abused() {
            let peer = conn.peer;
            self.incident(&Incident::Abused { peer, abuse });
        }
        if conn.has_ended || conn.transport.shutdown_write().is_err() {
            return Stay::Close;
        }
        conn.is_lingering = true;
        conn.since = self.now;
        conn.moved_len = 0;
        self.linger_h2(conn)
    }

    /// As for HTTP/1: a peer that still sends must not lose the GOAWAY to a reset.
    fn linger_h2(&mut self, conn: &mut H2Conn) -> Stay {
        while conn.readable && conn.moved_len <= LINGER_LEN_MAX {
            match conn.read(&mut self.read_buffer) {
                Ok(Some(0)) | Err(_) => return Stay::Close,
                Ok(len) => conn.moved_len += len.unwrap_or(0) as u64,
            }
        }
        Stay::Wait
    }

    // Events of streams.

    fn on_stream_event(&mut self, conn: &mut H2Conn, event: Event) {
        match event {
            Event::Request { stream, is_end } => self.on_request(conn, stream, is_end),
            Event::Refused {
                stream,
                is_head,
                refusal,
            } => {
                self.count_stream(conn);
                self.refuse_stream(conn, stream, refusal, is_head);
            }
            Event::Data { stream, bytes } => self.on_data(conn, stream, bytes),
            Event::End { stream } => self.on_end(conn, stream),
            Event::Drained { stream } => self.on_drained(conn, stream),
            Event::Sent { stream } => {
                Self::gather_report(conn, stream);
                conn.since = self.now;
            }
            Event::Reset { stream } => {
                conn.since = self.now;
                self.report_failure(conn, stream, End::Left);
            }
        }
    }

    fn count_stream(&mut self, conn: &mut H2Conn) {
        conn.since = self.now;
        conn.opened_count += 1;
        let max = self.shared.limits.requests_per_connection_max;
        if max > 0 && conn.opened_count >= max {
            self.leave(conn);
        }
    }

    /// No new streams from here on.
    pub(super) fn leave(&mut self, conn: &mut H2Conn) {
        if conn.leaving_since.is_none() {
            conn.leaving_since = Some(self.now);
            conn.session.go_away();
        }
    }

    // What there is to tell.

    /// Gives a stream up; [`ErrorCode::Cancel`] says that its peer has left.
    fn drop_stream(&mut self, conn: &mut H2Conn, stream: u32, code: ErrorCode) {
        let end = match code {
            ErrorCode::Cancel => End::Left,
            _ => End::Cut,
        };
        self.report_failure(conn, stream, end);
        conn.session.reset(stream, code);
    }

    /// An answer is complete, and told of once the kernel has it.
    fn gather_report(conn: &mut H2Conn, stream: u32) {
        let body_len = conn.session.sent_len(stream);
        let report = conn.session.data(stream);
        if let Some(report) = report.and_then(|entry| entry.report(body_len)) {
            conn.unreported.push(report);
        }
    }

    /// An answer will not be complete.
    fn report_failure(&mut self, conn: &mut H2Conn, stream: u32, end: End) {
        let body_len = conn.session.sent_len(stream);
        let Some(entry) = conn.session.data(stream) else {
            return;
        };
        let (outflow, report) = (entry.outflow.take(), entry.report(body_len));
        self.discard(outflow);
        if let Some(report) = report {
            self.report(&report, end);
        }
    }

    fn report_all(&mut self, conn: &mut H2Conn, end: End) {
        for report in std::mem::take(&mut conn.unreported) {
            self.report(&report, end);
        }
    }

    fn report(&self, report: &Report, end: End) {
        self.shared.service.observer().exchanged(&Exchange {
            head: report.request.head(),
            status: report.status,
            body_len: report.body_len,
            end,
            is_inline: false,
            duration: report.started.elapsed(),
        });
    }
}
