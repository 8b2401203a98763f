//! Sends the responses of HTTP/2 streams.

use std::borrow::Cow;
use std::time::Instant;

use bytes::Bytes;
use memchr::memmem;

use super::conn::{H2Conn, StreamState};
use super::reports::drop_stream;
use super::requests;
use crate::answer::Date;
use crate::conn::{Rest, StreamAnswer, StreamJob, StreamNews, StreamWork};
use crate::h2::{ErrorCode, ResponseHead};
use crate::http::{Method, Status, Version};
use crate::io::context::Context;
use crate::jobs::Job;
use crate::lane::Lane;
use crate::proto::Refusal;
use crate::request::Request;
use crate::response::{Outcome, Reply};
use crate::service::Service;

/// Creates the reply that renders a response into the scratch memory.
pub(super) fn reply_into<'a>(scratch: &'a mut Vec<u8>, is_head: bool, date: &'a Date) -> Reply<'a> {
    scratch.clear();
    Reply {
        out: scratch,
        version: Version::Http2,
        is_head,
        keep: true,
        date: date.text(),
        lines: &[],
        tag: None,
    }
}

/// Sends the response that a reply has rendered.
pub(super) fn send_rendered(
    conn: &mut H2Conn,
    stream: u32,
    status: Status,
    rendered: &[u8],
    now: Instant,
) {
    let head_end = memmem::find(rendered, b"\r\n\r\n").map_or(0, |at| at + 4);
    let (text, body) = rendered.split_at(head_end);
    let head = ResponseHead::read(status, text);
    conn.session.respond(stream, head, body.is_empty());
    if !body.is_empty() {
        let bytes = Bytes::copy_from_slice(body);
        conn.session.send(stream, bytes, true);
    }
    if let Some(entry) = conn.session.data(stream) {
        entry.state = StreamState::Sending;
        entry.restart_clock(now, 0);
    }
}

/// Renders an error response of the engine into the scratch memory.
pub(super) fn render_refusal<S: Service>(
    cx: &mut Context<S>,
    request: Option<&mut Request>,
    is_head: bool,
    status: Status,
    message: impl Into<Cow<'static, str>>,
) -> Outcome {
    let reply = reply_into(&mut cx.scratch, is_head, &cx.date);
    reply.refuse(&cx.shared.service, request, status, message)
}

/// Refuses a request while its body is received.
pub(super) fn refuse<S: Service>(
    cx: &mut Context<S>,
    conn: &mut H2Conn,
    stream: u32,
    refusal: Refusal,
    mut request: Option<Box<Request>>,
) {
    let head = request.as_ref().map(|request| request.head());
    let is_head = head.is_some_and(|head| head.method() == Method::Head);
    cx.refused(conn.peer, head, refusal);
    send_refusal(cx, conn, stream, refusal, request.as_deref_mut(), is_head);
}

/// Refuses a request because of its head.
pub(super) fn refuse_head<S: Service>(
    cx: &mut Context<S>,
    conn: &mut H2Conn,
    stream: u32,
    refusal: Refusal,
    is_head: bool,
) {
    cx.refused(conn.peer, None, refusal);
    send_refusal(cx, conn, stream, refusal, None, is_head);
}

fn send_refusal<S: Service>(
    cx: &mut Context<S>,
    conn: &mut H2Conn,
    stream: u32,
    refusal: Refusal,
    request: Option<&mut Request>,
    is_head: bool,
) {
    let status = refusal.status();
    render_refusal(cx, request, is_head, status, refusal.to_string());
    // Stop receiving the request body.
    conn.session.read(stream, false);
    send_rendered(conn, stream, status, &cx.scratch, cx.now);
}

pub(in crate::io) fn on_news<S: Service>(
    cx: &mut Context<S>,
    conn: &mut H2Conn,
    stream: u32,
    news: StreamNews,
) {
    match news {
        StreamNews::Inform(status, fields) => conn.session.inform(stream, status, &fields),
        StreamNews::Release(len) => conn.session.release(stream, len),
        StreamNews::SentBack(request) => {
            conn.handler_count = conn.handler_count.saturating_sub(1);
            requests::on_sent_back(cx, conn, stream, request);
        }
        StreamNews::Deferred(later, preferences, request) => {
            conn.handler_count = conn.handler_count.saturating_sub(1);
            match conn.session.data(stream) {
                Some(entry) => {
                    entry.request = request;
                    entry.later = Some((later, preferences));
                    wait_for_wake(cx, conn, stream);
                }
                None => later.abandon(),
            }
        }
        StreamNews::Answer(answer, request) => {
            if !answer.was_deferred {
                conn.handler_count = conn.handler_count.saturating_sub(1);
            }
            on_answer(cx, conn, stream, *answer, request);
        }
        StreamNews::Reads => {
            if let Some(entry) = conn.session.data(stream) {
                entry.reading_since = Some(cx.now);
            }
        }
        StreamNews::Piece(bytes, rest) => send_piece(cx, conn, stream, bytes, rest),
        StreamNews::HandlerLost => {
            conn.handler_count = conn.handler_count.saturating_sub(1);
            drop_stream(cx, conn, stream, ErrorCode::INTERNAL_ERROR);
        }
        StreamNews::BodyFailed => drop_stream(cx, conn, stream, ErrorCode::INTERNAL_ERROR),
    }
}

fn on_answer<S: Service>(
    cx: &mut Context<S>,
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
        return cx.discard(rest.into_outflow());
    };
    entry.status = Some(status);
    entry.request = request.or_else(|| entry.request.take());
    entry.inflow = None;
    let is_end = bytes.is_empty() && matches!(rest, Rest::End);
    // Stop receiving the request body, of which the handler may not have read everything.
    conn.session.read(stream, false);
    conn.session.respond(stream, head, is_end);
    if is_end {
        start_sending(conn, stream, cx.now);
    } else {
        send_piece(cx, conn, stream, bytes, rest);
    }
}

fn start_sending(conn: &mut H2Conn, stream: u32, now: Instant) {
    let sent_len = conn.session.sent_len(stream);
    if let Some(entry) = conn.session.data(stream) {
        entry.state = StreamState::Sending;
        entry.reading_since = None;
        entry.restart_clock(now, sent_len);
    }
}

fn send_piece<S: Service>(
    cx: &mut Context<S>,
    conn: &mut H2Conn,
    stream: u32,
    bytes: Bytes,
    rest: Rest,
) {
    start_sending(conn, stream, cx.now);
    let Some(entry) = conn.session.data(stream) else {
        return cx.discard(rest.into_outflow());
    };
    match rest {
        Rest::End => conn.session.send(stream, bytes, true),
        Rest::More { outflow, is_dry } => {
            entry.outflow = Some(outflow);
            entry.is_dry = is_dry;
            if is_dry && bytes.is_empty() {
                wait_for_wake(cx, conn, stream);
            } else {
                conn.session.send(stream, bytes, false);
            }
        }
    }
}

/// Continues a response after the session has taken the previous piece of its body completely.
pub(super) fn on_drained<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn, stream: u32) {
    match conn.session.data(stream) {
        Some(entry) if entry.outflow.is_none() => {}
        Some(entry) if entry.is_dry => wait_for_wake(cx, conn, stream),
        Some(_) => resume(cx, conn, stream),
        None => {}
    }
}

fn wait_for_wake<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn, stream: u32) {
    let Some(entry) = conn.session.data(stream) else {
        return;
    };
    if std::mem::take(&mut entry.is_woken) {
        resume(cx, conn, stream);
    } else {
        entry.state = StreamState::Waiting;
    }
}

pub(in crate::io) fn wake_stream<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn, stream: u32) {
    match conn.session.data(stream) {
        Some(entry) if entry.state == StreamState::Waiting => resume(cx, conn, stream),
        // Remember the wake-up: the stream checks this before it waits.
        Some(entry) => entry.is_woken = true,
        None => {}
    }
}

/// Queues a job for a worker to continue a response.
fn resume<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn, stream: u32) {
    let mut reference = conn.stream_ref(cx.home, stream, Lane::Prompt);
    let Some(entry) = conn.session.data(stream) else {
        return;
    };
    reference.lane = entry.lane.of_body();
    let work = if let Some((later, preferences)) = entry.later.take() {
        StreamWork::Fulfil(later, preferences)
    } else if let Some(outflow) = entry.outflow.take() {
        entry.reading_since = outflow.may_wait().then_some(cx.now);
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
    drop(cx.queue(Job::Stream(Box::new(job))));
}
