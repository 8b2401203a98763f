//! What a status page shows: all figures of one moment.
//!
//! `GET /status.json` and every message of `/status/live` are this, as JSON. Names end in their
//! unit: `_s` seconds, `_len` bytes, `_ms` milliseconds since 1970. `docs/status.example.json`
//! shows all of it. New fields may come; none changes its meaning while [`VERSION`] stays.

use serde::{Deserialize, Serialize};

/// The version of this form.
pub const VERSION: u32 = 1;

/// All figures of one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// [`VERSION`].
    pub version: u32,
    /// When this was made.
    pub time_ms: u64,
    /// Who answers.
    pub server: ServerStatus,
    /// How busy it was in the last seconds.
    pub now: Rates,
    /// How long answers took, by what they were about and for how long back.
    pub latencies: Vec<Latency>,
    /// What there was since the start.
    pub totals: Totals,
    /// Requests and bytes a second, one for each second, the newest last; 120 at most.
    pub history: Vec<Moment>,
    /// What was asked for most often of what there is.
    pub top_served: Vec<TopPath>,
    /// Of which most bytes were sent as NARs.
    pub top_bytes: Vec<TopPath>,
    /// What was asked for most often, and is not there.
    pub top_missing: Vec<TopPath>,
    /// NARs on their way that are not small, the longest on its way first; 50 at most.
    pub transfers: Vec<TransferStatus>,
    /// How many there are, the others included.
    pub transfer_count: usize,
    /// What the error log said of late as an error or a warning, the newest first; 50 at most.
    pub recent_errors: Vec<RecentError>,
    /// The store behind it.
    pub store: StoreStatus,
    /// What is kept in memory and on disk.
    pub caches: Vec<CacheFigures>,
    /// Events that were counted since the start, those that happened, by name.
    pub events: Vec<EventCount>,
    /// Connections, workers and I/O threads.
    pub load: LoadStatus,
    /// The process as the system sees it.
    pub process: ProcessStatus,
    /// What in the configuration deserves a look.
    pub warnings: Vec<String>,
}

/// Who answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    /// The program, such as `nix-serve`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// When it started.
    pub started_ms: u64,
    /// For how long it runs.
    pub uptime_s: f64,
    /// URLs or sockets it listens on.
    pub listeners: Vec<String>,
    /// Whether it would answer well now.
    pub is_ready: bool,
    /// Why not, in words; empty if it is.
    pub not_ready: Vec<String>,
}

/// How busy it was in the last seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Over how many seconds the others are.
    pub window_s: f64,
    /// Requests that were answered, in a second.
    pub requests_per_s: f64,
    /// Bytes of bodies, in a second.
    pub bytes_per_s: f64,
    /// Answers of 500 and above, and those that broke off while their client was there, in a
    /// second.
    pub errors_per_s: f64,
    /// Of the narinfos asked for, the share that was there; none if nobody asked.
    pub hit_ratio: Option<f64>,
}

/// How long answers took.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// `all`, `narinfo` or `nar`.
    pub route: String,
    /// How far back.
    pub window_s: f64,
    /// How many answers that were. The others are 0 if it is 0.
    pub count: u64,
    /// The median.
    pub p50_s: f64,
    /// Nine of ten took no longer.
    pub p90_s: f64,
    /// Ninety-nine of a hundred took no longer.
    pub p99_s: f64,
}

/// What there was since the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Requests that were answered.
    pub request_count: u64,
    /// Bytes of bodies.
    pub body_len: u64,
    /// Narinfos that were there.
    pub hit_count: u64,
    /// Narinfos that were not.
    pub miss_count: u64,
    /// Answers of 500 and above.
    pub error_count: u64,
    /// Answers that broke off, or that their client left.
    pub cut_count: u64,
    /// Those of them that their client left.
    pub left_count: u64,
}

/// One second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moment {
    /// When it ended.
    pub time_ms: u64,
    /// Requests that were answered in it.
    pub request_count: u64,
    /// Bytes of bodies that were sent, counted when an answer ended.
    pub body_len: u64,
    /// Narinfos that were there.
    pub hit_count: u64,
    /// Narinfos that were not.
    pub miss_count: u64,
}

/// A path that is asked for often. Counts are estimates where there are many paths: never too low,
/// and too high by `error` at most.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopPath {
    /// Its hash part.
    pub hash_part: String,
    /// The rest of its name, where it is known: what is missing has none.
    pub name: Option<String>,
    /// Requests, or bytes.
    pub count: u64,
    /// How much of that may be wrong.
    pub error: u64,
    /// By about how many addresses.
    pub client_count: u64,
}

/// A NAR on its way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferStatus {
    /// The same number in every snapshot.
    pub id: u64,
    /// The store path.
    pub path: String,
    /// The address of the client; `-` for one on a unix socket.
    pub client: String,
    /// Bytes that were read for it; those that the client has taken may be some less.
    pub sent_len: u64,
    /// Bytes of the answer.
    pub len: u64,
    /// For how long it is on its way.
    pub age_s: f64,
}

/// A line of the error log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecentError {
    /// When.
    pub time_ms: u64,
    /// `error` or `warning`.
    pub level: String,
    /// What was said.
    pub text: String,
}

/// The store behind a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreStatus {
    /// Where paths are: `/nix/store`.
    pub store_dir: String,
    /// Paths that are known, those deleted since they were loaded included; none while they are
    /// being loaded.
    pub path_count: Option<u64>,
    /// Memory for that.
    pub catalog_len: u64,
    /// How long it took to load them all, when that was last done.
    pub load_s: Option<f64>,
    /// Whether the daemon answers, because the database cannot be read here: then it is not known
    /// how many paths there are.
    pub is_left_to_daemon: bool,
    /// Counts the states of the store that were seen.
    pub epoch: u64,
    /// How old the state is that is served from.
    pub epoch_age_s: f64,
    /// Why the database cannot be read, if it cannot.
    pub error: Option<String>,
    /// Paths that are kept out because their files are not what they should be.
    pub damaged_count: u64,
    /// Where verifying what nobody asks for stands; none where nobody asked for that.
    pub scrub: Option<ScrubStatus>,
}

/// Verifying what nobody asks for, in rounds over all paths.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubStatus {
    /// Paths of this round.
    pub path_count: u64,
    /// How many of them it has passed.
    pub paths_done: u64,
    /// Bytes of this round.
    pub len: u64,
    /// How many of them it has passed, those read of late for others included.
    pub len_done: u64,
    /// Damaged paths that this round has found.
    pub damaged_count: u64,
    /// Paths that could not be read in this round.
    pub unread_count: u64,
    /// Rounds that ended since the start.
    pub round_count: u64,
    /// Bytes that were read since the start.
    pub read_len: u64,
}

/// Something that is kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheFigures {
    /// `narinfos`, `small_nars`, `kept_nars`, `plans`.
    pub name: String,
    /// How many are kept.
    pub entry_count: u64,
    /// Bytes that they take.
    pub len: u64,
    /// How many they may take.
    pub len_max: u64,
    /// How often one was there.
    pub hit_count: u64,
    /// How often one was not.
    pub miss_count: u64,
    /// How many made room for others.
    pub eviction_count: u64,
}

/// How often something happened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventCount {
    /// Its name, as in the error log.
    pub name: String,
    /// How often since the start.
    pub count: u64,
}

/// Connections, workers and I/O threads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadStatus {
    /// Connections that are open.
    pub connection_count: u64,
    /// How many there may be.
    pub connection_count_max: u64,
    /// Workers that run.
    pub running_count: u64,
    /// Workers there are for what may wait for a disk, and as many for what does not.
    pub worker_count: u64,
    /// Workers that may run at once in all, those for what computes included.
    pub worker_count_max: u64,
    /// Requests and answers that wait for a worker.
    pub queued_count: u64,
    /// Memory for bodies under way.
    pub body_memory_len: u64,
    /// How much that may be.
    pub body_memory_len_max: u64,
    /// How long the slowest I/O thread took to answer, when last asked; none if it did not.
    pub loop_lag_s: Option<f64>,
    /// The share of the last seconds that each I/O thread computed, of 1.
    pub io_threads: Vec<f64>,
}

/// A process as the system sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    /// Its id.
    pub pid: u32,
    /// Processor time since its start.
    pub cpu_s: f64,
    /// Memory that it has.
    pub resident_len: u64,
    /// Descriptors that are open.
    pub open_fds: u64,
    /// How many may be.
    pub max_fds: u64,
    /// Its threads.
    pub thread_count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages and programs are written against it.
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
