//! The clocks of an I/O thread's connections.

use std::time::Duration;

use super::conn::Conn;
use super::context::{Context, Next};
use crate::observer::{End, Incident};
use crate::proto::Refusal;
use crate::proto::conn::Phase;
use crate::service::Service;

/// What is left for the rest of a head once a server drains.
const DRAIN_HEAD_TIME: Duration = Duration::from_secs(1);

/// Which clock ran out.
pub(super) enum Overdue {
    /// Of the handshake.
    Shaking,
    Idle,
    Head,
    Window,
    Linger,
    /// Closed its sending side behind unread requests, while its answer waits.
    Left,
}

impl<S: Service> Context<S> {
    pub(super) fn overdue(&self, conn: &Conn) -> Option<Overdue> {
        let limits = &self.shared.limits;
        let waited = self.now.saturating_duration_since(conn.since);
        if conn.is_shaking() {
            let time = match self.drain {
                Some(_) => limits.linger_time.min(limits.handshake_time),
                None => limits.handshake_time,
            };
            return (waited >= time).then_some(Overdue::Shaking);
        }
        if conn.is_lingering {
            return (waited >= limits.linger_time).then_some(Overdue::Linger);
        }
        if conn.is_waiting {
            // The application decides how long, as long as the peer is there. One that has closed
            // its sending side behind further requests is taken to have left after a while, or
            // connections that nobody reads could pile up without end.
            let has_ended = conn.peer_ended && !limits.half_close;
            return (has_ended && waited >= limits.stall_time).then_some(Overdue::Left);
        }
        let phase = conn.proto.phase();
        if conn.is_sending() || phase == Phase::Body {
            return (waited >= limits.stall_time).then_some(Overdue::Window);
        }
        if conn.has_partial_head && (self.drain.is_none() || !conn.has_blank_input()) {
            let is_drained = self.drain.is_some_and(|drain| {
                self.now
                    .saturating_duration_since(drain.since.max(conn.since))
                    >= DRAIN_HEAD_TIME
            });
            return (is_drained || waited >= limits.head_time).then_some(Overdue::Head);
        }
        if conn.answered_count == 0 {
            // Whoever has just connected is about to send, also to a server that is leaving.
            let time = match self.drain {
                Some(_) => limits.linger_time.min(limits.head_time),
                None => limits.idle_time.max(limits.head_time),
            };
            return (waited >= time).then_some(Overdue::Idle);
        }
        (self.drain.is_some() || waited >= limits.idle_time).then_some(Overdue::Idle)
    }

    pub(super) fn on_overdue(&mut self, conn: &mut Conn, overdue: Overdue) -> Next {
        match overdue {
            Overdue::Linger | Overdue::Shaking => Next::Close,
            Overdue::Left => self.fail(conn, End::Left),
            Overdue::Idle => {
                // The next request may have arrived without its event having been looked at.
                conn.readable = true;
                match self.go_on(conn) {
                    Next::Wait if is_idle(conn) => {
                        conn.transport.say_goodbye();
                        Next::Close
                    }
                    next => next,
                }
            }
            Overdue::Window if conn.moved_len >= self.shared.limits.stall_len_min => {
                conn.restart_clock(self.now);
                Next::Wait
            }
            Overdue::Window if conn.is_sending() => {
                self.shared
                    .service
                    .observer()
                    .incident(&Incident::TooSlow { peer: conn.peer });
                conn.reset_on_close();
                self.fail(conn, End::Cut)
            }
            // The answer was given, a second one would be taken for the next request's.
            Overdue::Window if conn.proto.is_discarding() => Next::Close,
            Overdue::Window | Overdue::Head => {
                conn.proto.close_after();
                conn.proto.answered(false);
                self.refuse(conn, Refusal::Timeout);
                match self.flush_out(conn) {
                    Ok(true) => self.finish(conn),
                    Ok(false) => Next::Wait,
                    Err(_) => Next::Close,
                }
            }
        }
    }
}

/// Between requests, with nothing of the next but empty lines.
fn is_idle(conn: &Conn) -> bool {
    conn.proto.phase() == Phase::Head && conn.has_blank_input() && !conn.is_sending()
}
