//! [`Statistics`]: counters of uploads since the start of the process, and totals of the storage.
//!
//! Totals need a scan of the database. A background thread therefore reads them, and only after
//! they were requested: see [`read_totals`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use samovar_bucket::Operation;

use crate::error::StorageError;
use crate::metadata::{Database, Totals, totals};
use crate::objects::{DiskCacheCounts, InBucket, Objects, Space};
use crate::sql::DatabaseStatistics;
use crate::sql::postgres::Postgres;
use crate::storage::Storage;
use crate::storage::counters::{CollectorStatistics, Counters, locked};
use crate::storage::on_nodes::NodeStatistics;

/// The counters and totals of a storage at one moment.
#[derive(Debug, Clone, Default)]
pub struct Statistics {
    /// Number of uploads since the start of the process: kind, outcome, number.
    pub uploads: Vec<(&'static str, &'static str, u64)>,
    /// Number of refused requests since the start of the process, by reason.
    pub refused: Vec<(&'static str, u64)>,
    /// Number of bytes of NAR files that were received, also by refused uploads.
    pub received_bytes: u64,
    /// Number of bytes of decompressed NARs that were verified.
    pub verified_bytes: u64,
    /// Number and total duration of NAR verifications, including the time to receive the NARs.
    pub verifications: (u64, Duration),
    /// Number and total duration of commits that publish paths.
    pub commits: (u64, Duration),
    /// Number of paths in all commits.
    pub committed_paths: u64,
    /// Number of paths that wait for a commit.
    pub queued_paths: u64,
    /// Number of NAR uploads in progress.
    pub running: u64,
    /// Number of NAR uploads that wait for a slot or for memory.
    pub waiting: u64,
    /// Maximum number of NAR uploads in progress.
    pub running_max: u64,
    /// Runs of the collector in this process.
    pub collector: CollectorStatistics,
    /// Totals of the database, some seconds old. `None` until they are read for the first time.
    pub totals: Option<Totals>,
    /// Requests to the bucket that has the objects; `None` if a directory has them.
    pub bucket: Option<BucketStatistics>,
    /// Connections to the PostgreSQL database and transactions; `None` if the database is a file.
    pub database: Option<DatabaseStatistics>,
    /// What this process knows as a node; `None` if it is none.
    pub node: Option<NodeStatistics>,
    /// Free space and size of the storage's disk. `None`: not read yet, or unknown.
    pub space: Option<Space>,
}

/// Requests to a bucket since the start of the process, and its disk cache.
#[derive(Debug, Clone, Default)]
pub struct BucketStatistics {
    /// Where the bucket is, without secrets.
    pub place: String,
    /// Why the last request was not answered; `None` if it was.
    pub down: Option<String>,
    /// Requests by operation: its name, the numbers of those that were answered and that have
    /// failed, and the total time of all.
    pub operations: Vec<(&'static str, u64, u64, Duration)>,
    /// Number of requests that were sent again.
    pub retry_count: u64,
    /// Number of bytes that were sent.
    pub sent_bytes: u64,
    /// Number of bytes of objects that were received.
    pub received_bytes: u64,
    /// Number of requests in progress.
    pub running: u64,
    /// Present limit of requests in progress.
    pub running_max: u64,
    /// Number of downloads that were redirected to the bucket.
    pub redirect_count: u64,
    /// The disk cache.
    pub cache: DiskCacheCounts,
}

/// Something on another machine that a storage needs, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// What it is: `database` or `bucket`.
    pub name: &'static str,
    /// Where it is, without secrets.
    pub place: String,
    /// Why the last request was not answered; `None` if it was.
    pub down: Option<String>,
}

impl Remote {
    /// Returns the database server and the bucket of a storage, if it has them. Never blocks.
    #[must_use]
    pub fn all_of(storage: &Storage) -> Vec<Self> {
        let database = storage.metadata.postgres().map(|postgres| {
            let found = postgres.statistics();
            ("database", found.place, found.down)
        });
        let bucket = storage.objects.bucket().map(|bucket| {
            let down = bucket.bucket.statistics().down;
            ("bucket", bucket.location.to_string(), down)
        });
        let all = database.into_iter().chain(bucket);
        let remote = |(name, place, down)| Self { name, place, down };
        all.map(remote).collect()
    }
}

impl BucketStatistics {
    fn of(bucket: &InBucket) -> Self {
        let found = bucket.bucket.statistics();
        let operations = Operation::ALL.iter().zip(found.operations);
        Self {
            place: bucket.location.to_string(),
            down: found.down,
            operations: operations
                .map(|(operation, of)| {
                    let (answered, failed) = (of.answered_count, of.failed_count);
                    (operation.name(), answered, failed, of.total)
                })
                .collect(),
            retry_count: found.retry_count,
            sent_bytes: found.sent_len,
            received_bytes: found.received_len,
            running: found.in_flight.into(),
            running_max: found.in_flight_max.into(),
            redirect_count: bucket.redirect_count(),
            cache: bucket.cache_counts(),
        }
    }
}

impl Statistics {
    /// Returns the counters, and the totals of the last read. Never blocks on a disk.
    #[must_use]
    pub fn of(storage: &Storage) -> Self {
        let counters = &storage.counters;
        counters.are_totals_wanted.store(true, Ordering::Relaxed);
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let usage = storage.admission.usage();
        let (totals, space) = locked(&counters.latest).clone().unzip();
        Self {
            uploads: counters.uploads(),
            refused: counters.refused(),
            received_bytes: of(&counters.received_bytes),
            verified_bytes: of(&counters.verified_bytes),
            verifications: counters.verifications.get(),
            commits: counters.commits.get(),
            committed_paths: of(&counters.committed_paths),
            queued_paths: storage.queue.len() as u64,
            running: usage.running,
            waiting: usage.waiting,
            running_max: usage.running_max,
            collector: *locked(&counters.collector),
            totals,
            bucket: storage.objects.bucket().map(BucketStatistics::of),
            database: storage.metadata.postgres().map(Postgres::statistics),
            node: storage
                .seen_nodes
                .statistics(&storage.catalog, &storage.metadata),
            space: space.flatten(),
        }
    }
}

/// Reads the totals for [`Statistics::of`], if they were requested since the last read. Scans the
/// table of NARs, which takes about a second for a million NARs.
///
/// # Errors
///
/// Any [`StorageError`]. The previous totals stay.
pub(super) fn read_totals(
    counters: &Counters,
    metadata: &Database,
    objects: &Objects,
) -> Result<(), StorageError> {
    if !counters.are_totals_wanted.swap(false, Ordering::Relaxed) {
        return Ok(());
    }
    let totals = totals::read(metadata)?;
    let space = objects.space()?;
    *locked(&counters.latest) = Some((totals, space));
    Ok(())
}
