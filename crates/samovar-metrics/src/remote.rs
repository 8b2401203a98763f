//! The status of what a storage has on other machines, a bucket and a database, and its Prometheus
//! metrics.

use serde::{Deserialize, Serialize};

use crate::text::Text;

/// The metric families, one line each: name, type and help.
macro_rules! families {
    () => {
        "\
samovar_bucket_up gauge 1 if the last request to the bucket was answered, else 0.
samovar_bucket_requests_total counter Requests to the bucket by kind and result; attempts are \
    not counted.
samovar_bucket_request_seconds summary Time of a request to the bucket, with its attempts, by kind.
samovar_bucket_retries_total counter Requests to the bucket that were sent again.
samovar_bucket_sent_bytes_total counter Bytes of objects sent to the bucket.
samovar_bucket_received_bytes_total counter Bytes of objects received from the bucket.
samovar_bucket_requests_running gauge Requests to the bucket in progress.
samovar_bucket_requests_running_max gauge Present limit of requests to the bucket in progress.
samovar_bucket_redirects_total counter Downloads that were redirected to the bucket.
samovar_bucket_cache_hits_total counter Files that were read from the disk cache.
samovar_bucket_cache_misses_total counter Files that the disk cache lacked.
samovar_bucket_cache_files gauge Files in the disk cache.
samovar_bucket_cache_bytes gauge Size of the disk cache.
samovar_bucket_cache_max_bytes gauge Maximum size of the disk cache.
samovar_bucket_cache_evictions_total counter Files that were removed from the disk cache for room.
samovar_database_up gauge 1 if the last statement of the database was answered, else 0.
samovar_database_transactions_total counter Transactions of the database by kind and result.
samovar_database_transaction_seconds summary Time of a transaction of the database, by kind.
samovar_database_wait_seconds summary Time for which a transaction waited for a connection or for \
    its turn to write, by kind.
samovar_database_connections gauge Open connections to the database.
samovar_database_connects_total counter Connections that were made to the database.
"
    };
}
pub(crate) use families;

/// The status of the bucket that has the files of a storage. The counters begin at the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BucketStatus {
    /// The URL, without a login.
    pub url: String,
    /// Why the last request was not answered, in a sentence; `None` if it was.
    pub down: Option<String>,
    /// Requests, by kind.
    pub requests: Vec<BucketRequests>,
    /// Number of requests that were sent again.
    pub retry_count: u64,
    /// Total size of the objects that were sent.
    pub sent_len: u64,
    /// Total size of the objects that were received.
    pub received_len: u64,
    /// Number of requests in progress.
    pub running_count: u64,
    /// Present limit of requests in progress.
    pub running_count_max: u64,
    /// Number of downloads that were redirected to the bucket.
    pub redirect_count: u64,
    /// The disk cache with files of the bucket.
    pub cache: DiskCacheStatus,
}

/// Requests of one kind to a bucket since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BucketRequests {
    /// The kind of requests, such as `put` or `get`.
    pub kind: String,
    /// Number of requests that succeeded, also if the object is absent.
    pub answered_count: u64,
    /// Number of requests that failed, after all attempts.
    pub failed_count: u64,
    /// Total time of all requests with their attempts, in seconds.
    pub total_s: f64,
}

/// The disk cache with files of a bucket. The counters begin at the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskCacheStatus {
    /// Number of files.
    pub file_count: u64,
    /// Total size of the files.
    pub len: u64,
    /// Maximum total size of the files.
    pub len_max: u64,
    /// Number of reads that found the whole file.
    pub hit_count: u64,
    /// Number of reads for which the file was downloaded.
    pub miss_count: u64,
    /// Number of files that were removed for room.
    pub eviction_count: u64,
}

/// The status of the database server of a storage. The counters begin at the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatabaseStatus {
    /// The URL, without a login.
    pub url: String,
    /// Why the last statement was not answered, in a sentence; `None` if it was.
    pub down: Option<String>,
    /// Transactions that only read.
    pub reads: Transactions,
    /// Transactions that write.
    pub writes: Transactions,
    /// Number of open connections.
    pub connection_count: u64,
    /// Number of connections that were made.
    pub connect_count: u64,
}

/// Transactions of one kind since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Transactions {
    /// Number of transactions that were committed.
    pub committed_count: u64,
    /// Number of transactions that failed.
    pub failed_count: u64,
    /// Total time of all transactions without their waits, in seconds.
    pub total_s: f64,
    /// Total time of waits for a connection or for the turn to write, in seconds.
    pub wait_s: f64,
}

/// Writes the metrics of a bucket.
pub(crate) fn expose_bucket(text: &mut Text, bucket: &BucketStatus) {
    text.put("samovar_bucket_up", u8::from(bucket.down.is_none()));
    let mut family = text.family("samovar_bucket_requests_total");
    for one in &bucket.requests {
        let of = |result| [("kind", &*one.kind), ("result", result)];
        family.put(&of("answered"), one.answered_count);
        family.put(&of("failed"), one.failed_count);
    }
    let mut family = text.family("samovar_bucket_request_seconds");
    for one in &bucket.requests {
        let kind = [("kind", &*one.kind)];
        let count = one.answered_count + one.failed_count;
        family.put_as("_sum", &kind, one.total_s);
        family.put_as("_count", &kind, count);
    }
    text.put("samovar_bucket_retries_total", bucket.retry_count);
    text.put("samovar_bucket_sent_bytes_total", bucket.sent_len);
    text.put("samovar_bucket_received_bytes_total", bucket.received_len);
    text.put("samovar_bucket_requests_running", bucket.running_count);
    text.put(
        "samovar_bucket_requests_running_max",
        bucket.running_count_max,
    );
    text.put("samovar_bucket_redirects_total", bucket.redirect_count);
    let cache = &bucket.cache;
    text.put("samovar_bucket_cache_hits_total", cache.hit_count);
    text.put("samovar_bucket_cache_misses_total", cache.miss_count);
    text.put("samovar_bucket_cache_files", cache.file_count);
    text.put("samovar_bucket_cache_bytes", cache.len);
    text.put("samovar_bucket_cache_max_bytes", cache.len_max);
    text.put("samovar_bucket_cache_evictions_total", cache.eviction_count);
}

/// Writes the metrics of a database server.
pub(crate) fn expose_database(text: &mut Text, database: &DatabaseStatus) {
    let kinds = [("read", &database.reads), ("write", &database.writes)];
    text.put("samovar_database_up", u8::from(database.down.is_none()));
    let mut family = text.family("samovar_database_transactions_total");
    for (kind, of) in kinds {
        family.put(
            &[("kind", kind), ("result", "committed")],
            of.committed_count,
        );
        family.put(&[("kind", kind), ("result", "failed")], of.failed_count);
    }
    let mut summary = |name, total: fn(&Transactions) -> f64| {
        let mut family = text.family(name);
        for (kind, of) in kinds {
            let count = of.committed_count + of.failed_count;
            family.put_as("_sum", &[("kind", kind)], total(of));
            family.put_as("_count", &[("kind", kind)], count);
        }
    };
    summary("samovar_database_transaction_seconds", |of| of.total_s);
    summary("samovar_database_wait_seconds", |of| of.wait_s);
    text.put("samovar_database_connections", database.connection_count);
    text.put("samovar_database_connects_total", database.connect_count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_and_a_database_are_exposed() {
        let mut text = Text::new(families!());
        let put = BucketRequests {
            kind: "put".to_owned(),
            answered_count: 3,
            failed_count: 1,
            total_s: 0.5,
        };
        let bucket = BucketStatus {
            requests: vec![put],
            ..BucketStatus::default()
        };
        expose_bucket(&mut text, &bucket);
        let database = DatabaseStatus {
            down: Some("it hangs".to_owned()),
            ..DatabaseStatus::default()
        };
        expose_database(&mut text, &database);
        let text = text.into_string();
        for line in [
            "samovar_bucket_up 1",
            "samovar_bucket_requests_total{kind=\"put\",result=\"answered\"} 3",
            "samovar_bucket_request_seconds_count{kind=\"put\"} 4",
            "samovar_database_up 0",
            "samovar_database_wait_seconds_sum{kind=\"write\"} 0",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in {text}");
        }
    }
}
