//! The status of a storage for uploads, and its Prometheus metrics.

use serde::{Deserialize, Serialize};

use crate::event_count::EventCount;
use crate::node::{self, NodeStatus};
use crate::oidc::{self, OidcStatus};
use crate::remote::{self, BucketStatus, DatabaseStatus};
use crate::text::Text;

/// The metric families, one line each: name, type and help.
macro_rules! families {
    () => {
        "\
samovar_uploads_total counter Uploads by kind and result.
samovar_uploads_refused_total counter Refused uploads by reason.
samovar_upload_received_bytes_total counter Received bytes of NAR files, including refused ones.
samovar_upload_verified_bytes_total counter Bytes of verified NARs, decompressed.
samovar_upload_verification_seconds summary Time to receive and verify a NAR.
samovar_upload_commit_seconds summary Time of a commit to the database of uploads.
samovar_upload_commit_paths summary Paths published by a commit.
samovar_upload_commit_queue_paths gauge Paths that wait for a commit.
samovar_uploads_running gauge NAR uploads in progress.
samovar_uploads_running_max gauge Limit of NAR uploads in progress.
samovar_uploads_waiting gauge NAR uploads that wait for a slot or for memory.
samovar_storage_paths gauge Uploaded paths by cache.
samovar_storage_quota_used_bytes gauge Size of what counts towards the quota, by cache.
samovar_storage_quota_bytes gauge Quota by cache; caches without one are omitted.
samovar_storage_nars gauge Stored NARs.
samovar_storage_nar_bytes gauge Size of the stored NARs, decompressed.
samovar_storage_file_bytes gauge Size of the files of stored NARs.
samovar_storage_loose_nars gauge Stored NARs that no path uses.
samovar_storage_loose_bytes gauge Size of the files of NARs that no path uses.
samovar_storage_lost_nars gauge NARs whose file is missing or damaged.
samovar_storage_logs gauge Build logs.
samovar_storage_extra_bytes gauge Size of build logs, realisations and narinfos.
samovar_storage_condemned_paths gauge Paths that will be deleted unless they are used.
samovar_storage_pins gauge Pins; each generation counts.
samovar_storage_disk_free_bytes gauge Free space on the disk of the storage.
samovar_storage_disk_bytes gauge Size of the disk of the storage.
samovar_collector_last_success_timestamp_seconds gauge End of the last complete run of the \
    collector, also by another process.
samovar_collector_last_duration_seconds gauge Duration of the last complete run in this process.
samovar_collector_runs_total counter Runs of the collector by result.
samovar_collector_condemned_total counter Paths and NARs that the collector has condemned.
samovar_collector_deleted_total counter Paths and NARs that the collector has deleted.
samovar_collector_freed_bytes_total counter Size of the files that the collector has deleted.
"
    };
}
pub(crate) use families;

/// The status of a storage for uploads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StorageStatus {
    /// The storage directory.
    pub directory: String,
    /// Counters of uploads since the start.
    pub uploads: UploadStatus,
    /// The uploaded paths of each cache.
    pub caches: Vec<StoredCacheStatus>,
    /// Totals of the upload database; `None` until they were read for the first time.
    pub totals: Option<StorageTotals>,
    /// Free space on the disk of the storage; `None` if unknown.
    pub disk_free_len: Option<u64>,
    /// Size of the disk of the storage; `None` if unknown.
    pub disk_len: Option<u64>,
    /// Runs of the garbage collector for uploaded paths.
    pub collector: CollectorStatus,
    /// The bucket with the files; `None` if they are in the directory.
    pub bucket: Option<BucketStatus>,
    /// The database server; `None` if the database is in the directory.
    pub database: Option<DatabaseStatus>,
    /// The server as one of the nodes that share the database; `None` if it is none, or has not
    /// looked at the others yet.
    pub node: Option<NodeStatus>,
    /// The issuers whose ID tokens are exchanged for tokens; empty if there are none.
    pub oidc: Vec<OidcStatus>,
}

/// Counters of uploads since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UploadStatus {
    /// Numbers of uploads by kind and result.
    pub counts: Vec<UploadCount>,
    /// Numbers of refused uploads by reason.
    pub refused: Vec<EventCount>,
    /// Received bytes of NAR files, also of refused uploads.
    pub received_len: u64,
    /// Number of NAR bytes that were verified, decompressed.
    pub verified_len: u64,
    /// Number of verified NARs.
    pub verified_count: u64,
    /// Total time spent receiving and verifying the verified NARs.
    pub verification_s: f64,
    /// Number of commits to the upload database.
    pub commit_count: u64,
    /// Total duration of the commits to the upload database, in seconds.
    pub commit_s: f64,
    /// Number of paths that all commits together contain.
    pub committed_path_count: u64,
    /// Number of paths that wait for a commit.
    pub queued_path_count: u64,
    /// Number of NAR uploads in progress.
    pub running_count: u64,
    /// Maximum number of NAR uploads in progress.
    pub running_count_max: u64,
    /// Number of NAR uploads that wait for a slot or for memory.
    pub waiting_count: u64,
}

/// Number of uploads of one kind with one result.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UploadCount {
    /// What was uploaded: `nar`, `narinfo` or `log`.
    pub kind: String,
    /// How the upload ended: `accepted`, `refused` or `aborted`.
    pub result: String,
    /// Number of uploads of this kind with this result since the start.
    pub count: u64,
}

impl UploadCount {
    /// Returns a noun for what was uploaded, in the singular.
    #[must_use]
    pub fn noun(&self) -> &str {
        match &*self.kind {
            "nar" => "NAR",
            "log" => "build log",
            kind => kind,
        }
    }
}

/// The uploaded paths of one cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoredCacheStatus {
    /// Name of the cache in the storage.
    pub name: String,
    /// Number of uploaded paths.
    pub path_count: u64,
    /// Size of what counts towards the quota.
    pub len: u64,
    /// Maximum of [`len`](Self::len) that the quota allows, in bytes; `None`: no limit.
    pub quota_len: Option<u64>,
}

/// Totals of the upload database.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StorageTotals {
    /// Number of NARs in the storage.
    pub nar_count: u64,
    /// Total size of the NARs, decompressed.
    pub nar_len: u64,
    /// Total size of the files in which the NARs are stored.
    pub file_len: u64,
    /// Number of NARs that no path uses.
    pub loose_count: u64,
    /// Total size of the files of NARs that no path uses.
    pub loose_len: u64,
    /// Number of NARs whose file is missing or damaged.
    pub lost_count: u64,
    /// Number of build logs.
    pub log_count: u64,
    /// Size of build logs, realisations and narinfos.
    pub extra_len: u64,
    /// Number of condemned paths: they will be deleted unless they are used.
    pub condemned_count: u64,
    /// Number of pins. Each generation of a pin counts.
    pub pin_count: u64,
}

/// Runs of the garbage collector for uploaded paths.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CollectorStatus {
    /// End of the last complete run, in this process or another one; `None` if there was none.
    pub last_success_ms: Option<u64>,
    /// Duration of the last complete run in this process; `None` before the first one.
    pub last_duration_s: Option<f64>,
    /// Number of complete runs since the start.
    pub run_count: u64,
    /// Number of failed runs since the start.
    pub failure_count: u64,
    /// Number of paths condemned (marked for deletion) since the start.
    pub condemned_path_count: u64,
    /// Number of paths deleted since the start.
    pub deleted_path_count: u64,
    /// Number of NARs condemned (marked for deletion) since the start.
    pub condemned_nar_count: u64,
    /// Number of NARs deleted since the start.
    pub deleted_nar_count: u64,
    /// Total size of the files deleted since the start.
    pub freed_len: u64,
}

/// Writes the metrics of a storage.
pub(crate) fn expose(text: &mut Text, storage: &StorageStatus) {
    uploads(text, &storage.uploads);
    let mut put = |name, value: fn(&StoredCacheStatus) -> Option<u64>| {
        let mut family = text.family(name);
        for cache in &storage.caches {
            if let Some(value) = value(cache) {
                family.put(&[("cache", &cache.name)], value);
            }
        }
    };
    put("samovar_storage_paths", |cache| Some(cache.path_count));
    put("samovar_storage_quota_used_bytes", |cache| Some(cache.len));
    put("samovar_storage_quota_bytes", |cache| cache.quota_len);
    if let Some(totals) = &storage.totals {
        text.put("samovar_storage_nars", totals.nar_count);
        text.put("samovar_storage_nar_bytes", totals.nar_len);
        text.put("samovar_storage_file_bytes", totals.file_len);
        text.put("samovar_storage_loose_nars", totals.loose_count);
        text.put("samovar_storage_loose_bytes", totals.loose_len);
        text.put("samovar_storage_lost_nars", totals.lost_count);
        text.put("samovar_storage_logs", totals.log_count);
        text.put("samovar_storage_extra_bytes", totals.extra_len);
        text.put("samovar_storage_condemned_paths", totals.condemned_count);
        text.put("samovar_storage_pins", totals.pin_count);
    }
    if let (Some(free), Some(all)) = (storage.disk_free_len, storage.disk_len) {
        text.put("samovar_storage_disk_free_bytes", free);
        text.put("samovar_storage_disk_bytes", all);
    }
    collector(text, &storage.collector);
    if let Some(bucket) = &storage.bucket {
        remote::expose_bucket(text, bucket);
    }
    if let Some(database) = &storage.database {
        remote::expose_database(text, database);
    }
    if let Some(node) = &storage.node {
        node::expose(text, node);
    }
    if !storage.oidc.is_empty() {
        oidc::expose(text, &storage.oidc);
    }
}

fn uploads(text: &mut Text, uploads: &UploadStatus) {
    let mut family = text.family("samovar_uploads_total");
    for one in &uploads.counts {
        let labels = [("kind", &*one.kind), ("result", &*one.result)];
        family.put(&labels, one.count);
    }
    let mut family = text.family("samovar_uploads_refused_total");
    for one in &uploads.refused {
        family.put(&[("reason", &one.name)], one.count);
    }
    text.put("samovar_upload_received_bytes_total", uploads.received_len);
    text.put("samovar_upload_verified_bytes_total", uploads.verified_len);
    text.family("samovar_upload_verification_seconds")
        .put_as("_sum", &[], uploads.verification_s)
        .put_as("_count", &[], uploads.verified_count);
    text.family("samovar_upload_commit_seconds")
        .put_as("_sum", &[], uploads.commit_s)
        .put_as("_count", &[], uploads.commit_count);
    text.family("samovar_upload_commit_paths")
        .put_as("_sum", &[], uploads.committed_path_count)
        .put_as("_count", &[], uploads.commit_count);
    text.put(
        "samovar_upload_commit_queue_paths",
        uploads.queued_path_count,
    );
    text.put("samovar_uploads_running", uploads.running_count);
    text.put("samovar_uploads_running_max", uploads.running_count_max);
    text.put("samovar_uploads_waiting", uploads.waiting_count);
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a time in seconds, to the millisecond"
)]
fn collector(text: &mut Text, collector: &CollectorStatus) {
    if let Some(at) = collector.last_success_ms {
        let seconds = at as f64 / 1e3;
        text.put("samovar_collector_last_success_timestamp_seconds", seconds);
    }
    if let Some(duration) = collector.last_duration_s {
        text.put("samovar_collector_last_duration_seconds", duration);
    }
    text.family("samovar_collector_runs_total")
        .put(&[("result", "complete")], collector.run_count)
        .put(&[("result", "failed")], collector.failure_count);
    text.family("samovar_collector_condemned_total")
        .put(&[("kind", "path")], collector.condemned_path_count)
        .put(&[("kind", "nar")], collector.condemned_nar_count);
    text.family("samovar_collector_deleted_total")
        .put(&[("kind", "path")], collector.deleted_path_count)
        .put(&[("kind", "nar")], collector.deleted_nar_count);
    text.put("samovar_collector_freed_bytes_total", collector.freed_len);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storage_without_totals_exposes_its_counters() {
        let mut text = Text::new(families!());
        let storage = StorageStatus {
            caches: vec![StoredCacheStatus {
                name: "default".to_owned(),
                quota_len: Some(10),
                ..StoredCacheStatus::default()
            }],
            ..StorageStatus::default()
        };
        expose(&mut text, &storage);
        let text = text.into_string();
        assert!(
            text.contains("samovar_storage_quota_bytes{cache=\"default\"} 10\n"),
            "{text}"
        );
        assert!(
            text.contains("samovar_upload_commit_seconds_count 0\n"),
            "{text}"
        );
        assert!(!text.contains("samovar_storage_nars"), "{text}");
    }
}
