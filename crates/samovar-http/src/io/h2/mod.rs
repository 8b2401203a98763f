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

pub(super) mod answers;
pub(super) mod clock;
mod conn;
mod inflow;
mod reports;
mod requests;
mod upload;

use std::io;
use std::time::Instant;

pub(crate) use self::conn::H2Conn;
use self::conn::{Stream, StreamState};
use self::reports::{drop_stream, report_all, report_failure};
use super::context::{Context, LINGER_READ_COUNT, OUT_LEN_KEPT, ReadBuffer, Stay};
use crate::conn::Conn;
use crate::h2::{ErrorCode, Event, Session};
use crate::observer::{End, Incident};
use crate::service::Service;
use crate::sys::Edges;

/// Number of reads of one connection before other connections are served.
const READ_COUNT: usize = 4;
/// Number of bytes that one connection may send before other connections are served.
const TURN_LEN: u64 = 4 << 20;

/// Converts a connection that uses HTTP/2 to an [`H2Conn`], together with its input so far.
/// Never fails; without HTTP/2, this function returns the connection unchanged.
pub(super) fn start<S: Service>(
    cx: &mut Context<S>,
    mut conn: Box<Conn>,
) -> Result<(Box<H2Conn>, Stay), Box<Conn>> {
    let limits = &cx.shared.limits;
    let mut session = Session::new(limits.streams_max, &limits.head, cx.now);
    session.receive(&std::mem::take(&mut conn.input), cx.now);
    let mut conn = Box::new(H2Conn::new(*conn, session, cx.now));
    let next = step(cx, &mut conn, Edges::default());
    Ok((conn, next))
}

/// Aborts a connection and all its streams.
pub(super) fn cut_off<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn) {
    if conn.session.stream_count() > 0 || !conn.output.is_empty() {
        conn.transport.reset_on_close();
    }
    fail(cx, conn, End::Cut);
}

/// Aborts all responses in progress.
pub(super) fn fail<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn, end: End) {
    conn.session.abort(ErrorCode::CANCEL);
    while let Some(event) = conn.session.poll() {
        match event {
            Event::Sent(stream) => conn.gather_report(stream),
            Event::Reset(stream) => report_failure(cx, conn, stream, end),
            _ => {}
        }
    }
    report_all(cx.observer(), conn, end);
}

pub(super) fn step<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn, edges: Edges) -> Stay {
    conn.is_scheduled = false;
    if conn.is_lingering {
        return linger(conn, &mut cx.read_buffer);
    }
    if edges.hung_up {
        return Stay::Close;
    }
    cx.turn += 1;
    // An error means that the client has disconnected.
    go_on(cx, conn).unwrap_or(Stay::Close)
}

fn go_on<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn) -> io::Result<Stay> {
    let mut is_clear = conn.flush()?;
    conn.turn_len = 0;
    for _ in 0..READ_COUNT {
        is_clear = drive(cx, conn, is_clear)?;
        if conn.session.is_closed() {
            return Ok(if is_clear {
                finish(cx, conn)
            } else {
                Stay::Wait
            });
        }
        if !conn.readable || conn.has_ended || !is_clear || !conn.session.wants_input() {
            break;
        }
        read(cx, conn)?;
    }
    is_clear = drive(cx, conn, is_clear)?;
    let has_sent_all = is_clear && conn.turn_len < TURN_LEN;
    if conn.has_ended && has_sent_all && drop_blocked(cx, conn) {
        is_clear = drive(cx, conn, is_clear)?;
    }
    if conn.has_ended && conn.session.stream_count() == 0 && is_clear {
        conn.transport.say_goodbye();
        return Ok(Stay::Close);
    }
    if conn.session.is_closed() && is_clear {
        return Ok(finish(cx, conn));
    }
    let has_more = conn.readable && !conn.has_ended || conn.turn_len >= TURN_LEN;
    Ok(if is_clear && has_more {
        Stay::Again
    } else {
        Stay::Wait
    })
}

fn read<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn) -> io::Result<()> {
    let mut buffer = cx.read_buffer.take();
    let received = conn.read(&mut buffer);
    if let Ok(Some(len)) = received {
        conn.session.receive(&buffer[..len], cx.now);
    }
    cx.read_buffer.put(buffer);
    if received? == Some(0) {
        end_input(cx, conn);
    }
    Ok(())
}

/// Handles the end of the client's input. Responses in progress continue as far as the
/// flow-control windows allow, because the client may still read.
fn end_input<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn) {
    conn.has_ended = true;
    drop_streams(cx, conn, |stream| {
        stream.state == StreamState::Receiving || stream.inflow.is_some()
    });
}

/// Aborts blocked responses of a client that has shut down its sending side; returns `true` if
/// there are any. These are responses that wait for the application, unless `half_close` is set,
/// and responses blocked by flow-control windows, because the client can no longer open the
/// windows. Called after all bytes that the windows allow were sent.
fn drop_blocked<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn) -> bool {
    let may_wait = cx.shared.limits.half_close;
    drop_streams(cx, conn, |stream| match stream.state {
        StreamState::Sending => true,
        StreamState::Waiting => !may_wait,
        StreamState::Receiving | StreamState::Away => false,
    })
}

/// Aborts responses of a client that has shut down its sending side if the readers of their
/// bodies yield nothing for `linger_time`; returns `true` if there are any. See
/// `Overdue::Left` of HTTP/1.
fn drop_silent_readers<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn) -> bool {
    if !conn.has_ended || cx.shared.limits.half_close {
        return false;
    }
    let (now, time) = (cx.now, cx.shared.limits.linger_time);
    let is_silent = |since: Instant| now.saturating_duration_since(since) >= time;
    drop_streams(cx, conn, |stream| {
        stream.reading_since.is_some_and(is_silent)
    })
}

/// Aborts the matching streams of a client that has disconnected; returns `true` if there are
/// any.
fn drop_streams<S: Service>(
    cx: &mut Context<S>,
    conn: &mut H2Conn,
    which: impl Fn(&Stream) -> bool,
) -> bool {
    let streams = conn.session.streams().filter(|(_, stream)| which(stream));
    let ids: Vec<_> = streams.map(|(id, _)| id).collect();
    for id in &ids {
        drop_stream(cx, conn, *id, ErrorCode::CANCEL);
    }
    !ids.is_empty()
}

/// Handles all events and sends the output; returns `true` once the kernel has accepted it.
fn drive<S: Service>(
    cx: &mut Context<S>,
    conn: &mut H2Conn,
    mut is_clear: bool,
) -> io::Result<bool> {
    let mut out = std::mem::take(&mut cx.out);
    let outcome = loop {
        while let Some(event) = conn.session.poll() {
            on_stream_event(cx, conn, event);
        }
        conn.watch_block(cx.now);
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
            report_all(cx.observer(), conn, End::Complete);
        }
    };
    out.clear();
    out.shrink_to(OUT_LEN_KEPT);
    cx.out = out;
    if is_clear {
        report_all(cx.observer(), conn, End::Complete);
    }
    outcome
}

/// Finishes a connection after the session has ended and its output was sent.
fn finish<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn) -> Stay {
    if let Some(abuse) = conn.session.abused() {
        let peer = conn.peer;
        cx.incident(&Incident::Abused { peer, abuse });
    }
    if conn.has_ended || conn.transport.shutdown_write().is_err() {
        return Stay::Close;
    }
    conn.is_lingering = true;
    conn.since = cx.now;
    linger(conn, &mut cx.read_buffer)
}

/// Lingers as with HTTP/1: a client that is still sending must not lose the GOAWAY to a TCP
/// reset.
fn linger(conn: &mut H2Conn, buffer: &mut ReadBuffer) -> Stay {
    for _ in 0..LINGER_READ_COUNT {
        if !conn.readable {
            return Stay::Wait;
        }
        if matches!(conn.read(buffer.get()), Ok(Some(0)) | Err(_)) {
            return Stay::Close;
        }
    }
    Stay::Again
}

fn on_stream_event<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn, event: Event) {
    match event {
        Event::Request { stream, is_end } => requests::on_request(cx, conn, stream, is_end),
        Event::Refused {
            stream,
            is_head,
            refusal,
        } => {
            conn.count_stream(cx.now, cx.shared.limits.requests_per_connection_max);
            answers::refuse_head(cx, conn, stream, refusal, is_head);
        }
        Event::Data(stream, bytes) => requests::on_data(cx, conn, stream, bytes),
        Event::End(stream) => requests::on_end(cx, conn, stream),
        Event::Drained(stream) => answers::on_drained(cx, conn, stream),
        Event::Sent(stream) => {
            conn.gather_report(stream);
            conn.since = cx.now;
        }
        Event::Reset(stream) => {
            conn.since = cx.now;
            report_failure(cx, conn, stream, End::Left);
        }
    }
}
