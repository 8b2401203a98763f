//! Time limits of HTTP/2 connections and streams.

use std::time::Instant;

use super::conn::{H2Conn, StreamState};
use crate::h2::ErrorCode;
use crate::http::Method;
use crate::io::context::{Context, Stay};
use crate::io::sys::Edges;
use crate::observer::Incident;
use crate::proto::Refusal;
use crate::service::Service;

impl<S: Service> Context<S> {
    /// Checks all time limits of a connection.
    pub(in crate::io) fn check_h2(&mut self, conn: &mut H2Conn) -> Stay {
        let limits = &self.shared.limits;
        let now = self.now;
        let waited = |since: Instant| now.saturating_duration_since(since);
        if conn.is_lingering {
            return if waited(conn.since) >= limits.linger_time {
                Stay::Close
            } else {
                Stay::Wait
            };
        }
        if self.is_stuck(conn) {
            self.incident(&Incident::TooSlow { peer: conn.peer });
            conn.transport.reset_on_close();
            return Stay::Close;
        }
        let (linger_time, idle_time, head_time) =
            (limits.linger_time, limits.idle_time, limits.head_time);
        if conn
            .block_since
            .is_some_and(|since| waited(since) >= head_time)
        {
            let (peer, refusal) = (conn.peer, Refusal::Timeout);
            self.incident(&Incident::Refused { peer, refusal });
            conn.session.abort(ErrorCode::ENHANCE_YOUR_CALM);
            return self.step_h2(conn, Edges::default());
        }
        let is_idle = conn.session.stream_count() == 0;
        let is_stale = is_idle && waited(conn.since) >= idle_time;
        // A new client is about to send, even if the server drains, and may not handle a refusal of
        // its first stream.
        let is_fresh = conn.opened_count == 0 && waited(conn.since) < linger_time;
        let is_draining = self.drain.is_some() && !is_fresh;
        if (is_stale || is_draining) && conn.leaving_since.is_none() {
            self.leave(conn);
            return self.step_h2(conn, Edges::default());
        }
        // The client has not even acknowledged the GOAWAY.
        if is_idle
            && conn
                .leaving_since
                .is_some_and(|since| waited(since) >= linger_time)
        {
            conn.session.abort(ErrorCode::NO_ERROR);
            return self.step_h2(conn, Edges::default());
        }
        if !is_idle && self.drop_stalled(conn) {
            return self.step_h2(conn, Edges::default());
        }
        Stay::Wait
    }

    /// Whether the client has read too little from the socket for too long.
    fn is_stuck(&self, conn: &mut H2Conn) -> bool {
        let limits = &self.shared.limits;
        if conn.output.is_empty() {
            conn.stuck_since = None;
            return false;
        }
        let since = *conn.stuck_since.get_or_insert_with(|| {
            conn.moved_len = 0;
            self.now
        });
        if self.now.saturating_duration_since(since) < limits.stall_time {
            return false;
        }
        conn.stuck_since = None;
        conn.moved_len < limits.stall_len_min
    }

    /// Ends streams whose client is too slow; `true` if there were any.
    fn drop_stalled(&mut self, conn: &mut H2Conn) -> bool {
        let (stall_time, stall_len_min) = {
            let limits = &self.shared.limits;
            (limits.stall_time, limits.stall_len_min)
        };
        let now = self.now;
        let ids: Vec<u32> = conn.session.streams().map(|(id, _)| id).collect();
        let mut has_dropped = false;
        for id in ids {
            let sent_len = conn.session.sent_len(id);
            let Some(entry) = conn.session.data(id) else {
                continue;
            };
            let moved_len = match entry.state {
                StreamState::Receiving => entry.body_len,
                StreamState::Sending => sent_len,
                // They wait for a worker or the application.
                StreamState::Away | StreamState::Waiting => continue,
            };
            let since = *entry.since.get_or_insert(now);
            if now.saturating_duration_since(since) < stall_time {
                continue;
            }
            if moved_len.saturating_sub(entry.moved_len) >= stall_len_min {
                entry.restart_clock(now, moved_len);
                continue;
            }
            has_dropped = true;
            if entry.state == StreamState::Receiving {
                let request = entry.request.take();
                let is_head =
                    request.is_some_and(|request| request.head().method() == Method::Head);
                self.refuse_stream(conn, id, Refusal::Timeout, is_head);
            } else {
                self.incident(&Incident::TooSlow { peer: conn.peer });
                self.drop_stream(conn, id, ErrorCode::ENHANCE_YOUR_CALM);
            }
        }
        has_dropped
    }
}
