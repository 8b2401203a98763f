//! The status of a server: a snapshot of its metrics, for pages and programs.
//!
//! `GET /status.json` and each message of `/status/live` contain this snapshot as JSON. Names of
//! fields end in their unit: `_s` seconds, `_len` bytes, `_ms` milliseconds since 1970.
//! `docs/status.example.json` shows all fields. Fields may be added; none changes its meaning
//! within one [`VERSION`].

use serde::{Deserialize, Serialize};

use crate::event_count::EventCount;
use crate::storage::StorageStatus;
use crate::upstream::UpstreamStatus;

/// Version of the format of [`Status`].
pub const VERSION: u32 = 1;

/// A snapshot of all metrics of a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Version of this format: [`VERSION`].
    pub version: u32,
    /// Time of the snapshot, in milliseconds since 1970.
    pub time_ms: u64,
    /// State of the server process: name, version, addresses and readiness.
    pub server: ServerStatus,
    /// Rates over the last seconds, for example requests per second.
    pub now: Rates,
    /// Latency percentiles by route and time window.
    pub latencies: Vec<Latency>,
    /// Totals of requests and bytes since the start of the server.
    pub totals: Totals,
    /// Requests and bytes of each of the last 120 seconds, newest last.
    pub history: Vec<Moment>,
    /// Paths whose narinfos were requested most often, in descending order.
    pub top_served: Vec<TopPath>,
    /// Paths of which the most bytes of NARs and files were sent, in descending order.
    pub top_bytes: Vec<TopPath>,
    /// Missing paths that were requested most often, in descending order.
    pub top_missing: Vec<TopPath>,
    /// NARs being sent, without small ones, oldest first; at most 50.
    pub transfers: Vec<TransferStatus>,
    /// Number of NARs being sent, without small ones; may exceed the length of `transfers`.
    pub transfer_count: usize,
    /// Recent errors and warnings of the error log, newest first; at most 50.
    pub recent_errors: Vec<RecentError>,
    /// State of the store and its catalog.
    pub store: StoreStatus,
    /// The storage for uploads; `None`: none is configured.
    pub storage: Option<StorageStatus>,
    /// The upstream caches.
    pub upstreams: Vec<UpstreamStatus>,
    /// State of each cache in memory and on disk.
    pub caches: Vec<CacheStatus>,
    /// Requests for each binary cache of the server since it was configured.
    pub served_caches: Vec<ServedCacheStatus>,
    /// Numbers of events since the start by name. Events that did not occur are omitted.
    pub events: Vec<EventCount>,
    /// Load of the server: connections, workers and I/O threads.
    pub load: LoadStatus,
    /// Resources that the server process uses, from `/proc`.
    pub process: ProcessStatus,
    /// Warnings about the configuration, one line each.
    pub warnings: Vec<String>,
}

/// Name, version, addresses and readiness of a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    /// Name of the program, such as `nix-serve`.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Time at which the server started, in milliseconds since 1970.
    pub started_ms: u64,
    /// Time since the start of the server, in seconds.
    pub uptime_s: f64,
    /// URLs and sockets on which the server listens.
    pub listeners: Vec<String>,
    /// URL of the web interface that shows paths: the public URL of the first cache without a
    /// policy, or of the only cache; its path on the listeners if no public URL is configured.
    /// `None`: that cache has no web interface.
    pub pages_url: Option<String>,
    /// Whether the server can answer requests.
    pub is_ready: bool,
    /// Reasons why the server is not ready; empty if it is.
    pub not_ready: Vec<String>,
}

/// Rates over the last seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Length in seconds of the time window over which the rates are averages.
    pub window_s: f64,
    /// Number of answered requests per second.
    pub requests_per_s: f64,
    /// Number of bytes of response bodies per second.
    pub bytes_per_s: f64,
    /// Number of 5xx responses and of responses aborted by the server, per second.
    pub errors_per_s: f64,
    /// Share of requested narinfos that were found, from 0 to 1; `None` without requests.
    pub hit_ratio: Option<f64>,
}

/// Latency percentiles of one route in one time window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Requests that the percentiles cover: `all`, `narinfo` or `nar`.
    pub route: String,
    /// Length of the time window, in seconds.
    pub window_s: f64,
    /// Number of responses. If 0, the percentiles are 0.
    pub count: u64,
    /// Median latency, in seconds: half of the responses took at most this long.
    pub p50_s: f64,
    /// 90th percentile of the latency, in seconds.
    pub p90_s: f64,
    /// 99th percentile of the latency, in seconds.
    pub p99_s: f64,
}

/// Totals of requests and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Number of answered requests.
    pub request_count: u64,
    /// Number of bytes of all response bodies.
    pub body_len: u64,
    /// Number of requested narinfos that were found.
    pub hit_count: u64,
    /// Number of requested narinfos that were not found.
    pub miss_count: u64,
    /// Number of 5xx responses.
    pub error_count: u64,
    /// Number of 4xx responses other than 404.
    pub refused_count: u64,
    /// Number of incomplete responses, aborted by the server or the client.
    pub aborted_count: u64,
    /// Number of responses aborted by the client.
    pub client_aborted_count: u64,
}

/// Requests for one binary cache of the server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServedCacheStatus {
    /// Name of the cache in the configuration; `default` for a cache without a name.
    pub name: String,
    /// URL prefix of the cache, without a trailing slash; empty for the root.
    pub path_prefix: String,
    /// Totals of the requests whose URL has this prefix, and no longer prefix of another cache.
    pub totals: Totals,
}

/// Requests and bytes in one second of the history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moment {
    /// End of this second, in milliseconds since 1970.
    pub time_ms: u64,
    /// Number of requests answered in this second.
    pub request_count: u64,
    /// Number of bytes of response bodies. A body is counted in the second in which its response
    /// ends.
    pub body_len: u64,
    /// Number of requested narinfos that were found.
    pub hit_count: u64,
    /// Number of requested narinfos that were not found.
    pub miss_count: u64,
    /// Number of 5xx responses, and of responses that the server aborted.
    pub error_count: u64,
    /// Number of connections that were open at the end of this second.
    pub connection_count: u64,
    /// 99th percentile of the response times in seconds; `None` without responses.
    pub p99_s: Option<f64>,
}

/// A path that is often requested. If many paths are requested, counts are estimates: never too
/// low, and too high by at most `error`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopPath {
    /// Hash part of the path.
    pub hash_part: String,
    /// The name after the hash part, if known; missing paths have none.
    pub name: Option<String>,
    /// Number of requests, or of bytes sent of NARs and files.
    pub count: u64,
    /// Maximum amount by which `count` may be too high.
    pub error: u64,
    /// Approximate number of distinct client addresses that requested the path.
    pub client_count: u64,
}

/// A NAR being sent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferStatus {
    /// Number that identifies the transfer in successive snapshots.
    pub id: u64,
    /// Store path of the NAR.
    pub path: String,
    /// Address of the client; `-` for a client on a Unix socket.
    pub client: String,
    /// Bytes of the body read so far; the client may have received fewer.
    pub sent_len: u64,
    /// Length of the whole response body, in bytes.
    pub len: u64,
    /// Time since the start of the transfer, in seconds.
    pub age_s: f64,
}

/// A line of the error log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecentError {
    /// Time at which the line was logged, in milliseconds since 1970.
    pub time_ms: u64,
    /// `error` or `warning`.
    pub level: String,
    /// Text of the line, without time and level.
    pub text: String,
}

/// State of the store and its catalog.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreStatus {
    /// The store directory, usually `/nix/store`.
    pub store_dir: String,
    /// Paths in the catalog, including paths deleted since it was loaded; `None` before it is
    /// loaded.
    pub path_count: Option<u64>,
    /// Memory that the catalog uses, in bytes.
    pub catalog_len: u64,
    /// Duration of the last complete load of the catalog; `None` before the first one.
    pub load_s: Option<f64>,
    /// Whether nix-daemon is queried because the database cannot be read. The number of paths is
    /// then unknown.
    pub uses_daemon: bool,
    /// Epoch of the catalog: a number that increases by one when a new version is published.
    pub epoch: u64,
    /// Time since the catalog's current version was published, in seconds.
    pub epoch_age_s: f64,
    /// Reason why the database cannot be read; `None` if it can.
    pub error: Option<String>,
    /// Number of paths that are not served because their files do not match their registration, or
    /// are suspected not to.
    pub quarantined_count: u64,
    /// Progress of the scrub; `None` if it is off.
    pub scrub: Option<ScrubStatus>,
}

/// Progress of the background verification of all paths.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubStatus {
    /// Number of paths that the current round must verify.
    pub path_count: u64,
    /// Number of paths in this round that were read, or skipped because they were verified
    /// recently.
    pub paths_done: u64,
    /// Number of bytes that the current round must verify.
    pub len: u64,
    /// Bytes in this round that were read, or skipped because they were verified recently.
    pub len_done: u64,
    /// Number of paths that the current round has quarantined.
    pub quarantined_count: u64,
    /// Number of paths that the current round could not read.
    pub unreadable_count: u64,
    /// Number of rounds completed since the start.
    pub round_count: u64,
    /// Number of bytes that all rounds have read since the start.
    pub read_len: u64,
}

/// State of one cache in memory or on disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheStatus {
    /// Name of the cache: `narinfos`, `packed_narinfos`, `small_nars`, `nar_cache` or `plans` (NAR
    /// plans).
    pub name: String,
    /// Number of entries in the cache.
    pub entry_count: u64,
    /// Present size of the cache, in bytes.
    pub len: u64,
    /// Maximum size of the cache, in bytes.
    pub len_max: u64,
    /// Number of requests that were answered from the cache.
    pub hit_count: u64,
    /// Number of requests that could not be answered from the cache.
    pub miss_count: u64,
    /// Number of entries evicted since the start.
    pub eviction_count: u64,
}

/// Load of the server: connections, workers and I/O threads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadStatus {
    /// Number of open connections.
    pub connection_count: u64,
    /// Maximum number of open connections.
    pub connection_count_max: u64,
    /// Number of workers that are running a job.
    pub running_count: u64,
    /// Number of worker slots of the lane for disk accesses. The lane for everything else has as
    /// many.
    pub worker_count: u64,
    /// Number of worker slots of all lanes together.
    pub worker_count_max: u64,
    /// Number of jobs that wait for a worker.
    pub queued_count: u64,
    /// Memory that bodies in progress use, in bytes.
    pub body_memory_len: u64,
    /// Maximum memory for bodies in progress, in bytes.
    pub body_memory_len_max: u64,
    /// Time that the slowest I/O thread took to respond to the last probe; `None` before the first.
    pub loop_lag_s: Option<f64>,
    /// CPU utilisation of each I/O thread over the last second, from 0 to 1.
    pub io_threads: Vec<f64>,
}

/// Resources that the server process uses, from `/proc`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    /// PID of the server process.
    pub pid: u32,
    /// CPU time that the process has used since its start, in seconds.
    pub cpu_s: f64,
    /// Resident memory of the process, in bytes.
    pub resident_len: u64,
    /// Number of file descriptors that the process has open.
    pub open_fds: u64,
    /// Limit of file descriptors; 0 if there is none.
    pub max_fds: u64,
    /// Number of threads of the process.
    pub thread_count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The web interface and clients rely on this example.
    #[test]
    fn the_example_has_exactly_the_fields_of_a_status() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/status.example.json"
        );
        let text = std::fs::read_to_string(file).expect("the example is there");
        let status: Status = serde_json::from_str(&text).expect("the example is a status");
        assert_eq!(status.version, VERSION);
        let written = serde_json::to_string_pretty(&status).expect("is written");
        assert_eq!(written, text.trim_end());
    }

    #[test]
    fn fields_that_an_older_server_omits_have_default_values() {
        let status: Status = serde_json::from_str("{\"version\":1,\"new\":[]}").expect("is read");
        let expected = Status {
            version: 1,
            ..Status::default()
        };
        assert_eq!(status, expected);
    }
}
