//! Time limits of HTTP/1 connections.

use std::time::{Duration, Instant};

use super::context::{Context, Drain, Next};
use super::http1;
use crate::conn::{Conn, Stage};
use crate::limits::Limits;
use crate::observer::{End, Incident};
use crate::proto::Refusal;
use crate::proto::conn::Phase;
use crate::service::Service;
use crate::sys::Edges;

/// Time limit for the rest of a request head once a server drains.
const DRAIN_HEAD_TIME: Duration = Duration::from_secs(1);

/// A time limit that has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overdue {
    /// `handshake_time` during the TLS handshake, or `linger_time` while the connection lingers.
    Closing,
    /// `idle_time`, or the server drains: the client has not started a request.
    Idle,
    /// `head_time`: a request head is still incomplete.
    Head,
    /// `stall_time`: a throughput window has ended, in which too few bytes may have moved.
    Window,
    /// `stall_time`, or `linger_time` if a reader is read: the client has shut down its sending
    /// side, and the response still waits for the application.
    Left,
}

/// Checks the time limits of a connection.
pub(super) fn check<S: Service>(cx: &mut Context<S>, conn: &mut Conn) -> Next {
    if conn.stage() == Stage::Waiting && conn.transfer.as_ref().is_some_and(|it| it.is_due(cx.now))
    {
        let edges = Edges {
            woken: true,
            ..Edges::default()
        };
        return http1::step(cx, conn, edges);
    }
    let Some(overdue) = expired(conn, &cx.shared.limits, cx.drain, cx.now) else {
        return Next::Wait;
    };
    match overdue {
        Overdue::Closing => Next::Close,
        Overdue::Left => http1::fail(cx, conn, End::Left),
        Overdue::Idle => {
            // Read before closing: the next request may have arrived, although its event has
            // not been handled yet.
            conn.readable = true;
            match http1::go_on(cx, conn) {
                Next::Wait if is_idle(conn) => {
                    conn.transport.say_goodbye();
                    Next::Close
                }
                next => next,
            }
        }
        Overdue::Window if conn.moved_len >= cx.shared.limits.stall_len_min => {
            conn.restart_clock(cx.now);
            Next::Wait
        }
        Overdue::Window if conn.is_sending() => {
            cx.incident(&Incident::TooSlow { peer: conn.peer });
            conn.transport.reset_on_close();
            http1::fail(cx, conn, End::Cut)
        }
        // The response was already sent, so no 408 can follow: the client would mistake a 408 for
        // the response to its next request.
        Overdue::Window if conn.proto.is_discarding() => Next::Close,
        Overdue::Window | Overdue::Head => {
            conn.proto.close_after();
            conn.proto.answered(false);
            http1::refuse(cx, conn, Refusal::Timeout);
            match http1::flush_out(conn, &mut cx.out) {
                Ok(true) => http1::finish(conn, cx.now, &mut cx.read_buffer),
                Ok(false) => Next::Wait,
                Err(_) => Next::Close,
            }
        }
    }
}

/// Returns the time limit of a connection that has expired, if any.
fn expired(conn: &Conn, limits: &Limits, drain: Option<Drain>, now: Instant) -> Option<Overdue> {
    let waited = now.saturating_duration_since(conn.since);
    match conn.stage() {
        Stage::Handshake => {
            let time = match drain {
                Some(_) => limits.linger_time.min(limits.handshake_time),
                None => limits.handshake_time,
            };
            return (waited >= time).then_some(Overdue::Closing);
        }
        Stage::Lingering => {
            return (waited >= limits.linger_time).then_some(Overdue::Closing);
        }
        Stage::Waiting => {
            // The application may take any time, as long as the client is connected. A client that
            // has shut down its sending side counts as disconnected, unless `half_close` is set: at
            // once if the server has read all its bytes, otherwise after one `stall_time`. Without
            // this limit, connections without clients could accumulate.
            let time = match conn.is_filling {
                true => limits.linger_time.min(limits.stall_time),
                false => limits.stall_time,
            };
            let has_left = conn.peer_ended && !limits.half_close;
            return (has_left && waited >= time).then_some(Overdue::Left);
        }
        Stage::Receiving | Stage::Answering => {}
    }
    let phase = conn.proto.phase();
    if conn.is_sending() || phase == Phase::Body {
        return (waited >= limits.stall_time).then_some(Overdue::Window);
    }
    if conn.has_partial_head && (drain.is_none() || !conn.has_blank_input()) {
        let is_drained = drain.is_some_and(|drain| {
            now.saturating_duration_since(drain.since.max(conn.since)) >= DRAIN_HEAD_TIME
        });
        return (is_drained || waited >= limits.head_time).then_some(Overdue::Head);
    }
    if conn.answered_count == 0 {
        // A new client is about to send its request, and gets the time to do so even if the server
        // drains.
        let time = match drain {
            Some(_) => limits.linger_time.min(limits.head_time),
            None => limits.idle_time.max(limits.head_time),
        };
        return (waited >= time).then_some(Overdue::Idle);
    }
    (drain.is_some() || waited >= limits.idle_time).then_some(Overdue::Idle)
}

/// Returns whether a connection is between requests and has received nothing but empty lines.
fn is_idle(conn: &Conn) -> bool {
    conn.proto.phase() == Phase::Head && conn.has_blank_input() && !conn.is_sending()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::client::Peer;
    use crate::lane::Lane;
    use crate::net::key::Key;
    use crate::net::transport::Transport;

    const NANOSECOND: Duration = Duration::from_nanos(1);

    fn conn(start: Instant, prepare: impl FnOnce(&mut Conn)) -> Conn {
        let (socket, _) = UnixStream::pair().unwrap();
        let transport = Transport::Plain(socket.into());
        let key = Key::from_bits(0);
        let mut conn = Conn::new(transport, Peer::Unix(None), 0, key, start);
        prepare(&mut conn);
        conn
    }

    fn wait(conn: &mut Conn) {
        conn.start_answer(Lane::Prompt, true, conn.since);
        conn.enter(Stage::Waiting);
    }

    /// Checks that `expected` expires exactly after `time` and not before.
    #[track_caller]
    fn check(limits: &Limits, time: Duration, expected: Overdue, prepare: impl FnOnce(&mut Conn)) {
        let start = Instant::now();
        let conn = conn(start, prepare);
        let at = |time| expired(&conn, limits, None, start + time);
        assert_eq!(at(time - NANOSECOND), None);
        assert_eq!(at(time), Some(expected));
    }

    #[test]
    fn each_limit_expires_after_its_time_and_not_before() {
        let limits = Limits::default();
        check(&limits, limits.idle_time, Overdue::Idle, |_| {});
        check(&limits, limits.idle_time, Overdue::Idle, |conn| {
            conn.answered_count = 1;
        });
        check(&limits, limits.head_time, Overdue::Head, |conn| {
            conn.has_partial_head = true;
            conn.input = b"GET".to_vec();
        });
        check(&limits, limits.stall_time, Overdue::Window, |conn| {
            conn.output = b"unsent".to_vec();
        });
        check(&limits, limits.linger_time, Overdue::Closing, |conn| {
            conn.enter(Stage::Lingering);
        });
        check(&limits, limits.stall_time, Overdue::Left, |conn| {
            wait(conn);
            conn.peer_ended = true;
        });
    }

    #[test]
    fn a_response_that_waits_has_no_limit_while_its_client_is_connected() {
        let start = Instant::now();
        let later = start + Duration::from_secs(1_000_000);
        let mut limits = Limits::default();
        let present = conn(start, wait);
        assert_eq!(expired(&present, &limits, None, later), None);
        let reading = conn(start, |conn| {
            wait(conn);
            conn.peer_ended = true;
        });
        let filling = conn(start, |conn| {
            wait(conn);
            (conn.peer_ended, conn.is_filling) = (true, true);
        });
        limits.half_close = true;
        for conn in [reading, filling] {
            assert_eq!(expired(&conn, &limits, None, later), None);
        }
    }

    #[test]
    fn a_drain_closes_idle_connections_at_once_and_new_ones_after_linger_time() {
        let (start, limits) = (Instant::now(), Limits::default());
        let drain = Some(Drain {
            since: start,
            deadline: start + Duration::from_secs(60),
        });
        let idle = conn(start, |conn| conn.answered_count = 1);
        assert_eq!(expired(&idle, &limits, drain, start), Some(Overdue::Idle));
        let new = conn(start, |_| {});
        let at = |time| expired(&new, &limits, drain, start + time);
        assert_eq!(at(limits.linger_time - NANOSECOND), None);
        assert_eq!(at(limits.linger_time), Some(Overdue::Idle));
        let partial = conn(start, |conn| {
            conn.has_partial_head = true;
            conn.input = b"GET".to_vec();
        });
        let at = |time| expired(&partial, &limits, drain, start + time);
        assert_eq!(at(DRAIN_HEAD_TIME - NANOSECOND), None);
        assert_eq!(at(DRAIN_HEAD_TIME), Some(Overdue::Head));
    }
}
