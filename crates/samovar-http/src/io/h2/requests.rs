//! Receives the requests of HTTP/2 streams.

use std::sync::Arc;

use bytes::Bytes;

use super::answers::{self, reply_into, send_rendered};
use super::conn::{H2Conn, StreamState};
use super::inflow::Inflow;
use super::upload::StreamLink;
use crate::answer::{OVERLOADED, answer_inline};
use crate::conn::{Cancel, StreamJob, StreamWork};
use crate::h2::ErrorCode;
use crate::head::Head;
use crate::http::{Method, Status};
use crate::io::context::Context;
use crate::jobs::Job;
use crate::observer::{Incident, Tag};
use crate::proto::Refusal;
use crate::proto::head::Framing;
use crate::request::Request;
use crate::response::{Outcome, Turn};
use crate::service::{Intake, Service};
use crate::upload::BodyError;

pub(super) fn on_request<S: Service>(
    cx: &mut Context<S>,
    conn: &mut H2Conn,
    stream: u32,
    is_end: bool,
) {
    conn.count_stream(cx.now, cx.shared.limits.requests_per_connection_max);
    let (raw, index) = conn.session.head();
    let head = Head::new(raw, index, conn.peer, conn.secure.as_ref());
    let is_head = head.method() == Method::Head;
    let reply = reply_into(&mut cx.scratch, is_head, &cx.date);
    let service = &cx.shared.service;
    let (local, turn) = (&mut cx.local, Turn(cx.turn));
    let mut tag = Tag::default();
    let outcome = answer_inline(service, local, turn, cx.now, head, reply, &mut tag);
    match outcome {
        Outcome::Sent(status, _) => send_inline(cx, conn, stream, status),
        Outcome::Dispatch(place) => {
            let request = Box::new(Request::of(head, place, tag));
            match is_end {
                true => dispatch(cx, conn, stream, request, None, false),
                false => receive_body(cx, conn, stream, request, None),
            }
        }
    }
}

/// Sends the response with which the service has answered inline.
fn send_inline<S: Service>(cx: &Context<S>, conn: &mut H2Conn, stream: u32, status: Status) {
    send_rendered(conn, stream, status, &cx.scratch, cx.now);
    let secure = conn.secure.as_ref();
    if secure.is_some_and(|session| session.has_lapsed()) {
        // The client must connect again.
        conn.leave(cx.now);
    }
}

/// Decides again about a request that a handler has sent back.
pub(super) fn on_sent_back<S: Service>(
    cx: &mut Context<S>,
    conn: &mut H2Conn,
    stream: u32,
    mut request: Box<Request>,
) {
    let Some(entry) = conn.session.data(stream) else {
        return;
    };
    entry.state = StreamState::Receiving;
    entry.started = None;
    entry.inflow = None;
    conn.session.read(stream, false);
    let inflow = request.link.take().and_then(StreamLink::take_inflow);
    let head = request.head();
    let is_head = head.method() == Method::Head;
    let reply = reply_into(&mut cx.scratch, is_head, &cx.date);
    let service = &cx.shared.service;
    let (local, turn) = (&mut cx.local, Turn(cx.turn));
    let mut tag = Tag::default();
    let outcome = answer_inline(service, local, turn, cx.now, head, reply, &mut tag);
    match outcome {
        Outcome::Sent(status, _) => send_inline(cx, conn, stream, status),
        Outcome::Dispatch(place) => {
            request.place(place, tag);
            match inflow {
                // The request has no body, or was received completely before.
                None => dispatch(cx, conn, stream, request, None, false),
                inflow => receive_body(cx, conn, stream, request, inflow),
            }
        }
    }
}

/// Receives the body of a request that the service has declined inline. `inflow`: the part of the
/// body that was received for a handler that has sent the request back.
fn receive_body<S: Service>(
    cx: &mut Context<S>,
    conn: &mut H2Conn,
    stream: u32,
    request: Box<Request>,
    inflow: Option<Arc<Inflow>>,
) {
    let head = request.head();
    let intake = cx.shared.service.intake(head);
    let (framing, expects_continue) = (head.index.framing, head.index.expect_continue);
    if matches!(framing, Framing::Length(len) if len > intake.len_max()) {
        return answers::refuse(cx, conn, stream, Refusal::BodyTooLarge, Some(request));
    }
    let now = cx.now;
    if let Some(entry) = conn.session.data(stream) {
        entry.body_len = 0;
        entry.body_len_max = intake.len_max();
        entry.restart_clock(now, 0);
    }
    let (pieces, end) = inflow.map_or_else(Default::default, |inflow| {
        let mut state = inflow.lock();
        (state.take(), state.end)
    });
    let expects_continue = expects_continue && pieces.is_empty() && end.is_none();
    match intake {
        Intake::Buffered(_) | Intake::Inline(_) => {
            if let Some(entry) = conn.session.data(stream) {
                entry.request = Some(request);
            }
            if expects_continue {
                conn.session.inform(stream, Status::CONTINUE, b"");
            }
        }
        Intake::Streamed(_) => {
            let inflow = Arc::<Inflow>::default();
            dispatch(cx, conn, stream, request, Some(inflow), expects_continue);
        }
    }
    for bytes in pieces {
        on_data(cx, conn, stream, bytes);
    }
    match end {
        Some(_) => on_end(cx, conn, stream),
        None => conn.session.read(stream, true),
    }
}

pub(super) fn on_data<S: Service>(
    cx: &mut Context<S>,
    conn: &mut H2Conn,
    stream: u32,
    bytes: Bytes,
) {
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
            let has_room = request.add_body(&bytes, &cx.shared.request_memory);
            (!has_room).then_some(Refusal::BodyMemory)
        };
        match refusal {
            None => conn.session.release(stream, bytes.len()),
            Some(refusal) => {
                let request = entry.request.take();
                answers::refuse(cx, conn, stream, refusal, request);
            }
        }
    }
}

pub(super) fn on_end<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn, stream: u32) {
    let Some(entry) = conn.session.data(stream) else {
        return;
    };
    if let Some(inflow) = entry.inflow.take() {
        inflow.end(Ok(()));
    } else if let Some(request) = entry.request.take() {
        dispatch(cx, conn, stream, request, None, false);
    }
}

/// Queues a request for a worker.
fn dispatch<S: Service>(
    cx: &mut Context<S>,
    conn: &mut H2Conn,
    stream: u32,
    mut request: Box<Request>,
    inflow: Option<Arc<Inflow>>,
    expects_continue: bool,
) {
    // Handlers of ended streams count towards the limit: a client that resets its requests must
    // not get more running handlers than a client that waits.
    let handlers_max = cx.shared.limits.streams_max as usize;
    if conn.handler_count >= handlers_max {
        conn.session.reset(stream, ErrorCode::REFUSED_STREAM);
        return;
    }
    let lane = request.lane;
    let reference = conn.stream_ref(cx.home, stream, lane);
    let (now, cancel) = (cx.now, Cancel::default());
    let link = StreamLink::new(
        reference,
        &cx.shared.core,
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
    let job = StreamJob {
        stream: reference,
        cancel,
        work: StreamWork::Handle(request),
    };
    let Err(job) = cx.queue(Job::Stream(Box::new(job))) else {
        conn.handler_count += 1;
        return;
    };
    cx.incident(&Incident::WorkersFull);
    let mut request = job.into_request();
    let request = request.as_deref_mut();
    let is_head = request
        .as_ref()
        .is_some_and(|it| it.head().method() == Method::Head);
    let status = Status::SERVICE_UNAVAILABLE;
    answers::render_refusal(cx, request, is_head, status, OVERLOADED);
    send_rendered(conn, stream, status, &cx.scratch, cx.now);
}
