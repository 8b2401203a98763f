//! Counters of uploads since the start of the process.
//!
//! Counting an upload takes a few atomic additions; reads do not count.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::StorageError;
use crate::gc::Summary;
use crate::metadata::Totals;
use crate::objects::Space;
use crate::receive::PutError;
use crate::receive::Refusal;

/// Declares an enum with the name of each variant in metrics.
macro_rules! named {
    ($(#[$doc:meta])+ $type:ident { $($variant:ident = $name:literal,)+ }) => {
        $(#[$doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum $type {
            $($variant,)+
        }

        impl $type {
            const NAMES: &[&str] = &[$($name,)+];
        }
    };
}

named! {
    /// The kind of file that a request uploads.
    Kind {
        Nar = "nar",
        Narinfo = "narinfo",
        Log = "log",
    }
}

named! {
    /// The outcome of an upload request.
    Outcome {
        Accepted = "accepted",
        Refused = "refused",
        Aborted = "aborted",
    }
}

named! {
    /// The reason for a refusal. The last three are faults of the server, not of the client.
    Reason {
        Token = "token",
        Nar = "nar",
        Narinfo = "narinfo",
        MissingFile = "missing_file",
        MissingReference = "missing_reference",
        Log = "log",
        Encoding = "encoding",
        LooseFiles = "loose_files",
        Quota = "quota",
        Busy = "busy",
        StorageFull = "storage_full",
        StorageFailed = "storage_failed",
    }
}

impl Reason {
    /// Returns the reason for counting an error. Returns `None` if the client or the server aborted
    /// the request.
    pub(crate) fn of(error: &PutError) -> Option<Self> {
        Some(match error {
            PutError::Source(_) => return None,
            PutError::File(_) => Self::Nar,
            PutError::Encoding { .. } => Self::Encoding,
            PutError::Busy => Self::Busy,
            PutError::Storage(error) if error.is_full() => Self::StorageFull,
            PutError::Storage(_) => Self::StorageFailed,
            PutError::Narinfo(refusal) => Self::of_refusal(refusal),
        })
    }

    pub(crate) fn of_refusal(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::TokenInvalid
            | Refusal::OtherName { .. }
            | Refusal::OtherRealisation { .. } => Self::Token,
            Refusal::UnknownFile(_) => Self::MissingFile,
            Refusal::MissingReference { .. } => Self::MissingReference,
            Refusal::LogTooLong(_) => Self::Log,
            Refusal::TooManyLoose { .. } => Self::LooseFiles,
            Refusal::Quota { .. } | Refusal::TooManyExtras { .. } => Self::Quota,
            Refusal::CacheDeleted => Self::Busy,
            _ => Self::Narinfo,
        }
    }
}

/// The counters of a storage since the start of the process.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    uploads: [[AtomicU64; Outcome::NAMES.len()]; Kind::NAMES.len()],
    refused: [AtomicU64; Reason::NAMES.len()],
    pub(crate) received_bytes: AtomicU64,
    pub(crate) verified_bytes: AtomicU64,
    pub(crate) verifications: Timed,
    pub(crate) commits: Timed,
    pub(crate) committed_paths: AtomicU64,
    pub(crate) collector: Mutex<CollectorStatistics>,
    pub(crate) latest: Mutex<Option<(Totals, Option<Space>)>>,
    pub(crate) are_totals_wanted: AtomicBool,
}

/// Number and total duration of operations.
#[derive(Debug, Default)]
pub(crate) struct Timed {
    count: AtomicU64,
    ns: AtomicU64,
}

impl Timed {
    fn add(&self, time: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> (u64, Duration) {
        let ns = self.ns.load(Ordering::Relaxed);
        (self.count.load(Ordering::Relaxed), Duration::from_nanos(ns))
    }
}

impl Counters {
    /// Counts an upload by its outcome, and returns the outcome.
    pub(crate) fn count<T>(&self, kind: Kind, outcome: Result<T, PutError>) -> Result<T, PutError> {
        match &outcome {
            Ok(_) => self.accept(kind, 1),
            Err(error) => self.reject(kind, Reason::of(error)),
        }
        outcome
    }

    /// Counts `count` accepted uploads, which came in one request.
    pub(crate) fn accept(&self, kind: Kind, count: usize) {
        let counter = &self.uploads[kind as usize][Outcome::Accepted as usize];
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts an upload that was not accepted. `reason`: `None` if it was aborted, not refused.
    pub(crate) fn reject(&self, kind: Kind, reason: Option<Reason>) {
        let outcome = match reason {
            Some(reason) => {
                self.refuse(reason);
                Outcome::Refused
            }
            None => Outcome::Aborted,
        };
        self.uploads[kind as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refuse(&self, reason: Reason) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a NAR of `nar_size` bytes, which took `time` to receive and verify.
    pub(crate) fn verified(&self, nar_size: u64, time: Duration) {
        self.verified_bytes.fetch_add(nar_size, Ordering::Relaxed);
        self.verifications.add(time);
    }

    /// Counts a commit of `path_count` paths, which took `time`.
    pub(crate) fn committed(&self, path_count: usize, time: Duration) {
        let path_count = path_count as u64;
        self.committed_paths
            .fetch_add(path_count, Ordering::Relaxed);
        self.commits.add(time);
    }

    /// Returns the number of uploads for each kind and outcome.
    pub(crate) fn uploads(&self) -> Vec<(&'static str, &'static str, u64)> {
        let mut uploads = Vec::new();
        for (kind, row) in Kind::NAMES.iter().zip(&self.uploads) {
            for (outcome, count) in Outcome::NAMES.iter().zip(row) {
                uploads.push((*kind, *outcome, count.load(Ordering::Relaxed)));
            }
        }
        uploads
    }

    /// Returns the number of refusals for each reason.
    pub(crate) fn refused(&self) -> Vec<(&'static str, u64)> {
        let counts = self
            .refused
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        Reason::NAMES.iter().copied().zip(counts).collect()
    }

    /// Records the outcome of a run of the collector, which took `time`.
    pub(crate) fn collected(&self, outcome: &Result<Summary, StorageError>, time: Duration) {
        let mut collector = locked(&self.collector);
        match outcome {
            Ok(summary) => {
                collector.run_count += 1;
                collector.last_duration = Some(time);
                collector.total += *summary;
            }
            Err(_) => collector.failure_count += 1,
        }
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reader of `source` that counts the bytes it returns as received.
pub(crate) struct Received<'a> {
    pub(crate) source: &'a mut dyn Read,
    pub(crate) counters: &'a Counters,
}

impl Read for Received<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.source.read(buffer)?;
        let received = &self.counters.received_bytes;
        received.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }
}

/// Statistics of the collector's runs in this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CollectorStatistics {
    /// Number of complete runs.
    pub run_count: u64,
    /// Number of failed runs.
    pub failure_count: u64,
    /// Duration of the last complete run. `None` before the first one.
    pub last_duration: Option<Duration>,
    /// Sums of the counts of all complete runs.
    pub total: Summary,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(counters: &Counters, kind: Kind, outcome: Outcome) -> u64 {
        counters.uploads[kind as usize][outcome as usize].load(Ordering::Relaxed)
    }

    #[test]
    fn uploads_are_counted_by_outcome_and_reason() {
        let counters = Counters::default();
        counters.count(Kind::Nar, Ok(())).unwrap();
        for error in [
            PutError::Busy,
            PutError::from(Refusal::Quota { used: 1, quota: 1 }),
            PutError::Source(io::ErrorKind::ConnectionReset.into()),
        ] {
            counters.count::<()>(Kind::Nar, Err(error)).unwrap_err();
        }
        let of = |outcome| counted(&counters, Kind::Nar, outcome);
        assert_eq!(of(Outcome::Accepted), 1);
        assert_eq!(of(Outcome::Refused), 2);
        assert_eq!(of(Outcome::Aborted), 1);
        assert_eq!(counted(&counters, Kind::Narinfo, Outcome::Refused), 0);
        for (reason, name) in [(Reason::Busy, "busy"), (Reason::Quota, "quota")] {
            assert_eq!(Reason::NAMES[reason as usize], name);
            assert_eq!(counters.refused[reason as usize].load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn a_full_disk_is_counted_apart_from_other_failures() {
        let error = |kind: io::ErrorKind| {
            let error = StorageError::file("cannot write", "nar/x", kind.into());
            Reason::of(&error.into())
        };
        let full = error(io::ErrorKind::StorageFull);
        assert_eq!(full, Some(Reason::StorageFull));
        let other = error(io::ErrorKind::PermissionDenied);
        assert_eq!(other, Some(Reason::StorageFailed));
    }
}
