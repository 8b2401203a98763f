//! The status of a server: a snapshot of its metrics, for pages and programs.
//!
//! `GET /status.json` and every message of `/status/live` are this, as JSON. Names end in their
//! unit: `_s` seconds, `_len` bytes, `_ms` milliseconds since 1970. `docs/status.example.json`
//! shows all fields. Fields may be added; none changes its meaning within one [`VERSION`].

use serde::{Deserialize, Serialize};

/// Version of the format.
pub const VERSION: u32 = 1;

/// A snapshot of the metrics.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// [`VERSION`].
    pub version: u32,
    /// Time of the snapshot.
    pub time_ms: u64,
    /// The server process.
    pub server: ServerStatus,
    /// Rates over the last seconds.
    pub now: Rates,
    /// Latency percentiles by route and time window.
    pub latencies: Vec<Latency>,
    /// Totals since the start.
    pub totals: Totals,
    /// Requests and bytes of each of the last 120 seconds, newest last.
    pub history: Vec<Moment>,
    /// Paths whose narinfos were requested most.
    pub top_served: Vec<TopPath>,
    /// Paths with most NAR bytes sent.
    pub top_bytes: Vec<TopPath>,
    /// Missing paths that were requested most.
    pub top_missing: Vec<TopPath>,
    /// NARs being sent, without small ones, oldest first; at most 50.
    pub transfers: Vec<TransferStatus>,
    /// Number of NARs being sent, including those not listed.
    pub transfer_count: usize,
    /// Recent errors and warnings of the error log, newest first; at most 50.
    pub recent_errors: Vec<RecentError>,
    /// The store.
    pub store: StoreStatus,
    /// Caches in memory and on disk.
    pub caches: Vec<CacheStatus>,
    /// Events since the start by name, without those that did not occur.
    pub events: Vec<EventCount>,
    /// Connections, workers and I/O threads.
    pub load: LoadStatus,
    /// The process, from `/proc`.
    pub process: ProcessStatus,
    /// Warnings about the configuration.
    pub warnings: Vec<String>,
}

/// The server process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    /// Name of the program, such as `nix-serve`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Start time.
    pub started_ms: u64,
    /// Time since the start.
    pub uptime_s: f64,
    /// URLs and sockets it listens on.
    pub listeners: Vec<String>,
    /// Whether it can answer requests.
    pub is_ready: bool,
    /// Reasons why not; empty if it is ready.
    pub not_ready: Vec<String>,
}

/// Rates over the last seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Length of the window.
    pub window_s: f64,
    /// Answered requests per second.
    pub requests_per_s: f64,
    /// Bytes of bodies per second.
    pub bytes_per_s: f64,
    /// 5xx responses and responses aborted by the server, per second.
    pub errors_per_s: f64,
    /// Share of requested narinfos that were found; `None` without requests.
    pub hit_ratio: Option<f64>,
}

/// Latency percentiles of one route and time window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// `all`, `narinfo` or `nar`.
    pub route: String,
    /// Length of the window.
    pub window_s: f64,
    /// Number of responses. If 0, the percentiles are 0.
    pub count: u64,
    /// Median.
    pub p50_s: f64,
    /// 90th percentile.
    pub p90_s: f64,
    /// 99th percentile.
    pub p99_s: f64,
}

/// Totals since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Answered requests.
    pub request_count: u64,
    /// Bytes of bodies.
    pub body_len: u64,
    /// Narinfos found.
    pub hit_count: u64,
    /// Narinfos not found.
    pub miss_count: u64,
    /// 5xx responses.
    pub error_count: u64,
    /// Incomplete responses, aborted by the server or the client.
    pub aborted_count: u64,
    /// Responses aborted by the client.
    pub client_aborted_count: u64,
}

/// One second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moment {
    /// End of the second.
    pub time_ms: u64,
    /// Answered requests.
    pub request_count: u64,
    /// Bytes of bodies, counted when a response ends.
    pub body_len: u64,
    /// Narinfos found.
    pub hit_count: u64,
    /// Narinfos not found.
    pub miss_count: u64,
}

/// A path that is requested often. Counts are estimates if there are many paths: never too low, and
/// too high by at most `error`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopPath {
    /// Hash part.
    pub hash_part: String,
    /// The name after the hash part, if known; missing paths have none.
    pub name: Option<String>,
    /// Requests, or bytes.
    pub count: u64,
    /// Upper bound of the error of `count`.
    pub error: u64,
    /// Approximate number of distinct client addresses that requested the path.
    pub client_count: u64,
}

/// A NAR being sent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferStatus {
    /// Identifies the transfer across snapshots.
    pub id: u64,
    /// The store path.
    pub path: String,
    /// Address of the client; `-` on a unix socket.
    pub client: String,
    /// Bytes read so far; the client may have received fewer.
    pub sent_len: u64,
    /// Bytes of the response.
    pub len: u64,
    /// Time since the start of the transfer.
    pub age_s: f64,
}

/// A line of the error log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecentError {
    /// Time of the line.
    pub time_ms: u64,
    /// `error` or `warning`.
    pub level: String,
    /// The message.
    pub text: String,
}

/// The store.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreStatus {
    /// The store directory, `/nix/store`.
    pub store_dir: String,
    /// Paths in the catalog, including paths deleted since it was loaded; `None` while it is being
    /// loaded.
    pub path_count: Option<u64>,
    /// Memory used by the catalog.
    pub catalog_len: u64,
    /// Duration of the last complete load of the catalog.
    pub load_s: Option<f64>,
    /// Whether nix-daemon is queried because the database cannot be read. The number of paths is
    /// then unknown.
    pub uses_daemon: bool,
    /// Number of the current epoch.
    pub epoch: u64,
    /// Age of the current epoch.
    pub epoch_age_s: f64,
    /// Why the database cannot be read.
    pub error: Option<String>,
    /// Quarantined paths: their files do not match their registration.
    pub quarantined_count: u64,
    /// Progress of the scrub; `None` if it is off.
    pub scrub: Option<ScrubStatus>,
}

/// Progress of the background verification of all paths.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubStatus {
    /// Paths of the current scrub.
    pub path_count: u64,
    /// Paths that are done.
    pub paths_done: u64,
    /// Bytes of the current scrub.
    pub len: u64,
    /// Bytes that are done: read, or verified recently.
    pub len_done: u64,
    /// Paths that the current scrub has quarantined.
    pub quarantined_count: u64,
    /// Paths that the current scrub could not read.
    pub unreadable_count: u64,
    /// Completed scrubs since the start.
    pub round_count: u64,
    /// Bytes read by scrubs since the start.
    pub read_len: u64,
}

/// A cache in memory or on disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheStatus {
    /// `narinfos`, `small_nars`, `nar_cache`, `plans`.
    pub name: String,
    /// Number of entries.
    pub entry_count: u64,
    /// Size in bytes.
    pub len: u64,
    /// Maximum size in bytes.
    pub len_max: u64,
    /// Requests answered from the cache.
    pub hit_count: u64,
    /// Requests not answered from the cache.
    pub miss_count: u64,
    /// Evicted entries.
    pub eviction_count: u64,
}

/// A counter of events.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventCount {
    /// Name of the event, as in the error log.
    pub name: String,
    /// Occurrences since the start.
    pub count: u64,
}

/// Connections, workers and I/O threads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadStatus {
    /// Open connections.
    pub connection_count: u64,
    /// Limit of open connections.
    pub connection_count_max: u64,
    /// Workers that run a job.
    pub running_count: u64,
    /// Worker slots of the lane for disk accesses; the lane for everything else has as many.
    pub worker_count: u64,
    /// Worker slots of all lanes.
    pub worker_count_max: u64,
    /// Jobs that wait for a worker.
    pub queued_count: u64,
    /// Memory used by bodies in progress.
    pub body_memory_len: u64,
    /// Memory budget of bodies.
    pub body_memory_len_max: u64,
    /// Response time of the slowest I/O thread at the last probe; `None` before the first.
    pub loop_lag_s: Option<f64>,
    /// CPU utilisation of each I/O thread over the last second, from 0 to 1.
    pub io_threads: Vec<f64>,
}

/// The process, from `/proc`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    /// PID.
    pub pid: u32,
    /// CPU time since the start.
    pub cpu_s: f64,
    /// Resident memory in bytes.
    pub resident_len: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// Limit of file descriptors.
    pub max_fds: u64,
    /// Threads.
    pub thread_count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Web interface and clients rely on the example.
    #[test]
    fn the_example_has_all_of_it_and_nothing_else() {
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
    fn what_an_older_server_does_not_say_is_nothing() {
        let status: Status = serde_json::from_str("{\"version\":1,\"new\":[]}").expect("is read");
        let expected = Status {
            version: 1,
            ..Status::default()
        };
        assert_eq!(status, expected);
    }
}
