//! [`Bulk`]: whether the references of a path are requested from an upstream in one request.
//!
//! Only a Samovar server answers such requests. Whether an upstream is one is found out by a first
//! request that asks for no path. Only one request for many narinfos is sent to an upstream at the
//! same time: the closures of two paths have much in common, so the second request waits for the
//! answer to the first, and asks only for the paths that are still unknown then.

use std::time::{Duration, Instant};

/// Time after which an upstream that does not answer such requests is asked again, in case it was
/// replaced by a Samovar server.
const REFUSED_TIME: Duration = Duration::from_secs(3600);

/// Time after which an upstream is asked again after an answer that has failed.
const FAILED_TIME: Duration = Duration::from_secs(60);

/// How the references of a path are requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Each with a request of its own.
    Single,
    /// First find out whether the upstream answers requests for many; then as [`Wait`](Self::Wait).
    Detect,
    /// Decide again at the next [`Bulk::ended`].
    Wait,
    /// The unknown ones, in one request.
    Paths,
    /// Together with the whole closure of the path.
    Closure,
}

/// The end of a request for many narinfos.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// The upstream has answered it.
    Answered,
    /// The upstream does not have such requests.
    Refused,
    /// The upstream did not answer, or not completely.
    Failed,
}

/// What is known about requests for many narinfos to one upstream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bulk(State);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Unknown,
    /// A request is in progress.
    Busy,
    /// The upstream answers requests for many.
    Idle,
    /// The upstream does not, and is not asked before this time.
    Refused(Instant),
}

impl Bulk {
    /// Decides how the references of a path are requested. The path has `count` references, of
    /// which `unknown_count`, at least one, are unknown. After [`Plan::Detect`], [`Plan::Paths`]
    /// and [`Plan::Closure`], the caller sends the request and calls [`ended`](Self::ended).
    #[must_use]
    pub fn plan(&mut self, unknown_count: usize, count: usize, now: Instant) -> Plan {
        let plan = match self.0 {
            State::Busy => return Plan::Wait,
            State::Refused(until) if now < until => return Plan::Single,
            State::Unknown | State::Refused(_) => Plan::Detect,
            // Request the closure only if most references are unknown: otherwise most of it is
            // known, too.
            State::Idle if unknown_count > count / 2 => Plan::Closure,
            State::Idle => Plan::Paths,
        };
        self.0 = State::Busy;
        plan
    }

    /// Records the end of a request.
    pub fn ended(&mut self, reply: Reply, now: Instant) {
        let until = |time| State::Refused(now.checked_add(time).unwrap_or(now));
        self.0 = match reply {
            Reply::Answered => State::Idle,
            Reply::Refused => until(REFUSED_TIME),
            Reply::Failed => until(FAILED_TIME),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_asked_for_many_once_it_has_answered_and_for_one_thing_at_a_time() {
        // The only clock: all other times are relative to it.
        #[expect(clippy::disallowed_methods, reason = "a test needs one instant")]
        let now = Instant::now();
        let mut bulk = Bulk::default();
        assert_eq!(bulk.plan(1, 1, now), Plan::Detect);
        assert_eq!(bulk.plan(1, 1, now), Plan::Wait);
        bulk.ended(Reply::Answered, now);
        for (unknown_count, count, expected) in [
            (1, 1, Plan::Closure),
            (2, 4, Plan::Paths),
            (3, 4, Plan::Closure),
            (3, 5, Plan::Closure),
            (3, 6, Plan::Paths),
        ] {
            assert_eq!(bulk.plan(unknown_count, count, now), expected);
            assert_eq!(bulk.plan(unknown_count, count, now), Plan::Wait);
            bulk.ended(Reply::Answered, now);
        }
    }

    #[test]
    fn an_upstream_that_refuses_or_fails_is_asked_for_single_narinfos_for_a_time() {
        #[expect(clippy::disallowed_methods, reason = "a test needs one instant")]
        let now = Instant::now();
        for (reply, time) in [(Reply::Refused, REFUSED_TIME), (Reply::Failed, FAILED_TIME)] {
            let mut bulk = Bulk::default();
            assert_eq!(bulk.plan(1, 1, now), Plan::Detect);
            bulk.ended(reply, now);
            let last = now + time - Duration::from_nanos(1);
            assert_eq!(bulk.plan(1, 1, last), Plan::Single);
            assert_eq!(bulk.plan(1, 1, now + time), Plan::Detect);
        }
    }
}
