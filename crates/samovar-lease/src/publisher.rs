//! [`Publisher`]: for whom to wait before a commit is acknowledged.

use crate::{Generation, Moment, Seq, Times};

/// A commit that is not acknowledged yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Publisher {
    times: Times,
    seq: Seq,
    generation: Generation,
    /// When the rows were first looked at.
    pub(crate) since: Option<Moment>,
}

/// What a statement after the commit has found. All of it is of one snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    /// The generation.
    pub generation: Generation,
    /// Whether the generation is aged.
    pub is_aged: bool,
    /// The least `seen` of all rows that are not lapsed. `None`: there are none.
    pub least_seen: Option<Seq>,
}

/// Whether a commit may be acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It may.
    Acknowledge,
    /// Not yet: look at the rows again, soon, and at this moment at the latest.
    Wait(Moment),
    /// Another server may have taken over since the commit, perhaps without the commit. Find out
    /// whether the database has it. If so, start with a new [`Publisher`] in the generation that
    /// is there now. If not, it has failed.
    Replaced,
}

impl Publisher {
    /// Starts with a commit: its number, and the generation that its transaction has read.
    #[must_use]
    pub const fn new(times: Times, seq: Seq, generation: Generation) -> Self {
        Self {
            times,
            seq,
            generation,
            since: None,
        }
    }

    /// Returns the number of the commit.
    #[must_use]
    pub const fn seq(&self) -> Seq {
        self.seq
    }

    /// Takes notice of the rows, which were read after the commit. `now`: a moment after they were
    /// read.
    pub fn check(&mut self, now: Moment, rows: &Rows) -> Verdict {
        if rows.generation != self.generation {
            return Verdict::Replaced;
        }
        let since = *self.since.get_or_insert(now);
        let is_confirmed = rows.is_aged && rows.least_seen.is_none_or(|seen| seen >= self.seq);
        // A renewal that the first look did not see comes after the commit, so its lease begins
        // only when the change is applied.
        if is_confirmed || now.since(since) >= self.times.wait {
            return Verdict::Acknowledge;
        }
        Verdict::Wait(since.after(self.times.wait))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rows(is_aged: bool, least_seen: Option<i64>) -> Rows {
        Rows {
            generation: Generation(1),
            is_aged,
            least_seen: least_seen.map(Seq),
        }
    }

    #[track_caller]
    fn check(looks: &[(u64, Rows)], expected: Verdict) {
        let mut publisher = Publisher::new(Times::default(), Seq(5), Generation(1));
        let verdicts = looks
            .iter()
            .map(|(ms, rows)| publisher.check(Moment(Duration::from_millis(*ms)), rows));
        assert_eq!(verdicts.last(), Some(expected));
    }

    #[test]
    fn waits_for_the_slowest_node_and_for_a_young_generation() {
        let later = Verdict::Wait(Moment(Duration::from_secs(4)));
        check(&[(1000, rows(true, None))], Verdict::Acknowledge);
        check(&[(1000, rows(true, Some(5)))], Verdict::Acknowledge);
        check(&[(1000, rows(true, Some(4)))], later);
        check(&[(1000, rows(false, None))], later);
        check(
            &[(1000, rows(false, None)), (3999, rows(false, None))],
            later,
        );
        let slow = [(1000, rows(true, Some(4))), (4000, rows(true, Some(4)))];
        check(&slow, Verdict::Acknowledge);
    }

    #[test]
    fn another_generation_is_told_even_after_the_wait() {
        let replaced = Rows {
            generation: Generation(2),
            ..rows(true, None)
        };
        check(
            &[(0, rows(true, Some(4))), (9000, replaced)],
            Verdict::Replaced,
        );
    }
}
