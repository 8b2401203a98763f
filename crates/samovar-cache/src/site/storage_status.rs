//! The status of the storage for uploads, for the metrics.

use std::time::Duration;

use samovar_metrics::{
    BucketRequests, BucketStatus, CollectorStatus, DatabaseStatus, DiskCacheStatus, EventCount,
    NodeStatus, OtherNode, StorageStatus, StorageTotals, StoredCacheStatus, Transactions,
    UploadCount, UploadStatus,
};
use samovar_storage::metadata::Totals;
use samovar_storage::{
    BucketStatistics, DatabaseStatistics, NodeStatistics, Statistics, Storage,
    TransactionStatistics,
};

use crate::site::cache::Cache;
use crate::site::current::Caches;

/// Returns the status of the storage. `caches`: the caches of the site. Never blocks on a disk.
pub(super) fn status(storage: &Storage, caches: &Caches) -> StorageStatus {
    let statistics = &Statistics::of(storage);
    let quota = |name: &str| {
        let mut uploads = caches.iter().filter_map(Cache::uploads);
        uploads.find(|stored| stored.name() == name)?.quota()
    };
    let totals = statistics.totals.as_ref();
    let oidc = caches.iter().find_map(|cache| cache.oidc.as_deref());
    let of_caches = totals.into_iter().flat_map(|totals| &totals.caches);
    StorageStatus {
        directory: storage.directory().display().to_string(),
        uploads: uploads(statistics),
        caches: of_caches
            .map(|cache| StoredCacheStatus {
                name: cache.name.clone(),
                path_count: cache.path_count,
                len: cache.used_bytes,
                quota_len: quota(&cache.name),
            })
            .collect(),
        totals: totals.map(storage_totals),
        disk_free_len: statistics.space.map(|space| space.free),
        disk_len: statistics.space.map(|space| space.total),
        collector: collector(statistics),
        bucket: statistics.bucket.as_ref().map(bucket),
        database: statistics.database.as_ref().map(database),
        node: statistics.node.as_ref().map(node),
        oidc: oidc.map(|oidc| oidc.status()).unwrap_or_default(),
    }
}

fn bucket(bucket: &BucketStatistics) -> BucketStatus {
    let operations = bucket.operations.iter();
    let cache = &bucket.cache;
    BucketStatus {
        url: bucket.place.clone(),
        down: bucket.down.clone(),
        requests: operations
            .map(|(kind, answered, failed, total)| BucketRequests {
                kind: (*kind).to_owned(),
                answered_count: *answered,
                failed_count: *failed,
                total_s: total.as_secs_f64(),
            })
            .collect(),
        retry_count: bucket.retry_count,
        sent_len: bucket.sent_bytes,
        received_len: bucket.received_bytes,
        running_count: bucket.running,
        running_count_max: bucket.running_max,
        redirect_count: bucket.redirect_count,
        cache: DiskCacheStatus {
            file_count: cache.count,
            len: cache.len,
            len_max: cache.len_max,
            hit_count: cache.hit_count,
            miss_count: cache.miss_count,
            eviction_count: cache.eviction_count,
        },
    }
}

fn database(database: &DatabaseStatistics) -> DatabaseStatus {
    DatabaseStatus {
        url: database.place.clone(),
        down: database.down.clone(),
        reads: transactions(&database.reads),
        writes: transactions(&database.writes),
        connection_count: database.connection_count,
        connect_count: database.connect_count,
    }
}

fn node(node: &NodeStatistics) -> NodeStatus {
    let others = node.others.iter().map(|other| OtherNode {
        name: other.name.clone(),
        machine: other.host.clone(),
        version: other.version.clone(),
        address: other.address.clone(),
        has_lease: other.has_lease,
        behind_count: u64::try_from(other.behind).unwrap_or_default(),
        joined_ms: u64::try_from(other.joined_at)
            .unwrap_or_default()
            .saturating_mul(1000),
    });
    let waits = &node.publish_waits;
    NodeStatus {
        name: node.name.clone(),
        has_lease: node.has_lease,
        lease_age_s: node.lease_age.map(|age| age.as_secs_f64()),
        behind_count: node.behind,
        publish_wait_count: waits.committed_count + waits.failed_count,
        publish_wait_s: waits.total.as_secs_f64(),
        others: others.collect(),
    }
}

const fn transactions(of: &TransactionStatistics) -> Transactions {
    Transactions {
        committed_count: of.committed_count,
        failed_count: of.failed_count,
        total_s: of.total.as_secs_f64(),
        wait_s: of.wait.as_secs_f64(),
    }
}

fn uploads(statistics: &Statistics) -> UploadStatus {
    let counts = statistics.uploads.iter();
    let refused = statistics.refused.iter();
    let (verified_count, verification) = statistics.verifications;
    let (commit_count, commit) = statistics.commits;
    UploadStatus {
        counts: counts
            .map(|(kind, result, count)| UploadCount {
                kind: (*kind).to_owned(),
                result: (*result).to_owned(),
                count: *count,
            })
            .collect(),
        refused: refused
            .map(|(reason, count)| EventCount {
                name: (*reason).to_owned(),
                count: *count,
            })
            .collect(),
        received_len: statistics.received_bytes,
        verified_len: statistics.verified_bytes,
        verified_count,
        verification_s: verification.as_secs_f64(),
        commit_count,
        commit_s: commit.as_secs_f64(),
        committed_path_count: statistics.committed_paths,
        queued_path_count: statistics.queued_paths,
        running_count: statistics.running,
        running_count_max: statistics.running_max,
        waiting_count: statistics.waiting,
    }
}

fn storage_totals(totals: &Totals) -> StorageTotals {
    StorageTotals {
        nar_count: totals.nar_count,
        nar_len: totals.nar_bytes,
        file_len: totals.file_bytes,
        loose_count: totals.loose_count,
        loose_len: totals.loose_bytes,
        lost_count: totals.lost_count,
        log_count: totals.log_count,
        extra_len: totals.extra_bytes,
        condemned_count: totals.condemned_count,
        pin_count: totals.pin_count,
    }
}

fn collector(statistics: &Statistics) -> CollectorStatus {
    let collector = &statistics.collector;
    let collected_at = statistics
        .totals
        .as_ref()
        .and_then(|totals| totals.collected_at);
    CollectorStatus {
        last_success_ms: collected_at
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map(|seconds| seconds.saturating_mul(1000)),
        last_duration_s: collector.last_duration.as_ref().map(Duration::as_secs_f64),
        run_count: collector.run_count,
        failure_count: collector.failure_count,
        condemned_path_count: collector.total.condemned as u64,
        deleted_path_count: collector.total.deleted as u64,
        condemned_nar_count: collector.total.condemned_nars as u64,
        deleted_nar_count: collector.total.deleted_nars as u64,
        freed_len: collector.total.deleted_bytes + collector.total.deleted_extra_bytes,
    }
}
