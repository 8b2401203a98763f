//! Time limits of HTTP/2 connections and streams.

use std::time::Instant;

use super::conn::{H2Conn, Stream, StreamState};
use super::reports::drop_stream;
use super::{answers, drop_silent_readers, step};
use crate::h2::ErrorCode;
use crate::io::context::{Context, Stay};
use crate::limits::Limits;
use crate::observer::Incident;
use crate::proto::Refusal;
use crate::service::Service;
use crate::sys::Edges;

/// An expired time limit of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overdue {
    /// `linger_time`: the session has ended, but the client has not closed the connection.
    Lingering,
    /// `stall_time`: the client has read too few bytes from the socket.
    Stuck,
    /// `head_time`: a header block is still incomplete.
    Block,
    /// `idle_time`, or the server drains: send GOAWAY to the client.
    Leave,
    /// `linger_time`: the client has not acknowledged the GOAWAY.
    GoAway,
}

/// Checks all time limits of a connection and its streams.
pub(in crate::io) fn check<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn) -> Stay {
    let is_draining = cx.drain.is_some();
    match expired(conn, &cx.shared.limits, is_draining, cx.now) {
        Some(Overdue::Lingering) => return Stay::Close,
        Some(Overdue::Stuck) => {
            cx.incident(&Incident::TooSlow { peer: conn.peer });
            conn.transport.reset_on_close();
            return Stay::Close;
        }
        Some(Overdue::Block) => {
            cx.refused(conn.peer, None, Refusal::Timeout);
            conn.session.abort(ErrorCode::ENHANCE_YOUR_CALM);
        }
        Some(Overdue::Leave) => conn.leave(cx.now),
        Some(Overdue::GoAway) => conn.session.abort(ErrorCode::NO_ERROR),
        None => {
            let has_streams = !conn.is_lingering && conn.session.stream_count() > 0;
            if has_streams {
                wake_due(cx, conn);
            }
            let has_dropped =
                has_streams && (drop_stalled(cx, conn) | drop_silent_readers(cx, conn));
            if !has_dropped {
                return Stay::Wait;
            }
        }
    }
    step(cx, conn, Edges::default())
}

/// Continues the responses whose source waits but must be pulled again.
fn wake_due<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn) {
    let now = cx.now;
    let due = conn.session.streams().filter_map(|(id, entry)| {
        let outflow = entry.outflow.as_ref()?;
        (entry.state == StreamState::Waiting && outflow.is_due(now)).then_some(id)
    });
    let due: Vec<u32> = due.collect();
    for id in due {
        answers::wake_stream(cx, conn, id);
    }
}

/// Ends the streams that the client sends or reads too slowly; returns `true` if there were
/// any.
fn drop_stalled<S: Service>(cx: &mut Context<S>, conn: &mut H2Conn) -> bool {
    let ids: Vec<u32> = conn.session.streams().map(|(id, _)| id).collect();
    let mut has_dropped = false;
    for id in ids {
        let sent_len = conn.session.sent_len(id);
        let Some(entry) = conn.session.data(id) else {
            continue;
        };
        if !is_stalled(entry, sent_len, &cx.shared.limits, cx.now) {
            continue;
        }
        has_dropped = true;
        if entry.state == StreamState::Receiving {
            let request = entry.request.take();
            answers::refuse(cx, conn, id, Refusal::Timeout, request);
        } else {
            cx.incident(&Incident::TooSlow { peer: conn.peer });
            drop_stream(cx, conn, id, ErrorCode::ENHANCE_YOUR_CALM);
        }
    }
    has_dropped
}

/// Returns the time limit of a connection that has expired, if any.
fn expired(conn: &mut H2Conn, limits: &Limits, is_draining: bool, now: Instant) -> Option<Overdue> {
    let waited = |since: Instant| now.saturating_duration_since(since);
    if conn.is_lingering {
        return (waited(conn.since) >= limits.linger_time).then_some(Overdue::Lingering);
    }
    if is_stuck(conn, limits, now) {
        return Some(Overdue::Stuck);
    }
    let block_since = conn.block_since;
    if block_since.is_some_and(|since| waited(since) >= limits.head_time) {
        return Some(Overdue::Block);
    }
    let is_idle = conn.session.stream_count() == 0;
    let Some(leaving_since) = conn.leaving_since else {
        let is_stale = is_idle && waited(conn.since) >= limits.idle_time;
        // A new client is about to send its first request, even if the server drains. If that
        // stream were refused, the client might not retry on another connection.
        let is_fresh = conn.opened_count == 0 && waited(conn.since) < limits.linger_time;
        return (is_stale || is_draining && !is_fresh).then_some(Overdue::Leave);
    };
    (is_idle && waited(leaving_since) >= limits.linger_time).then_some(Overdue::GoAway)
}

/// Returns whether the client has read too few bytes from the socket within a throughput window.
fn is_stuck(conn: &mut H2Conn, limits: &Limits, now: Instant) -> bool {
    if conn.output.is_empty() {
        conn.stuck_since = None;
        return false;
    }
    let since = *conn.stuck_since.get_or_insert_with(|| {
        conn.moved_len = 0;
        now
    });
    if now.saturating_duration_since(since) < limits.stall_time {
        return false;
    }
    conn.stuck_since = None;
    conn.moved_len < limits.stall_len_min
}

/// Returns whether the client has sent or read too few bytes of a stream within a throughput
/// window. Starts the first window, and a new one after each that the client has passed. `sent_len`
/// is the number of response bytes sent so far.
fn is_stalled(stream: &mut Stream, sent_len: u64, limits: &Limits, now: Instant) -> bool {
    let moved_len = match stream.state {
        StreamState::Receiving => stream.body_len,
        StreamState::Sending => sent_len,
        // These streams wait for a worker or the application, not for the client.
        StreamState::Away | StreamState::Waiting => return false,
    };
    let since = *stream.since.get_or_insert(now);
    if now.saturating_duration_since(since) < limits.stall_time {
        return false;
    }
    if moved_len.saturating_sub(stream.moved_len) < limits.stall_len_min {
        return true;
    }
    stream.restart_clock(now, moved_len);
    false
}

#[cfg(test)]
mod tests;
