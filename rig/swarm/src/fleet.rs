//! Who asks, for what, and when.

use std::time::Duration;

/// A request that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Which of [`Fleet::operations`] it is.
    pub operation: usize,
    /// When it was due, from the start of the run.
    pub due: Duration,
    /// The fleet's own, to know the request again.
    pub token: u64,
    /// Does the fleet want to read the body of the answer?
    pub wants_body: bool,
}

/// A complete answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The status code.
    pub status: u16,
    /// The body, if the fleet wanted it, up to 1 MiB.
    pub body: &'a [u8],
    /// How long the body was, in bytes.
    pub body_len: u64,
}

/// What an answer is counted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be, for this operation, which may be another than was asked for.
    Good(usize),
    /// The server says that it has too much to do: 429 or 503.
    Refused,
    /// Not what a right server answers.
    Wrong,
}

/// Members that ask by a timetable of their own. One thread has one fleet.
pub trait Fleet: Send {
    /// Names of what is asked for, one line each in a report. The same for all fleets of a run.
    fn operations(&self) -> &'static [&'static str];

    /// When the next request is due, from the start of the run; `None` as long as there is none.
    fn next_due(&self) -> Option<Duration>;

    /// Appends the next request to `request`. Called only if there is one.
    fn ask(&mut self, request: &mut Vec<u8>) -> Ask;

    /// Judges an answer, which came at `now`. What follows from it may be due from `now` on.
    fn answered(&mut self, ask: &Ask, answer: &Answer<'_>, now: Duration) -> Verdict;

    /// Hears that an answer will not come.
    fn failed(&mut self, _ask: &Ask) {}
}

impl Fleet for Box<dyn Fleet> {
    fn operations(&self) -> &'static [&'static str] {
        (**self).operations()
    }

    fn next_due(&self) -> Option<Duration> {
        (**self).next_due()
    }

    fn ask(&mut self, request: &mut Vec<u8>) -> Ask {
        (**self).ask(request)
    }

    fn answered(&mut self, ask: &Ask, answer: &Answer<'_>, now: Duration) -> Verdict {
        (**self).answered(ask, answer, now)
    }

    fn failed(&mut self, ask: &Ask) {
        (**self).failed(ask);
    }
}

/// What a status means where only `good` is right.
pub(crate) fn verdict_of(status: u16, good: u16, operation: usize) -> Verdict {
    match status {
        status if status == good => Verdict::Good(operation),
        429 | 503 => Verdict::Refused,
        _ => Verdict::Wrong,
    }
}
