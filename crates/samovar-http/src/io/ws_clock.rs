//! Time limits of WebSockets.

use std::time::Instant;

use super::context::{Context, Stay};
use super::ws::lose;
use super::ws_conn::{SocketConn, Stage};
use crate::limits::Limits;
use crate::observer::Incident;
use crate::proto::ws::CloseCode;
use crate::service::Service;
use crate::ws;

/// Payload of the engine's own pings.
pub(super) const PING: &[u8] = b"there?";

/// An expired time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overdue {
    /// `linger_time`: the client has not closed the connection after the close frames.
    Lingering,
    /// `close_time`: the client has not replied to the close frame.
    Close,
    /// `stall_time`: a throughput window has ended with too few bytes, in either direction.
    Window,
    /// `ping_time`: a ping must be sent.
    Ping,
    /// `pong_time`: the client has not replied to the ping.
    Pong,
}

/// The start times of a WebSocket's time limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    /// Time at which bytes were last received.
    pub(super) heard: Instant,
    /// Time at which a ping without a reply was sent; `None` if there is none.
    pinged: Option<Instant>,
    /// Start of the current throughput window for an incomplete message; while the connection
    /// lingers, the time at which lingering started.
    since: Instant,
    /// Number of bytes read since `since`.
    pub(super) moved_len: u64,
    /// Start of the current throughput window for sending.
    sending_since: Instant,
    /// Number of bytes sent up to the end of the last complete window for sending.
    counted_len: u64,
}

/// The part of a WebSocket's state on which its time limits depend.
#[derive(Debug, Clone, Copy)]
struct Activity {
    stage: Stage,
    /// Time at which the server's close frame was queued; `None` before that.
    closing_since: Option<Instant>,
    /// Whether the kernel accepts no more bytes.
    is_blocked: bool,
    /// Number of bytes sent on the socket so far.
    sent_len: u64,
    /// Whether reading is paused because the handler's queue is full.
    is_paused: bool,
    /// Whether a message was received only in part.
    is_partial: bool,
}

impl Clock {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            heard: now,
            pinged: None,
            since: now,
            moved_len: 0,
            sending_since: now,
            counted_len: 0,
        }
    }

    /// Starts a throughput window for receiving, or the time limit for lingering.
    pub(super) fn restart(&mut self, now: Instant) {
        self.since = now;
        self.moved_len = 0;
    }

    /// Returns the time limit that has expired, if any. After each window with enough bytes it
    /// starts the next one.
    fn expired(
        &mut self,
        activity: Activity,
        limits: &Limits,
        own: &ws::Limits,
        now: Instant,
    ) -> Option<Overdue> {
        let passed = |since: Instant| now.saturating_duration_since(since);
        if activity.stage == Stage::Lingering {
            return (passed(self.since) >= limits.linger_time).then_some(Overdue::Lingering);
        }
        let closing_since = activity.closing_since;
        if closing_since.is_some_and(|since| passed(since) >= own.close_time) {
            return Some(Overdue::Close);
        }
        if !activity.is_blocked {
            self.sending_since = now;
        } else if passed(self.sending_since) >= limits.stall_time {
            self.sending_since = now;
            let moved_len = activity.sent_len.saturating_sub(self.counted_len);
            self.counted_len = activity.sent_len;
            if moved_len < limits.stall_len_min {
                return Some(Overdue::Window);
            }
        }
        if activity.stage == Stage::Ending {
            return None;
        }
        if activity.is_paused {
            // Reading is paused because of the handler, so the silence is not the client's fault.
            self.heard = now;
            self.restart(now);
            return None;
        }
        if activity.is_partial && passed(self.since) >= limits.stall_time {
            if self.moved_len < limits.stall_len_min {
                return Some(Overdue::Window);
            }
            self.restart(now);
        }
        match self.pinged {
            Some(at) if self.heard > at => self.pinged = None,
            Some(at) if passed(at) >= own.pong_time => return Some(Overdue::Pong),
            None if !own.ping_time.is_zero() && passed(self.heard) >= own.ping_time => {
                self.pinged = Some(now);
                return Some(Overdue::Ping);
            }
            _ => {}
        }
        None
    }
}

impl Activity {
    fn of(conn: &SocketConn) -> Self {
        let (closing_since, is_blocked, sent_len) = {
            let outbound = conn.socket.outbound();
            (
                outbound.closing_since,
                outbound.is_blocked,
                outbound.moved_len,
            )
        };
        Self {
            stage: conn.stage,
            closing_since,
            is_blocked,
            sent_len,
            is_paused: conn.stage == Stage::Open && conn.socket.is_paused(),
            is_partial: conn.assembler.is_partial(),
        }
    }
}

/// Checks the time limits of a socket.
pub(super) fn check<S: Service>(cx: &mut Context<S>, conn: &mut SocketConn) -> Stay {
    if cx.drain.is_some() && conn.stage != Stage::Lingering {
        conn.socket
            .close(CloseCode::GOING_AWAY, "the server is stopping");
    }
    let session = conn.session.as_ref();
    if conn.stage == Stage::Open && session.is_some_and(|session| session.has_lapsed()) {
        let reason = "the client certificate is not valid any more";
        conn.socket.close(CloseCode::POLICY, reason);
    }
    let activity = Activity::of(conn);
    let (limits, own) = (&cx.shared.limits, conn.socket.limits());
    let Some(overdue) = conn.clock.expired(activity, limits, own, cx.now) else {
        return Stay::Wait;
    };
    match overdue {
        Overdue::Lingering => Stay::Close,
        Overdue::Close => lose(cx, conn, "the peer did not answer a close frame"),
        Overdue::Window => {
            let peer = conn.socket.peer();
            cx.incident(&Incident::TooSlow { peer });
            lose(cx, conn, "the peer was too slow")
        }
        Overdue::Ping => {
            conn.socket.outbound().ping(PING);
            Stay::Wait
        }
        Overdue::Pong => lose(cx, conn, "the peer did not answer a ping"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NANOSECOND: Duration = Duration::from_nanos(1);

    /// An open socket without any activity.
    const QUIET: Activity = Activity {
        stage: Stage::Open,
        closing_since: None,
        is_blocked: false,
        sent_len: 0,
        is_paused: false,
        is_partial: false,
    };

    fn expired(clock: &mut Clock, activity: Activity, now: Instant) -> Option<Overdue> {
        clock.expired(activity, &Limits::default(), &ws::Limits::default(), now)
    }

    /// Checks that a limit expires exactly `time` after `start` and not before.
    #[track_caller]
    fn check(clock: Clock, activity: Activity, start: Instant, time: Duration, expected: Overdue) {
        let at = |time| expired(&mut clock.clone(), activity, start + time);
        assert_eq!(at(time - NANOSECOND), None);
        assert_eq!(at(time), Some(expected));
        assert_eq!(at(time + NANOSECOND), Some(expected));
    }

    #[test]
    fn each_limit_expires_after_its_time_and_not_before() {
        let (start, limits, own) = (Instant::now(), Limits::default(), ws::Limits::default());
        let clock = Clock::new(start);
        check(clock, QUIET, start, own.ping_time, Overdue::Ping);
        let lingering = Activity {
            stage: Stage::Lingering,
            ..QUIET
        };
        let time = limits.linger_time;
        check(clock, lingering, start, time, Overdue::Lingering);
        for stage in [Stage::Open, Stage::Ending] {
            let closing = Activity {
                stage,
                closing_since: Some(start),
                ..QUIET
            };
            check(clock, closing, start, own.close_time, Overdue::Close);
            let blocked = Activity {
                stage,
                is_blocked: true,
                sent_len: limits.stall_len_min - 1,
                ..QUIET
            };
            check(clock, blocked, start, limits.stall_time, Overdue::Window);
        }
        let mut clock = clock;
        clock.moved_len = limits.stall_len_min - 1;
        let partial = Activity {
            is_partial: true,
            ..QUIET
        };
        check(clock, partial, start, limits.stall_time, Overdue::Window);
    }

    #[test]
    fn an_unanswered_ping_ends_the_socket_and_is_sent_once() {
        let (start, own) = (Instant::now(), ws::Limits::default());
        let mut clock = Clock::new(start);
        let pinged = start + own.ping_time;
        assert_eq!(expired(&mut clock, QUIET, pinged), Some(Overdue::Ping));
        check(clock, QUIET, pinged, own.pong_time, Overdue::Pong);
        // Only bytes that arrive after the ping was sent can be a reply to it.
        clock.heard = pinged;
        check(clock, QUIET, pinged, own.pong_time, Overdue::Pong);
    }

    #[test]
    fn any_byte_after_a_ping_answers_it_and_delays_the_next() {
        let (start, own) = (Instant::now(), ws::Limits::default());
        let mut clock = Clock::new(start);
        let pinged = start + own.ping_time;
        assert_eq!(expired(&mut clock, QUIET, pinged), Some(Overdue::Ping));
        clock.heard = pinged + NANOSECOND;
        let heard = clock.heard;
        assert_eq!(expired(&mut clock, QUIET, pinged + own.pong_time), None);
        check(clock, QUIET, heard, own.ping_time, Overdue::Ping);
    }

    #[test]
    fn a_ping_time_of_zero_sends_no_pings() {
        let (start, limits) = (Instant::now(), Limits::default());
        let own = ws::Limits {
            ping_time: Duration::ZERO,
            ..ws::Limits::default()
        };
        let later = start + Duration::from_secs(1_000_000);
        let mut clock = Clock::new(start);
        assert_eq!(clock.expired(QUIET, &limits, &own, later), None);
    }

    #[test]
    fn a_peer_that_moves_enough_bytes_in_each_window_stays() {
        let (start, limits) = (Instant::now(), Limits::default());
        let mut clock = Clock::new(start);
        let mut activity = Activity {
            is_blocked: true,
            is_partial: true,
            ..QUIET
        };
        let mut now = start;
        for _ in 0..3 {
            now += limits.stall_time;
            clock.heard = now;
            clock.moved_len = limits.stall_len_min;
            activity.sent_len += limits.stall_len_min;
            assert_eq!(expired(&mut clock, activity, now), None);
        }
        // The next windows start with zero bytes.
        let only_blocked = Activity {
            is_partial: false,
            ..activity
        };
        let time = limits.stall_time;
        check(clock, only_blocked, now, time, Overdue::Window);
        let only_partial = Activity {
            is_blocked: false,
            ..activity
        };
        check(clock, only_partial, now, time, Overdue::Window);
    }

    #[test]
    fn the_window_for_sending_starts_when_the_kernel_accepts_no_more() {
        let (start, limits) = (Instant::now(), Limits::default());
        let mut clock = Clock::new(start);
        let full = start + Duration::from_secs(10);
        assert_eq!(expired(&mut clock, QUIET, full), None);
        clock.heard = full;
        let blocked = Activity {
            is_blocked: true,
            ..QUIET
        };
        check(clock, blocked, full, limits.stall_time, Overdue::Window);
    }

    #[test]
    fn a_slow_handler_is_not_counted_against_the_peer() {
        let (start, own) = (Instant::now(), ws::Limits::default());
        let mut clock = Clock::new(start);
        let resumed = start + Duration::from_secs(1_000_000);
        let paused = Activity {
            is_paused: true,
            is_partial: true,
            ..QUIET
        };
        assert_eq!(expired(&mut clock, paused, resumed), None);
        check(clock, QUIET, resumed, own.ping_time, Overdue::Ping);
    }

    #[test]
    fn a_closed_socket_gets_no_pings_and_may_leave_a_message_incomplete() {
        let start = Instant::now();
        let later = start + Duration::from_secs(1_000_000);
        let ending = Activity {
            stage: Stage::Ending,
            is_partial: true,
            ..QUIET
        };
        assert_eq!(expired(&mut Clock::new(start), ending, later), None);
    }
}
