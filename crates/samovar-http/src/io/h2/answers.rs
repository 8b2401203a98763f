//! Sends the responses of HTTP/2 streams.

use std::borrow::Cow;

use bytes::Bytes;
use memchr::memmem;

use super::conn::{H2Conn, StreamState};
use crate::answer::Date;
use crate::conn::{Rest, StreamAnswer, StreamJob, StreamNews, StreamWork};
use crate::h2::{ErrorCode, ResponseHead};
use crate::http::{Status, Version};
use crate::io::context::Context;
use crate::jobs::Job;
use crate::observer::Incident;
use crate::proto::Refusal;
use crate::request::Request;
use crate::response::{Outcome, Reply};
use crate::service::Service;

/// Creates the reply that renders a response into the scratch memory.
pub(super) fn scratch_reply<'a>(
    scratch: &'a mut Vec<u8>,
    is_head: bool,
    date: &'a Date,
) -> Reply<'a> {
    scratch.clear();
    Reply {
        out: scratch,
        version: Version::Http2,
        is_head,
        keep: true,
        date: date.text(),
        lines: &[],
    }
}

impl<S: Service> Context<S> {
    // Methods for responses that the I/O thread sends without a worker.

    /// Sends the response that was rendered into the scratch memory.
    pub(super) fn send_scratch(&mut self, conn: &mut H2Conn, stream: u32, status: Status) {
        let head_end = memmem::find(&self.scratch, b"\r\n\r\n").map_or(0, |at| at + 4);
        let (text, body) = self.scratch.split_at(head_end);
        let head = ResponseHead::read(status, text);
        conn.session.respond(stream, head, body.is_empty());
        if !body.is_empty() {
            let bytes = Bytes::copy_from_slice(body);
            conn.session.send(stream, bytes, true);
        }
        if let Some(entry) = conn.session.data(stream) {
            entry.state = StreamState::Sending;
            entry.restart_clock(self.now, 0);
        }
    }

    /// Renders an error response of the engine into the scratch memory.
    pub(super) fn refuse_in_scratch(
        &mut self,
        is_head: bool,
        status: Status,
        message: impl Into<Cow<'static, str>>,
    ) -> Outcome {
        let reply = scratch_reply(&mut self.scratch, is_head, &self.date);
        reply.refuse(&self.shared.service, status, message)
    }

    pub(super) fn refuse_stream(
        &mut self,
        conn: &mut H2Conn,
        stream: u32,
        refusal: Refusal,
        is_head: bool,
    ) {
        let peer = conn.peer;
        self.incident(&Incident::Refused { peer, refusal });
        let status = refusal.status();
        self.refuse_in_scratch(is_head, status, refusal.to_string());
        // Stop receiving the request body.
        conn.session.read(stream, false);
        self.send_scratch(conn, stream, status);
    }

    // Methods for responses that workers produce.

    pub(in crate::io) fn on_news(&mut self, conn: &mut H2Conn, stream: u32, news: StreamNews) {
        match news {
            StreamNews::Continue => conn.session.send_continue(stream),
            StreamNews::Release(len) => conn.session.release(stream, len),
            StreamNews::Deferred(later, preferences, request) => {
                conn.handler_count = conn.handler_count.saturating_sub(1);
                match conn.session.data(stream) {
                    Some(entry) => {
                        entry.request = request;
                        entry.later = Some((later, preferences));
                        self.wait_for_wake(conn, stream);
                    }
                    None => later.abandon(),
                }
            }
            StreamNews::Answer(answer, request) => {
                if !answer.was_deferred {
                    conn.handler_count = conn.handler_count.saturating_sub(1);
                }
                self.on_answer(conn, stream, *answer, request);
            }
            StreamNews::Reads => {
                if let Some(entry) = conn.session.data(stream) {
                    entry.reading_since = Some(self.now);
                }
            }
            StreamNews::Piece(bytes, rest) => self.send_piece(conn, stream, bytes, rest),
            StreamNews::HandlerLost => {
                conn.handler_count = conn.handler_count.saturating_sub(1);
                self.drop_stream(conn, stream, ErrorCode::INTERNAL_ERROR);
            }
            StreamNews::BodyFailed => self.drop_stream(conn, stream, ErrorCode::INTERNAL_ERROR),
        }
    }

    fn on_answer(
        &mut self,
        conn: &mut H2Conn,
        stream: u32,
        answer: StreamAnswer,
        request: Option<Box<Request>>,
    ) {
        let StreamAnswer {
            status,
            head,
            bytes,
            rest,
            ..
        } = answer;
        let Some(entry) = conn.session.data(stream) else {
            return self.discard(rest.into_outflow());
        };
        entry.status = Some(status);
        entry.request = request.or_else(|| entry.request.take());
        entry.inflow = None;
        let is_end = bytes.is_empty() && matches!(rest, Rest::End);
        // Stop receiving the request body, of which the handler may not have read everything.
        conn.session.read(stream, false);
        conn.session.respond(stream, head, is_end);
        if is_end {
            self.start_sending(conn, stream);
        } else {
            self.send_piece(conn, stream, bytes, rest);
        }
    }

    fn start_sending(&mut self, conn: &mut H2Conn, stream: u32) {
        let sent_len = conn.session.sent_len(stream);
        if let Some(entry) = conn.session.data(stream) {
            entry.state = StreamState::Sending;
            entry.reading_since = None;
            entry.restart_clock(self.now, sent_len);
        }
    }

    fn send_piece(&mut self, conn: &mut H2Conn, stream: u32, bytes: Bytes, rest: Rest) {
        self.start_sending(conn, stream);
        let Some(entry) = conn.session.data(stream) else {
            return self.discard(rest.into_outflow());
        };
        match rest {
            Rest::End => conn.session.send(stream, bytes, true),
            Rest::More { outflow, is_dry } => {
                entry.outflow = Some(outflow);
                entry.is_dry = is_dry;
                if is_dry && bytes.is_empty() {
                    self.wait_for_wake(conn, stream);
                } else {
                    conn.session.send(stream, bytes, false);
                }
            }
        }
    }

    /// Continues a response after the session has taken the previous piece of its body completely.
    pub(super) fn on_drained(&mut self, conn: &mut H2Conn, stream: u32) {
        match conn.session.data(stream) {
            Some(entry) if entry.outflow.is_none() => {}
            Some(entry) if entry.is_dry => self.wait_for_wake(conn, stream),
            Some(_) => self.resume(conn, stream),
            None => {}
        }
    }

    fn wait_for_wake(&mut self, conn: &mut H2Conn, stream: u32) {
        let Some(entry) = conn.session.data(stream) else {
            return;
        };
        if std::mem::take(&mut entry.is_woken) {
            self.resume(conn, stream);
        } else {
            entry.state = StreamState::Waiting;
        }
    }

    pub(in crate::io) fn wake_stream(&mut self, conn: &mut H2Conn, stream: u32) {
        match conn.session.data(stream) {
            Some(entry) if entry.state == StreamState::Waiting => self.resume(conn, stream),
            // Remember the wake-up: the stream checks this before it waits.
            Some(entry) => entry.is_woken = true,
            None => {}
        }
    }

    /// Queues a job for a worker to continue a response.
    fn resume(&mut self, conn: &mut H2Conn, stream: u32) {
        let mut reference = self.stream_ref(conn, stream);
        let Some(entry) = conn.session.data(stream) else {
            return;
        };
        reference.lane = entry.lane.of_body();
        let work = if let Some((later, preferences)) = entry.later.take() {
            StreamWork::Fulfil(later, preferences)
        } else if let Some(outflow) = entry.outflow.take() {
            entry.reading_since = outflow.may_wait().then_some(self.now);
            StreamWork::Pull(outflow)
        } else {
            return;
        };
        entry.state = StreamState::Away;
        let cancel = entry.cancel.clone();
        let job = StreamJob {
            stream: reference,
            cancel,
            work,
        };
        // Cannot fail: the queue accepts every job that continues a response.
        drop(self.queue(Job::Stream(Box::new(job))));
    }
}
