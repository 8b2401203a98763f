//! [`Circuit`]: a circuit breaker, which decides whether an upstream is asked.
//!
//! While the circuit is closed, all requests are sent. After [`FAULT_COUNT_MAX`] faults in a row,
//! or if requests have waited for [`SILENCE_MAX`] without any answer, the circuit opens: the
//! upstream is not asked, as if it had no paths. A probe is sent [`PROBE_PAUSE`] later, and then
//! after pauses that double up to [`PROBE_PAUSE_MAX`]. The circuit closes when a probe gets an
//! answer, or when a request that was sent before gets a late one. A 404 is an answer, not a fault.

use std::time::{Duration, Instant};

/// Number of faults in a row after which the circuit opens.
pub const FAULT_COUNT_MAX: u32 = 3;

/// Maximum time for which requests wait while the upstream answers none of them.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Pause before the first probe.
pub const PROBE_PAUSE: Duration = Duration::from_secs(5);

/// Maximum pause between two probes.
pub const PROBE_PAUSE_MAX: Duration = Duration::from_secs(60);

/// The circuit of one upstream.
#[derive(Debug, Default)]
pub struct Circuit {
    fault_count: u32,
    /// The time of the first request since the last answer; `None`: no request since then.
    waiting_since: Option<Instant>,
    open: Option<Open>,
}

/// An open circuit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// When the circuit opened.
    pub since: Instant,
    /// The last fault, as a part of a sentence.
    pub reason: String,
    /// When the next probe is due.
    probe_at: Instant,
    pause: Duration,
}

/// A change of a circuit, to be logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The circuit has opened for this reason, a fragment.
    Opened(String),
    /// The circuit has closed, this long after it opened.
    Closed(Duration),
}

impl Circuit {
    /// Returns whether a request may be sent now.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.open.is_none()
    }

    /// Returns when and why the circuit opened; `None` if it is closed.
    #[must_use]
    pub fn open(&self) -> Option<&Open> {
        self.open.as_ref()
    }

    /// Records that a request was sent.
    pub fn asked(&mut self, now: Instant) {
        self.waiting_since.get_or_insert(now);
    }

    /// Records an answer, whatever its status.
    pub fn answered(&mut self, now: Instant) -> Option<Change> {
        self.fault_count = 0;
        self.waiting_since = None;
        let open = self.open.take()?;
        Some(Change::Closed(now.saturating_duration_since(open.since)))
    }

    /// Records a request without an answer. `reason`: a fragment for messages.
    pub fn failed(&mut self, now: Instant, reason: &str) -> Option<Change> {
        if let Some(open) = &mut self.open {
            reason.clone_into(&mut open.reason);
            return None;
        }
        self.fault_count = self.fault_count.saturating_add(1);
        let waited = self
            .waiting_since
            .map(|since| now.saturating_duration_since(since));
        if self.fault_count < FAULT_COUNT_MAX && waited.unwrap_or_default() < SILENCE_MAX {
            return None;
        }
        self.open = Some(Open {
            since: now,
            reason: reason.to_owned(),
            probe_at: now.checked_add(PROBE_PAUSE).unwrap_or(now),
            pause: PROBE_PAUSE,
        });
        Some(Change::Opened(reason.to_owned()))
    }

    /// Returns when the next probe is due; `None` while the circuit is closed.
    #[must_use]
    pub fn probe_at(&self) -> Option<Instant> {
        self.open.as_ref().map(|open| open.probe_at)
    }

    /// Returns whether a probe is due. If so, the caller sends it, and the next one is due after a
    /// longer pause.
    pub fn takes_probe(&mut self, now: Instant) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| open.probe_at <= now) else {
            return false;
        };
        open.pause = open.pause.saturating_mul(2).min(PROBE_PAUSE_MAX);
        open.probe_at = now.checked_add(open.pause).unwrap_or(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn start() -> Instant {
        // The only clock: all other times are relative to it.
        #[expect(clippy::disallowed_methods, reason = "a test needs one instant")]
        Instant::now()
    }

    #[test]
    fn three_faults_in_a_row_open_it_and_an_answer_closes_it() {
        let (mut circuit, now) = (Circuit::default(), start());
        for _ in 0..2 {
            assert_eq!(circuit.failed(now, "refused"), None);
        }
        assert_eq!(circuit.answered(now), None);
        for _ in 0..2 {
            assert_eq!(circuit.failed(now, "refused"), None);
        }
        let opened = circuit.failed(now, "reset").unwrap();
        assert_eq!(opened, Change::Opened("reset".to_owned()));
        assert!(!circuit.is_closed());
        assert_eq!(circuit.failed(now, "later"), None);
        assert_eq!(circuit.open().unwrap().reason, "later");
        let closed = circuit.answered(now + 7 * SECOND);
        assert_eq!(closed, Some(Change::Closed(7 * SECOND)));
        assert!(circuit.is_closed());
        assert_eq!(circuit.failed(now, "again"), None);
    }

    #[test]
    fn silence_opens_it_at_the_next_fault() {
        let (mut circuit, now) = (Circuit::default(), start());
        circuit.asked(now);
        circuit.asked(now + 9 * SECOND);
        assert!(circuit.failed(now + 10 * SECOND, "silent").is_some());
        let mut circuit = Circuit::default();
        circuit.asked(now);
        assert_eq!(circuit.answered(now + SECOND), None);
        circuit.asked(now + 9 * SECOND);
        assert_eq!(circuit.failed(now + 12 * SECOND, "silent"), None);
    }

    #[test]
    fn the_pauses_between_probes_double_up_to_a_minute() {
        let (mut circuit, now) = (Circuit::default(), start());
        assert_eq!(circuit.probe_at(), None);
        assert!(!circuit.takes_probe(now));
        while circuit.failed(now, "down").is_none() {}
        let mut at = now;
        for pause in [5, 10, 20, 40, 60, 60] {
            let due = circuit.probe_at().unwrap();
            assert_eq!(due, at + pause * SECOND);
            assert!(!circuit.takes_probe(due - SECOND));
            assert!(circuit.takes_probe(due));
            assert!(!circuit.takes_probe(due));
            at = due;
        }
    }
}
