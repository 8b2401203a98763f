//! What was seen.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies are told apart up to this many microseconds: longer than any timeout.
const LATENCY_US_MAX: u64 = 600_000_000;

/// Three digits of a latency are right.
const DIGITS: u8 = 3;

/// One kind of request.
#[derive(Debug, Clone)]
pub struct Operation {
    /// What the report calls it.
    pub name: &'static str,
    /// From the moment at which a request was due to the last byte of its good answer, in
    /// microseconds.
    pub latency: Histogram<u64>,
    /// Bytes of good answers' bodies.
    pub body_bytes: u64,
}

/// Requests without a good answer, and connections that could not be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Failures {
    /// Answered with 429 or 503.
    pub refused: u64,
    /// Answered with what a right server does not say.
    pub wrong: u64,
    /// Answered with what is not HTTP.
    pub malformed: u64,
    /// The connection ended before the answer did.
    pub closed: u64,
    /// No answer in time.
    pub timeout: u64,
    /// Due, and never sent: no connection was free, or no processor.
    pub unsent: u64,
    /// Connections that could not be opened, or for which the server had no place.
    pub connect: u64,
}

impl Failures {
    /// All, by name.
    #[must_use]
    pub fn by_name(&self) -> [(&'static str, u64); 7] {
        [
            ("refused", self.refused),
            ("wrong", self.wrong),
            ("malformed", self.malformed),
            ("closed", self.closed),
            ("timeout", self.timeout),
            ("unsent", self.unsent),
            ("connect", self.connect),
        ]
    }

    /// All of them.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.by_name().iter().map(|&(_, count)| count).sum()
    }

    fn add(&mut self, other: &Self) {
        self.refused += other.refused;
        self.wrong += other.wrong;
        self.malformed += other.malformed;
        self.closed += other.closed;
        self.timeout += other.timeout;
        self.unsent += other.unsent;
        self.connect += other.connect;
    }
}

/// What was seen in a second, or in a run.
#[derive(Debug, Clone)]
pub struct Tally {
    /// How long that was. In a run: until the last request was due, not until it was answered.
    pub duration: Duration,
    /// When all that was asked had been answered, or was given up; from the start.
    pub settled: Duration,
    /// Good answers, by kind.
    pub operations: Vec<Operation>,
    /// From the moment at which a request was due until it was written, in microseconds.
    pub late: Histogram<u64>,
    /// What went wrong.
    pub failures: Failures,
    /// Connections that were closed between requests, and opened again.
    pub reopened: u64,
    /// Connections that are open at the end.
    pub connections: usize,
}

impl Tally {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(operations: &[&'static str]) -> Self {
        let operation = |&name: &&'static str| Operation {
            name,
            latency: histogram(),
            body_bytes: 0,
        };
        Self {
            duration: Duration::ZERO,
            settled: Duration::ZERO,
            operations: operations.iter().map(operation).collect(),
            late: histogram(),
            failures: Failures::default(),
            reopened: 0,
            connections: 0,
        }
    }

    /// Good answers of all kinds.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.operations.iter().map(|it| it.latency.len()).sum()
    }

    /// Latencies of all kinds.
    #[must_use]
    pub fn latency(&self) -> Histogram<u64> {
        let mut sum = histogram();
        for operation in &self.operations {
            merge(&mut sum, &operation.latency);
        }
        sum
    }

    /// Good answers a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        rate(self.answered(), self.duration)
    }

    /// Takes what another thread saw at the same time.
    pub(crate) fn add(&mut self, other: &Self) {
        self.settled = self.settled.max(other.settled);
        for (mine, other) in self.operations.iter_mut().zip(&other.operations) {
            merge(&mut mine.latency, &other.latency);
            mine.body_bytes += other.body_bytes;
        }
        merge(&mut self.late, &other.late);
        self.failures.add(&other.failures);
        self.reopened += other.reopened;
        self.connections += other.connections;
    }

    /// Forgets all, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        for operation in &mut self.operations {
            operation.latency.reset();
            operation.body_bytes = 0;
        }
        self.late.reset();
        self.failures = Failures::default();
        self.reopened = 0;
        self.connections = 0;
    }
}

/// How many a second.
#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
pub(crate) fn rate(count: u64, duration: Duration) -> f64 {
    count as f64 / duration.as_secs_f64().max(1e-9)
}

/// In microseconds; what is longer counts as the longest.
pub(crate) fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    let latency_us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
    histogram.saturating_record(latency_us);
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, DIGITS).expect("these bounds are in order")
}

fn merge(sum: &mut Histogram<u64>, part: &Histogram<u64>) {
    // Most have seen nothing: spares a walk over some ten thousand buckets.
    if !part.is_empty() {
        sum.add(part).expect("the bounds are the same");
    }
}
