//! WebSockets on an I/O thread.
//!
//! Only the I/O thread reads from the socket; every thread with a handle may write to it
//! (`ws/outbound.rs`). The connection stays with the I/O thread, and its events move to workers.
//!
//! | stage | until | then |
//! |---|---|---|
//! | open | the client closes, violates the protocol, or disconnects | ending, or closed |
//! | ending | the kernel has the server's close frame | lingering |
//! | lingering | the client closes, or the time is up | closed |

use std::time::Instant;

use super::context::{Context, LINGER_READ_COUNT, ReadBuffer, Stay};
use super::ws_clock::{Clock, PING};
use super::ws_conn::{SocketConn, Stage};
use crate::conn::Conn;
use crate::jobs::Job;
use crate::net::transport::Transport;
use crate::observer::Incident;
use crate::proto::ws::message::{Assembler, Event as Received};
use crate::proto::ws::{CloseCode, Failure};
use crate::service::Service;
use crate::sys::Edges;
use crate::ws::{CloseReply, Closed, End, Event, Flushed};

/// Converts a connection to a WebSocket once the kernel has accepted the 101 response. Returns
/// `None` if there is no handler; the connection is then closed.
pub(super) fn open<S: Service>(
    cx: &mut Context<S>,
    mut conn: Box<Conn>,
) -> Option<(Box<SocketConn>, Stay)> {
    let mut accepted = conn.upgrade.take()?;
    let Conn {
        transport,
        input,
        key,
        readable,
        peer_ended,
        session,
        ..
    } = *conn;
    let socket = accepted.socket.clone();
    let mut socket_conn = Box::new(SocketConn {
        socket,
        key,
        assembler: Assembler::default(),
        inline: accepted.inline.take(),
        observes_pings: accepted.observes_pings,
        input,
        stage: Stage::Open,
        readable,
        peer_ended,
        is_end_delivered: false,
        clock: Clock::new(cx.now),
        session: session.filter(|session| !session.certificates.is_empty()),
    });
    let waker = cx.shared.core.waker(cx.home, key);
    accepted.socket.start(transport, waker);
    accepted.is_started = true;
    deliver(cx, &mut socket_conn, Event::Open);
    // Messages that the application sent before this point are still in the queue, so write it
    // now.
    let edges = Edges {
        writable: true,
        ..Edges::default()
    };
    let next = step(cx, &mut socket_conn, edges);
    Some((socket_conn, next))
}

pub(super) fn step<S: Service>(cx: &mut Context<S>, conn: &mut SocketConn, edges: Edges) -> Stay {
    if conn.stage == Stage::Lingering {
        return linger(conn, &mut cx.read_buffer);
    }
    if edges.writable || edges.woken {
        let flushed = conn.socket.outbound().flush(&mut cx.out);
        match flushed {
            Err(error) => return lose(cx, conn, &error.to_string()),
            Ok(Flushed::Close) if conn.stage == Stage::Ending => {
                return finish(conn, cx.now, &mut cx.read_buffer);
            }
            Ok(_) => {}
        }
    }
    if conn.stage == Stage::Ending || conn.socket.is_paused() {
        return Stay::Wait;
    }
    if !conn.input.is_empty() {
        let mut input = std::mem::take(&mut conn.input);
        if let Some(next) = receive(cx, conn, &mut input) {
            return next;
        }
    }
    if !conn.readable {
        return Stay::Wait;
    }
    let mut buffer = cx.read_buffer.take();
    let next = match conn.read(&mut buffer) {
        Ok(None) => Stay::Wait,
        Ok(Some(0)) => lose(cx, conn, "the peer left without a close frame"),
        Err(error) => lose(cx, conn, &error.to_string()),
        Ok(Some(len)) => {
            conn.clock.heard = cx.now;
            let bytes = &mut buffer[..len];
            let again = if conn.readable {
                Stay::Again
            } else {
                Stay::Wait
            };
            receive(cx, conn, bytes).unwrap_or(again)
        }
    };
    cx.read_buffer.put(buffer);
    next
}

/// Handles bytes that were read; `conn.input` keeps those that must wait. Returns `None` if
/// more may be read.
fn receive<S: Service>(
    cx: &mut Context<S>,
    conn: &mut SocketConn,
    bytes: &mut [u8],
) -> Option<Stay> {
    let len_max = conn.socket.limits().message_len_max;
    if conn.inline.is_some() {
        conn.socket.outbound().is_corked = true;
    }
    let mut at = 0;
    let mut is_paused = false;
    while conn.stage == Stage::Open && !is_paused && at < bytes.len() {
        let rest = &mut bytes[at..];
        match conn.assembler.step(rest, len_max) {
            Ok((taken, None)) => at += taken,
            Ok((taken, Some(event))) => {
                at += taken;
                on_received(cx, conn, event);
                is_paused = conn.inline.is_none() && conn.socket.is_paused();
            }
            Err(failure) => fail(cx, conn, failure),
        }
    }
    if is_paused {
        conn.input = bytes[at..].to_vec();
    }
    if !conn.assembler.is_partial() {
        conn.clock.restart(cx.now);
    }
    if conn.inline.is_some() || conn.stage == Stage::Ending {
        let flushed = conn.socket.outbound().flush(&mut cx.out);
        return match flushed {
            Err(error) => Some(lose(cx, conn, &error.to_string())),
            Ok(Flushed::Close) if conn.stage == Stage::Ending => {
                Some(finish(conn, cx.now, &mut cx.read_buffer))
            }
            Ok(_) if conn.stage == Stage::Ending => Some(Stay::Wait),
            Ok(_) => None,
        };
    }
    is_paused.then_some(Stay::Wait)
}

fn on_received<S: Service>(cx: &mut Context<S>, conn: &mut SocketConn, event: Received<'_>) {
    match event {
        Received::Ping(payload) => {
            conn.socket.outbound().pong(&payload);
            if conn.observes_pings {
                deliver(cx, conn, Event::Ping(payload));
            }
        }
        Received::Pong(payload) => {
            if conn.observes_pings && *payload != *PING {
                deliver(cx, conn, Event::Pong(payload));
            }
        }
        Received::Text(text) => deliver(cx, conn, Event::Text(text)),
        Received::Binary(data) => deliver(cx, conn, Event::Binary(data)),
        Received::Close(frame) => {
            let code = frame.as_ref().map(|(code, _)| *code);
            conn.stage = Stage::Ending;
            let closed = Closed {
                // RFC 6455, 7.1.5: a close without a code is reported as 1005.
                code: code.map_or(1005, CloseCode::number),
                reason: frame.map_or(String::new(), |(_, reason)| reason.into_owned()),
                is_clean: true,
            };
            deliver_end(cx, conn, closed, Some(CloseReply::Echo(code)));
        }
    }
}

/// Passes an event to the handler, on this thread or on a worker.
fn deliver<S: Service>(cx: &mut Context<S>, conn: &mut SocketConn, event: Event<'_>) {
    if let Some(handler) = &mut conn.inline {
        if !conn.socket.handle(handler.as_mut(), event) {
            let peer = conn.socket.peer();
            cx.incident(&Incident::SocketHandlerPanicked { peer });
        }
    } else if conn.socket.push(event.into_owned()) {
        // Cannot fail: the queue accepts every `Job::Events`, of which each socket has at most
        // one.
        drop(cx.queue(Job::Events(conn.socket.clone())));
    }
}

fn deliver_end<S: Service>(
    cx: &mut Context<S>,
    conn: &mut SocketConn,
    closed: Closed,
    reply: Option<CloseReply>,
) {
    if !std::mem::replace(&mut conn.is_end_delivered, true) {
        deliver(cx, conn, Event::Close(Box::new(End { closed, reply })));
    }
}

/// Handles a protocol violation of the client: sends a close frame and ignores further input.
fn fail<S: Service>(cx: &mut Context<S>, conn: &mut SocketConn, failure: Failure) {
    let peer = conn.socket.peer();
    cx.incident(&Incident::SocketFailed { peer, failure });
    conn.stage = Stage::Ending;
    let code = failure.close_code();
    let closed = Closed {
        code: code.number(),
        reason: failure.to_string(),
        is_clean: false,
    };
    deliver_end(cx, conn, closed, Some(CloseReply::Failure(code)));
}

/// Ends a WebSocket whose connection was lost or has failed, without the closing handshake.
pub(super) fn lose<S: Service>(cx: &mut Context<S>, conn: &mut SocketConn, reason: &str) -> Stay {
    // End the sending side first, so that the handler cannot send when it is notified.
    let transport = conn.socket.outbound().end();
    deliver_end(cx, conn, Closed::lost(reason), None);
    if let Some(transport) = transport {
        // Reset the connection, so that a client that is still connected does not take this for
        // a regular close.
        transport.reset_on_close();
    }
    Stay::Close
}

/// Closes the connection after both close frames (RFC 6455, 7.1.1). Lingers as in RFC 9112,
/// 9.6, so that the client can read the last frame.
fn finish(conn: &mut SocketConn, now: Instant, buffer: &mut ReadBuffer) -> Stay {
    let mut outbound = conn.socket.outbound();
    let shut = outbound.transport.as_mut().map(Transport::shutdown_write);
    drop(outbound);
    if matches!(shut, Some(Err(_))) {
        return Stay::Close;
    }
    conn.stage = Stage::Lingering;
    conn.input = Vec::new();
    conn.clock.restart(now);
    linger(conn, buffer)
}

fn linger(conn: &mut SocketConn, buffer: &mut ReadBuffer) -> Stay {
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
