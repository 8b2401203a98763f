//! Receives the requests of HTTP/2 streams.

use std::sync::Arc;

use bytes::Bytes;

use super::answers::scratch_reply;
use super::conn::{H2Conn, StreamState};
use super::inflow::Inflow;
use super::upload::StreamLink;
use crate::answer::{OVERLOADED, answer_inline};
use crate::conn::{Cancel, StreamJob, StreamRef, StreamWork};
use crate::h2::ErrorCode;
use crate::head::Head;
use crate::http::{Method, Status};
use crate::io::context::Context;
use crate::jobs::Job;
use crate::lane::Lane;
use crate::observer::Incident;
use crate::proto::Refusal;
use crate::proto::head::Framing;
use crate::request::Request;
use crate::response::{Outcome, Place, Turn};
use crate::service::{Intake, Service};
use crate::upload::BodyError;

/// Total length of the response pieces of one connection, in bytes. The streams share it, but each
/// gets at least [`PIECE_LEN_MIN`].
const PIECES_LEN: usize = 512 * 1024;
/// Maximum length of a piece, in bytes: the length of a pool buffer.
const PIECE_LEN_MAX: usize = 256 * 1024;
/// Minimum length of a piece, in bytes: the length of a frame.
const PIECE_LEN_MIN: usize = 16 * 1024;

impl<S: Service> Context<S> {
    pub(super) fn on_request(&mut self, conn: &mut H2Conn, stream: u32, is_end: bool) {
        self.count_stream(conn);
        let (raw, index) = conn.session.head();
        let head = Head::new(raw, index, conn.peer, conn.secure.as_ref());
        let is_head = head.method() == Method::Head;
        let reply = scratch_reply(&mut self.scratch, is_head, &self.date);
        let service = &self.shared.service;
        let (local, turn) = (&mut self.local, Turn(self.turn));
        match answer_inline(service, local, turn, self.now, head, reply) {
            Outcome::Sent(status, _) => {
                self.send_scratch(conn, stream, status);
                let secure = conn.secure.as_ref();
                if secure.is_some_and(|session| session.has_lapsed()) {
                    // The client must connect again.
                    self.leave(conn);
                }
            }
            Outcome::Dispatch(place) if is_end => {
                let request = Box::new(Request::of(head, place));
                self.dispatch(conn, stream, request, None, false);
            }
            Outcome::Dispatch(place) => self.receive_body(conn, stream, place),
        }
    }

    /// Receives the body of a request that the service has declined inline.
    fn receive_body(&mut self, conn: &mut H2Conn, stream: u32, place: Place) {
        let (raw, index) = conn.session.head();
        let head = Head::new(raw, index, conn.peer, conn.secure.as_ref());
        let intake = self.shared.service.intake(head);
        let is_head = head.method() == Method::Head;
        let (framing, expects_continue) = (index.framing, index.expect_continue);
        let request = Box::new(Request::of(head, place));
        if matches!(framing, Framing::Length(len) if len > intake.len_max()) {
            return self.refuse_stream(conn, stream, Refusal::BodyTooLarge, is_head);
        }
        let now = self.now;
        if let Some(entry) = conn.session.data(stream) {
            entry.body_len_max = intake.len_max();
            entry.restart_clock(now, 0);
        }
        match intake {
            Intake::Buffered(_) | Intake::Inline(_) => {
                if let Some(entry) = conn.session.data(stream) {
                    entry.request = Some(request);
                }
                if expects_continue {
                    conn.session.send_continue(stream);
                }
            }
            Intake::Streamed(_) => {
                let inflow = Arc::<Inflow>::default();
                self.dispatch(conn, stream, request, Some(inflow), expects_continue);
            }
        }
        conn.session.read(stream, true);
    }

    pub(super) fn on_data(&mut self, conn: &mut H2Conn, stream: u32, bytes: Bytes) {
        let Some(entry) = conn.session.data(stream) else {
            return;
        };
        entry.body_len += bytes.len() as u64;
        let is_too_long = entry.body_len > entry.body_len_max;
        if let Some(inflow) = &entry.inflow {
            if is_too_long {
                inflow.end(Err(BodyError::Refused(Refusal::BodyTooLarge)));
                conn.session.read(stream, false);
            } else {
                inflow.put(bytes);
            }
        } else if let Some(request) = &mut entry.request {
            let refusal = if is_too_long {
                Some(Refusal::BodyTooLarge)
            } else {
                let has_room = request.add_body(&bytes, &self.shared.request_memory);
                (!has_room).then_some(Refusal::BodyMemory)
            };
            match refusal {
                None => conn.session.release(stream, bytes.len()),
                Some(refusal) => {
                    let is_head = request.head().method() == Method::Head;
                    entry.request = None;
                    self.refuse_stream(conn, stream, refusal, is_head);
                }
            }
        }
    }

    pub(super) fn on_end(&mut self, conn: &mut H2Conn, stream: u32) {
        let Some(entry) = conn.session.data(stream) else {
            return;
        };
        if let Some(inflow) = entry.inflow.take() {
            inflow.end(Ok(()));
        } else if let Some(request) = entry.request.take() {
            self.dispatch(conn, stream, request, None, false);
        }
    }

    /// Queues a request for a worker.
    fn dispatch(
        &mut self,
        conn: &mut H2Conn,
        stream: u32,
        mut request: Box<Request>,
        inflow: Option<Arc<Inflow>>,
        expects_continue: bool,
    ) {
        // Handlers of ended streams count towards the limit: a client that resets its requests must
        // not get more running handlers than a client that waits.
        let handlers_max = self.shared.limits.streams_max as usize;
        if conn.handler_count >= handlers_max {
            conn.session.reset(stream, ErrorCode::REFUSED_STREAM);
            return;
        }
        let lane = request.lane;
        let reference = StreamRef {
            lane,
            ..self.stream_ref(conn, stream)
        };
        let (now, cancel) = (self.now, Cancel::default());
        let link = StreamLink::new(
            reference,
            &self.shared.core,
            conn.peer,
            inflow.clone(),
            expects_continue,
        );
        request.link = Some(Box::new(link));
        if let Some(entry) = conn.session.data(stream) {
            entry.state = StreamState::Away;
            entry.started = Some(now);
            entry.inflow = inflow;
            entry.cancel = cancel.clone();
            entry.lane = lane;
        }
        let is_head = request.head().method() == Method::Head;
        let job = StreamJob {
            stream: reference,
            cancel,
            work: StreamWork::Handle(request),
        };
        if self.queue(Job::Stream(Box::new(job))).is_ok() {
            conn.handler_count += 1;
            return;
        }
        self.incident(&Incident::WorkersFull);
        let status = Status::SERVICE_UNAVAILABLE;
        self.refuse_in_scratch(is_head, status, OVERLOADED);
        self.send_scratch(conn, stream, status);
    }

    pub(super) fn stream_ref(&self, conn: &H2Conn, stream: u32) -> StreamRef {
        let streams = conn.session.stream_count().max(1);
        StreamRef {
            home: self.home,
            key: conn.key,
            stream,
            lane: Lane::Prompt,
            piece_len: (PIECES_LEN / streams).clamp(PIECE_LEN_MIN, PIECE_LEN_MAX),
        }
    }
}
