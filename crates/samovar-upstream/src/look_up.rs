//! [`LookUp`]: which upstreams are asked for one path, in which order, and for how long.
//!
//! Upstreams of equal priority are asked at once. The next priority is asked as soon as all
//! upstreams asked so far have answered that they lack the path, or after [`HEDGE`], whichever
//! comes first. The first one that has the path ends the look-up. So does the budget: what is
//! unknown by then is [`Outcome::Unknown`].

use std::time::{Duration, Instant};

/// Time after which the upstreams of the next priority are asked, too.
pub const HEDGE: Duration = Duration::from_millis(150);

/// Default of the maximum duration of a look-up.
pub const BUDGET: Duration = Duration::from_secs(2);

/// An upstream that may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Number of the upstream, unique in the look-up.
    pub id: usize,
    /// Candidates with a lower number are asked first.
    pub priority: u32,
}

/// What an upstream has said about the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// A narinfo that may be served.
    Found,
    /// 404 or 410.
    Absent,
    /// Nothing that counts: a fault, or a narinfo that may not be served.
    Unknown,
}

/// The end of a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// This upstream has the path.
    Found(usize),
    /// All upstreams have said that they lack the path.
    Absent,
    /// No upstream has the path, and at least one could not say so in time.
    Unknown,
}

/// What to do after an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Next {
    /// The upstreams to ask now.
    pub ask: Vec<usize>,
    /// The end of the look-up; `None`: it goes on.
    pub outcome: Option<Outcome>,
}

/// The look-up of one path.
#[derive(Debug)]
pub struct LookUp {
    candidates: Vec<(Candidate, State)>,
    deadline: Instant,
    /// When the next priority is asked at the latest; `None`: all have been asked.
    hedge_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Asked,
    Answered(Answer),
}

impl LookUp {
    /// Starts a look-up that ends within `budget`.
    #[must_use]
    pub fn start(candidates: &[Candidate], now: Instant, budget: Duration) -> (Self, Next) {
        let mut candidates: Vec<_> = candidates
            .iter()
            .map(|one| (*one, State::Waiting))
            .collect();
        candidates.sort_by_key(|(one, _)| one.priority);
        let mut look_up = Self {
            candidates,
            deadline: now.checked_add(budget).unwrap_or(now),
            hedge_at: None,
        };
        let ask = look_up.ask_next(now);
        let outcome = ask.is_empty().then_some(Outcome::Absent);
        (look_up, Next { ask, outcome })
    }

    /// Records the answer of an upstream that was asked.
    #[must_use]
    pub fn answered(&mut self, id: usize, answer: Answer, now: Instant) -> Next {
        for (candidate, state) in &mut self.candidates {
            if candidate.id == id && *state == State::Asked {
                *state = State::Answered(answer);
            }
        }
        self.next(now)
    }

    /// Returns what to do at this time, which is [`next_time`](Self::next_time) or later.
    #[must_use]
    pub fn at(&mut self, now: Instant) -> Next {
        self.next(now)
    }

    /// Ends the look-up within `budget` from now, if it would not end before.
    pub fn limit(&mut self, now: Instant, budget: Duration) {
        if let Some(deadline) = now.checked_add(budget) {
            self.deadline = self.deadline.min(deadline);
        }
    }

    /// Returns when the look-up ends at the latest.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns when [`at`](Self::at) is to be called if nothing happens before.
    #[must_use]
    pub fn next_time(&self) -> Instant {
        self.hedge_at
            .map_or(self.deadline, |at| at.min(self.deadline))
    }

    /// Returns the upstreams that were asked and have not answered.
    pub fn silent(&self) -> impl Iterator<Item = usize> + '_ {
        let asked = self
            .candidates
            .iter()
            .filter(|(_, state)| *state == State::Asked);
        asked.map(|(candidate, _)| candidate.id)
    }

    fn next(&mut self, now: Instant) -> Next {
        let found = self.candidates.iter().find_map(|(candidate, state)| {
            (*state == State::Answered(Answer::Found)).then_some(candidate.id)
        });
        let end = |outcome| Next {
            ask: Vec::new(),
            outcome: Some(outcome),
        };
        if let Some(id) = found {
            return end(Outcome::Found(id));
        }
        if now >= self.deadline {
            return end(Outcome::Unknown);
        }
        let is_silent = self.silent().next().is_some();
        if is_silent && self.hedge_at.is_none_or(|at| now < at) {
            return Next::default();
        }
        let ask = self.ask_next(now);
        if !ask.is_empty() || is_silent {
            return Next { ask, outcome: None };
        }
        let is_absent = |state| state == State::Answered(Answer::Absent);
        match self.candidates.iter().all(|(_, state)| is_absent(*state)) {
            true => end(Outcome::Absent),
            false => end(Outcome::Unknown),
        }
    }

    /// Marks the upstreams of the next priority as asked, and returns them.
    fn ask_next(&mut self, now: Instant) -> Vec<usize> {
        let waiting = |state: &State| *state == State::Waiting;
        let next = self.candidates.iter().find(|(_, state)| waiting(state));
        let priority = next.map(|(candidate, _)| candidate.priority);
        let mut ask = Vec::new();
        for (candidate, state) in &mut self.candidates {
            if Some(candidate.priority) == priority && waiting(state) {
                *state = State::Asked;
                ask.push(candidate.id);
            }
        }
        let has_more = self.candidates.iter().any(|(_, state)| waiting(state));
        self.hedge_at = now.checked_add(HEDGE).filter(|_| has_more);
        ask
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn start() -> Instant {
        // The only clock: all other times are relative to it.
        #[expect(clippy::disallowed_methods, reason = "a test needs one instant")]
        Instant::now()
    }

    fn candidates(priorities: &[u32]) -> Vec<Candidate> {
        let numbered = priorities.iter().enumerate();
        numbered
            .map(|(id, &priority)| Candidate { id, priority })
            .collect()
    }

    fn asks(next: &Next) -> &[usize] {
        assert_eq!(next.outcome, None);
        &next.ask
    }

    #[test]
    fn equal_priorities_are_asked_at_once_and_the_next_when_those_lack_the_path() {
        let now = start();
        let (mut look_up, next) = LookUp::start(&candidates(&[50, 10, 10]), now, BUDGET);
        assert_eq!(asks(&next), [1, 2]);
        assert!(asks(&look_up.answered(1, Answer::Absent, now)).is_empty());
        assert_eq!(asks(&look_up.answered(2, Answer::Absent, now)), [0]);
        let next = look_up.answered(0, Answer::Found, now);
        assert_eq!(next.outcome, Some(Outcome::Found(0)));
    }

    #[test]
    fn a_slow_upstream_is_overtaken_and_may_still_win() {
        let now = start();
        let (mut look_up, next) = LookUp::start(&candidates(&[1, 2, 3]), now, BUDGET);
        assert_eq!(asks(&next), [0]);
        assert_eq!(look_up.next_time(), now + HEDGE);
        assert!(asks(&look_up.at(now)).is_empty());
        assert_eq!(asks(&look_up.at(now + HEDGE)), [1]);
        assert_eq!(look_up.next_time(), now + 2 * HEDGE);
        // 1 lacks the path, but 0 has not answered: 2 waits for its turn.
        assert!(asks(&look_up.answered(1, Answer::Absent, now + HEDGE)).is_empty());
        assert_eq!(asks(&look_up.at(now + 2 * HEDGE)), [2]);
        assert_eq!(look_up.next_time(), now + BUDGET);
        let next = look_up.answered(0, Answer::Found, now + 3 * HEDGE);
        assert_eq!(next.outcome, Some(Outcome::Found(0)));
    }

    #[test]
    fn a_path_is_absent_only_if_all_have_said_so() {
        let now = start();
        let (mut look_up, _) = LookUp::start(&candidates(&[1, 1]), now, BUDGET);
        let next = look_up.answered(0, Answer::Absent, now);
        assert_eq!(next.outcome, None);
        let next = look_up.answered(1, Answer::Unknown, now);
        assert_eq!(next.outcome, Some(Outcome::Unknown));
        let (_, next) = LookUp::start(&[], now, BUDGET);
        assert_eq!(next.outcome, Some(Outcome::Absent));
    }

    proptest! {
        /// In any order of answers and times, each upstream is asked at most once, and the look-up
        /// ends at the deadline, with what the answers until then say.
        #[test]
        fn a_look_up_ends_and_asks_each_upstream_once(
            priorities in prop::collection::vec(0_u32..4, 0..6),
            events in prop::collection::vec((0_usize..6, 0_u8..4, 0_u64..400), 0..20),
        ) {
            let begin = start();
            let (mut look_up, mut next) = LookUp::start(&candidates(&priorities), begin, BUDGET);
            let mut asked: Vec<usize> = Vec::new();
            let mut answers = Vec::new();
            let mut now = begin;
            let mut events = events.into_iter();
            loop {
                for id in &next.ask {
                    prop_assert!(!asked.contains(id), "{id} is asked twice");
                    asked.push(*id);
                }
                if next.outcome.is_some() {
                    break;
                }
                next = match events.next() {
                    Some((id, what, pause)) if what < 3 => {
                        now += Duration::from_millis(pause);
                        let all = [Answer::Found, Answer::Absent, Answer::Unknown];
                        let answer = all[usize::from(what)];
                        if asked.contains(&id) && !answers.iter().any(|(other, _)| *other == id) {
                            answers.push((id, answer));
                        }
                        look_up.answered(id, answer, now)
                    }
                    _ => {
                        now = now.max(look_up.next_time());
                        look_up.at(now)
                    }
                };
            }
            let expected = match answers.iter().find(|(_, answer)| *answer == Answer::Found) {
                Some((id, _)) => Outcome::Found(*id),
                None if answers.len() == priorities.len()
                    && answers.iter().all(|(_, answer)| *answer == Answer::Absent)
                    && (now < begin + BUDGET || priorities.is_empty()) => Outcome::Absent,
                None => Outcome::Unknown,
            };
            prop_assert_eq!(next.outcome, Some(expected));
        }
    }
}
