//! HTTP/2 on an I/O thread.
//!
//! The I/O thread reads bytes, passes them to the session, handles the session's events, and sends
//! its output. Workers run handlers and pull pieces of response bodies.
//!
//! | a stream is | it waits for | continues when |
//! |---|---|---|
//! | receiving | the client | its request is complete, or its head if the body is streamed |
//! | away | a worker | the worker's result is in the inbox |
//! | waiting | the application | the application wakes it |
//! | sending | the client | the last piece is sent: then a worker pulls the next |
//!
//! No stream delays another, and none occupies a thread while it waits for its client: it only
//! keeps one piece of a body in memory.

mod answers;
mod clock;
mod conn;
mod inflow;
mod requests;
mod upload;

use std::io;
use std::time::Instant;

pub(crate) use self::conn::H2Conn;
use self::conn::{Report, Stream, StreamState};
use super::context::{Context, LINGER_LEN_MAX, OUT_LEN_KEPT, Stay};
use crate::conn::Conn;
use crate::h2::{ErrorCode, Event, Session};
use crate::observer::{End, Exchange, Incident};
use crate::service::Service;
use crate::sys::Edges;

/// Number of reads of one connection before other connections are served.
const READ_COUNT: usize = 4;
/// Number of bytes that one connection may send before other connections are served.
const TURN_LEN: u64 = 4 << 20;

impl<S: Service> Context<S> {
    /// Converts a connection that uses HTTP/2 to an [`H2Conn`], together with its input so far.
    pub(super) fn start_h2(&mut self, mut conn: Conn) -> (Box<H2Conn>, Stay) {
        let limits = &self.shared.limits;
        let mut session = Session::new(limits.streams_max, &limits.head, self.now);
        session.receive(&std::mem::take(&mut conn.input), self.now);
        let mut conn = Box::new(H2Conn::new(conn, session, self.now));
        let next = self.step_h2(&mut conn, Edges::default());
        (conn, next)
    }

    /// Aborts a connection and all its streams.
    pub(super) fn cut_off_h2(&mut self, conn: &mut H2Conn) {
        if conn.session.stream_count() > 0 || !conn.output.is_empty() {
            conn.transport.reset_on_close();
        }
        self.fail_h2(conn, End::Cut);
    }

    /// Aborts all responses in progress.
    pub(super) fn fail_h2(&mut self, conn: &mut H2Conn, end: End) {
        conn.session.abort(ErrorCode::CANCEL);
        while let Some(event) = conn.session.poll() {
            match event {
                Event::Sent(stream) => Self::gather_report(conn, stream),
                Event::Reset(stream) => self.report_failure(conn, stream, end),
                _ => {}
            }
        }
        self.report_all(conn, end);
    }

    // Methods for the steps of a connection.

    pub(super) fn step_h2(&mut self, conn: &mut H2Conn, edges: Edges) -> Stay {
        conn.is_scheduled = false;
        if conn.is_lingering {
            return self.linger_h2(conn);
        }
        if edges.hung_up {
            return Stay::Close;
        }
        self.turn += 1;
        // An error means that the client has disconnected.
        self.go_on_h2(conn).unwrap_or(Stay::Close)
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
        let mut buffer = self.read_buffer.take();
        let received = conn.read(&mut buffer);
        if let Ok(Some(len)) = received {
            conn.session.receive(&buffer[..len], self.now);
        }
        self.read_buffer.put(buffer);
        if received? == Some(0) {
            self.end_input(conn);
        }
        Ok(())
    }

    /// Handles the end of the client's input. Responses in progress continue as far as the
    /// flow-control windows allow, because the client may still read.
    fn end_input(&mut self, conn: &mut H2Conn) {
        conn.has_ended = true;
        self.drop_streams(conn, |stream| {
            stream.state == StreamState::Receiving || stream.inflow.is_some()
        });
    }

    /// Aborts blocked responses of a client that has shut down its sending side; returns `true` if
    /// there are any. These are responses that wait for the application, and responses blocked by
    /// flow-control windows, because the client can no longer open the windows. Called after all
    /// bytes that the windows allow were sent.
    fn drop_blocked(&mut self, conn: &mut H2Conn) -> bool {
        self.drop_streams(conn, |stream| {
            matches!(stream.state, StreamState::Sending | StreamState::Waiting)
        })
    }

    /// Aborts responses of a client that has shut down its sending side if the readers of their
    /// bodies yield nothing for `linger_time`; returns `true` if there are any. See
    /// `Overdue::Left` of HTTP/1.
    fn drop_silent_readers(&mut self, conn: &mut H2Conn) -> bool {
        if !conn.has_ended {
            return false;
        }
        let (now, time) = (self.now, self.shared.limits.linger_time);
        let is_silent = |since: Instant| now.saturating_duration_since(since) >= time;
        self.drop_streams(conn, |stream| stream.reading_since.is_some_and(is_silent))
    }

    /// Aborts the matching streams of a client that has disconnected; returns `true` if there are
    /// any.
    fn drop_streams(&mut self, conn: &mut H2Conn, which: impl Fn(&Stream) -> bool) -> bool {
        let streams = conn.session.streams().filter(|(_, stream)| which(stream));
        let ids: Vec<_> = streams.map(|(id, _)| id).collect();
        for id in &ids {
            self.drop_stream(conn, *id, ErrorCode::CANCEL);
        }
        !ids.is_empty()
    }

    /// Handles all events and sends the output; returns `true` once the kernel has accepted it.
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

    /// Finishes a connection after the session has ended and its output was sent.
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

    /// Lingers as with HTTP/1: a client that is still sending must not lose the GOAWAY to a TCP
    /// reset.
    fn linger_h2(&mut self, conn: &mut H2Conn) -> Stay {
        while conn.readable && conn.moved_len <= LINGER_LEN_MAX {
            match conn.read(self.read_buffer.get()) {
                Ok(Some(0)) | Err(_) => return Stay::Close,
                Ok(len) => conn.moved_len += len.unwrap_or(0) as u64,
            }
        }
        Stay::Wait
    }

    // Methods for the events of streams.

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
            Event::Data(stream, bytes) => self.on_data(conn, stream, bytes),
            Event::End(stream) => self.on_end(conn, stream),
            Event::Drained(stream) => self.on_drained(conn, stream),
            Event::Sent(stream) => {
                Self::gather_report(conn, stream);
                conn.since = self.now;
            }
            Event::Reset(stream) => {
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

    /// Sends GOAWAY; new streams are refused from then on.
    pub(super) fn leave(&mut self, conn: &mut H2Conn) {
        if conn.leaving_since.is_none() {
            conn.leaving_since = Some(self.now);
            conn.session.go_away();
        }
    }

    // Methods for reports to the observer.

    /// Resets a stream. [`ErrorCode::CANCEL`] means that the client has disconnected.
    fn drop_stream(&mut self, conn: &mut H2Conn, stream: u32, code: ErrorCode) {
        let end = match code {
            ErrorCode::CANCEL => End::Left,
            _ => End::Cut,
        };
        self.report_failure(conn, stream, end);
        conn.session.reset(stream, code);
    }

    /// Stores the report of a complete response until the kernel has accepted all its bytes.
    fn gather_report(conn: &mut H2Conn, stream: u32) {
        let body_len = conn.session.sent_len(stream);
        let report = conn.session.data(stream);
        if let Some(report) = report.and_then(|entry| entry.report(body_len)) {
            conn.unreported.push(report);
        }
    }

    /// Reports a response that stays incomplete.
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
