//! Fleets: clients that decide what to request, and when.

use std::time::Duration;

/// A request that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Index into [`Fleet::operations`].
    pub operation: usize,
    /// Due time, from the start of the run.
    pub due: Duration,
    /// Value by which the fleet recognises the request when the response arrives.
    pub token: u64,
    /// Whether [`Answer::body`] must contain the body of the response.
    pub wants_body: bool,
}

/// A complete response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Status code.
    pub status: u16,
    /// Body, up to 1 MiB; empty unless [`Ask::wants_body`].
    pub body: &'a [u8],
    /// Length of the received body, in bytes, even if `body` does not contain all of it.
    pub body_len: u64,
}

/// Verdict of the fleet on a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Correct. The response counts for the operation with this index, which may differ from the
    /// operation of the request.
    Good(usize),
    /// Refused because of overload: status 429 or 503.
    Refused,
    /// Not a response that a correct server would send.
    Wrong,
}

/// Simulated clients that send requests on a schedule of their own.
pub trait Fleet: Send {
    /// Returns the names of the operations, for reports.
    fn operations(&self) -> &'static [&'static str];

    /// Returns the due time of the next request, from the start of the run; `None` if no request is
    /// scheduled.
    fn next_due(&self) -> Option<Duration>;

    /// Appends the next request to `request`. Called only if [`Fleet::next_due`] is `Some`.
    fn ask(&mut self, request: &mut Vec<u8>) -> Ask;

    /// Judges a response that arrived at `now`. Follow-up requests may be due from `now` on.
    fn answered(&mut self, ask: &Ask, answer: &Answer<'_>, now: Duration) -> Verdict;

    /// Reports that a request failed without a response.
    fn failed(&mut self, _ask: &Ask) {}
}

/// Judges a response by its status alone: only `good` is correct.
pub(crate) fn verdict_of(status: u16, good: u16, operation: usize) -> Verdict {
    match status {
        status if status == good => Verdict::Good(operation),
        429 | 503 => Verdict::Refused,
        _ => Verdict::Wrong,
    }
}
