//! [`Lease`]: until when this node may answer from memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use samovar_lease::Moment;

use crate::sys::boot_time;

/// The end of the lease of this node, as other threads see it.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    /// In nanoseconds since the boot of the machine, with the time in which it was suspended. 0:
    /// there was none yet.
    end: AtomicU64,
    /// When the database was asked the first of the questions that it has not answered yet, in
    /// nanoseconds likewise. 0: it has answered all.
    asked: AtomicU64,
}

impl Lease {
    /// Sets the end. `None`: the lease ends now.
    pub(crate) fn set(&self, end: Option<Moment>) {
        let now = Self::now();
        let end = end.unwrap_or_else(|| self.end().min(now));
        let nanos = nanos(end);
        // What was applied to the catalog before is seen by who sees the new end.
        self.end.store(nanos, Ordering::Release);
    }

    /// Returns whether the lease lives.
    pub(crate) fn lives(&self) -> bool {
        Self::now() < self.end()
    }

    /// Returns the time since the end of the lease. `None`: there was none yet.
    pub(crate) fn ended_since(&self) -> Option<Duration> {
        let end = self.end();
        (end != Moment::default()).then(|| Self::now().since(end))
    }

    /// Records that the thread of the node asks the database.
    pub(crate) fn asks(&self) {
        // The time of an earlier question without an answer stays. Only this thread changes it.
        if self.asked.load(Ordering::Relaxed) == 0 {
            self.asked.store(nanos(Self::now()), Ordering::Relaxed);
        }
    }

    /// Records that the database has answered.
    pub(crate) fn is_answered(&self) {
        self.asked.store(0, Ordering::Relaxed);
    }

    /// Returns for how long the database has not answered the thread of the node.
    pub(crate) fn unanswered_for(&self) -> Duration {
        match self.asked.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            asked => Self::now().since(Moment(Duration::from_nanos(asked))),
        }
    }

    /// Returns the time since the renewal of the present or last lease. `None`: there was none yet.
    /// `len`: how long a lease lives.
    pub(crate) fn age(&self, len: Duration) -> Option<Duration> {
        let end = self.end();
        (end != Moment::default()).then(|| Self::now().after(len).since(end))
    }

    /// Returns the present moment, on the clock of leases.
    pub(crate) fn now() -> Moment {
        Moment(boot_time())
    }

    fn end(&self) -> Moment {
        Moment(Duration::from_nanos(self.end.load(Ordering::Acquire)))
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.0.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_lives_until_its_end() {
        let lease = Lease::default();
        assert!(!lease.lives());
        assert_eq!(lease.ended_since(), None);
        lease.set(Some(Lease::now().after(Duration::from_secs(60))));
        assert!(lease.lives());
        lease.set(None);
        assert!(!lease.lives());
        assert!(lease.ended_since().is_some());
        // The end stays where it is.
        let ended = lease.end();
        lease.set(None);
        assert_eq!(lease.end(), ended);
    }

    #[test]
    fn the_first_question_without_an_answer_counts() {
        let lease = Lease::default();
        assert_eq!(lease.unanswered_for(), Duration::ZERO);
        lease.asks();
        std::thread::sleep(Duration::from_millis(2));
        lease.asks();
        assert!(lease.unanswered_for() >= Duration::from_millis(2));
        lease.is_answered();
        assert_eq!(lease.unanswered_for(), Duration::ZERO);
    }
}
