//! Results: latencies, failures and counts.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Upper limit of recorded latencies in microseconds: longer than any timeout.
const LATENCY_US_MAX: u64 = 600_000_000;

/// Significant digits of recorded latencies.
const DIGITS: u8 = 3;

/// Results of one kind of request.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Name in reports.
    pub name: &'static str,
    /// Latency from the time a request was due to the last byte of its correct response, in
    /// microseconds.
    pub latency: Histogram<u64>,
    /// Total length of the bodies of correct responses, in bytes.
    pub body_bytes: u64,
}

/// Numbers of requests without a correct response, and of connections that could not be opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Failures {
    /// Responses with status 429 or 503.
    pub refused: u64,
    /// Responses that a correct server does not send.
    pub wrong: u64,
    /// Responses that are not valid HTTP.
    pub malformed: u64,
    /// Connections that ended before the response was complete.
    pub closed: u64,
    /// Responses that did not arrive in time.
    pub timeout: u64,
    /// Requests that were due and never sent, for lack of an idle connection or of CPU time.
    pub unsent: u64,
    /// Connections that could not be opened, or that the server refused at its limit.
    pub connect: u64,
}

impl Failures {
    /// Returns all counts with their names.
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

    /// Returns the number of all failures.
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

/// Results of one second or of a run.
#[derive(Debug, Clone)]
pub struct Tally {
    /// Length of the measured time. For a run, it ends at the due time of the last request, not at
    /// its response.
    pub duration: Duration,
    /// Time from the start until all requests were answered or had failed.
    pub settled: Duration,
    /// Results by kind of request.
    pub operations: Vec<Operation>,
    /// Time from when a request was due until it was written, in microseconds.
    pub late: Histogram<u64>,
    /// Failures by kind.
    pub failures: Failures,
    /// Number of connections that were closed between requests and then reopened.
    pub reopened: u64,
    /// Number of connections that were open at the end.
    pub connections: usize,
}

impl Tally {
    /// Creates empty results.
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

    /// Returns the number of correct responses.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.operations.iter().map(|it| it.latency.len()).sum()
    }

    /// Returns the latencies of all kinds of requests.
    #[must_use]
    pub fn latency(&self) -> Histogram<u64> {
        let mut sum = histogram();
        for operation in &self.operations {
            merge(&mut sum, &operation.latency);
        }
        sum
    }

    /// Returns the number of correct responses per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        rate(self.answered(), self.duration)
    }

    /// Adds the results in `other` to these results.
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

    /// Resets all results, retaining the histograms' memory.
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

/// Returns a count per second.
#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
pub(crate) fn rate(count: u64, duration: Duration) -> f64 {
    count as f64 / duration.as_secs_f64().max(1e-9)
}

/// Records a latency in microseconds, capped at the maximum.
pub(crate) fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    let latency_us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
    histogram.saturating_record(latency_us);
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_US_MAX, DIGITS).expect("these bounds are in order")
}

fn merge(sum: &mut Histogram<u64>, part: &Histogram<u64>) {
    // Most histograms are empty. This check avoids walking over their more than ten thousand
    // buckets.
    if !part.is_empty() {
        sum.add(part).expect("the bounds are the same");
    }
}
