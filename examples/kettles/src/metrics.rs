//! Metrics and their Prometheus exposition. Metrics of the original server keep their names.

use std::fmt::{self, Write as _};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use samovar_http::http::Method;
use samovar_http::{Exchange, Incident, Load, Observer};

use crate::cgroup::{Group, Pressure};
use crate::histogram::{Histogram, MICROS, ROWS, Snapshot};
use crate::ingest::{Ingest, Refusal};
use crate::process::{Process, backlog, thread_times};

/// Content type of `/metrics`.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Values of the `handler` label: first segments of paths; the last stands for all others.
const HANDLERS: [&str; 11] = [
    "command",
    "measurement",
    "measurements",
    "login",
    "statistics",
    "metrics",
    "live",
    "kettle",
    "devices",
    "healthz",
    "other",
];
const METHODS: [&str; 3] = ["GET", "POST", "other"];
/// Values of the `status_code` label; the last stands for all others.
const STATUSES: [u16; 14] = [
    200, 101, 201, 307, 400, 401, 403, 404, 405, 413, 422, 500, 503, 0,
];

/// Values of the `reason` label of refused connections: the connection limit, descriptors of the
/// process or of the machine, memory; the last stands for all others.
const ACCEPT_REASONS: [&str; 5] = ["full", "process", "machine", "memory", "other"];

fn accept_reason(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => "process",
        Some(Errno::NFILE) => "machine",
        Some(Errno::NOMEM | Errno::NOBUFS) => "memory",
        _ => "other",
    }
}

/// All metrics of a server.
#[derive(Debug)]
pub struct Metrics {
    /// Durations of requests, ordered by handler, then by method, then by status.
    durations: Vec<Histogram>,
    measurements: AtomicU64,
    history: AtomicU64,
    history_planned: AtomicU64,
    duplicates: AtomicU64,
    pruned: AtomicU64,
    refused: [AtomicU64; Refusal::ALL.len()],
    batch_rows: Histogram,
    commit_times: Histogram,
    sync_times: Histogram,
    wait_times: Histogram,
    prune_times: Histogram,
    commit_failures: AtomicU64,
    active: AtomicUsize,
    loop_lag: Histogram,
    accept_errors: [AtomicU64; ACCEPT_REASONS.len()],
    /// Ports that the server listens on.
    ports: OnceLock<Vec<u16>>,
    /// Number of this process, from 1; 0 if it is the only one.
    number: AtomicU32,
    incidents: AtomicU64,
    load: Mutex<Option<Load>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let series_count = HANDLERS.len() * METHODS.len() * STATUSES.len();
        Self {
            durations: (0..series_count).map(|_| Histogram::new(MICROS)).collect(),
            measurements: AtomicU64::new(0),
            history: AtomicU64::new(0),
            history_planned: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            pruned: AtomicU64::new(0),
            refused: Default::default(),
            batch_rows: Histogram::new(ROWS),
            commit_times: Histogram::new(MICROS),
            sync_times: Histogram::new(MICROS),
            wait_times: Histogram::new(MICROS),
            prune_times: Histogram::new(MICROS),
            commit_failures: AtomicU64::new(0),
            active: AtomicUsize::new(0),
            loop_lag: Histogram::new(MICROS),
            accept_errors: Default::default(),
            ports: OnceLock::new(),
            number: AtomicU32::new(0),
            incidents: AtomicU64::new(0),
            load: Mutex::new(None),
        }
    }
}

/// Values of the metrics that the live page shows.
#[derive(Debug, Clone)]
pub struct Pulse {
    /// Durations of all requests.
    pub durations: Snapshot,
    /// Rows per batch.
    pub batch_rows: Snapshot,
    /// Durations of commits.
    pub commit_times: Snapshot,
    /// Number of rows stored.
    pub measurements: u64,
    /// Number of rows that were refused or failed.
    pub refused: u64,
    /// Number of duplicate rows.
    pub duplicates: u64,
}

impl Metrics {
    /// Sets the number of rows of generated history that will be stored.
    pub fn plan_history(&self, row_count: u64) {
        self.history_planned.store(row_count, Ordering::Relaxed);
    }

    /// Records durable rows of generated history, which do not count as measurements of kettles.
    pub fn history_stored(&self, row_count: usize) {
        self.history.fetch_add(row_count as u64, Ordering::Relaxed);
    }

    /// Returns the number of stored and of planned rows of history while some are missing.
    pub fn history(&self) -> Option<(u64, u64)> {
        let (stored, planned) = (count(&self.history), count(&self.history_planned));
        (stored < planned).then_some((stored, planned))
    }

    /// Records a durable batch.
    pub fn committed(&self, row_count: usize, duplicate_count: usize, duration: Duration) {
        let stored = row_count.saturating_sub(duplicate_count) as u64;
        self.measurements.fetch_add(stored, Ordering::Relaxed);
        self.duplicates
            .fetch_add(duplicate_count as u64, Ordering::Relaxed);
        self.batch_rows.add(row_count as u64);
        self.commit_times.add_time(duration);
    }

    /// Records the time that a commit spent in fsync.
    pub fn synced(&self, duration: Duration) {
        self.sync_times.add_time(duration);
    }

    /// Records the time that an entry spent in the queue.
    pub fn waited(&self, duration: Duration) {
        self.wait_times.add_time(duration);
    }

    /// Records a failed batch.
    pub fn commit_failed(&self) {
        self.commit_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Records refused rows.
    pub fn refused(&self, refusal: Refusal, row_count: usize) {
        let index = Refusal::ALL.iter().position(|other| *other == refusal);
        if let Some(count) = index.and_then(|index| self.refused.get(index)) {
            count.fetch_add(row_count as u64, Ordering::Relaxed);
        }
    }

    /// Records deleted rows, and how long commits waited for the deletion.
    pub fn pruned(&self, row_count: usize, duration: Duration) {
        self.pruned.fetch_add(row_count as u64, Ordering::Relaxed);
        self.prune_times.add_time(duration);
    }

    /// Sets the number of active devices.
    pub fn set_active(&self, count: usize) {
        self.active.store(count, Ordering::Relaxed);
    }

    /// Returns the number of active devices.
    pub fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Records the engine's load, and the time that its threads took to respond to a call.
    pub fn engine(&self, load: Load, lag: Duration) {
        *self.load.lock().unwrap_or_else(PoisonError::into_inner) = Some(load);
        self.loop_lag.add_time(lag);
    }

    /// Sets the ports that the server listens on; called once.
    pub fn listens_at(&self, ports: Vec<u16>) {
        drop(self.ports.set(ports));
    }

    /// Sets the number of this process; called once.
    pub fn set_number(&self, number: u32) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// Returns the number of this process; 0 if it is the only one.
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    fn accept_error(&self, reason: &str) -> &AtomicU64 {
        let index = ACCEPT_REASONS.iter().position(|it| *it == reason);
        let [.., other] = &self.accept_errors;
        index
            .and_then(|index| self.accept_errors.get(index))
            .unwrap_or(other)
    }

    /// Returns the engine's load, up to a second old.
    pub fn load(&self) -> Option<Load> {
        *self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the metrics for the live page.
    pub fn pulse(&self) -> Pulse {
        let mut durations = Snapshot::empty(MICROS);
        for histogram in &self.durations {
            durations.merge(&histogram.snapshot());
        }
        Pulse {
            durations,
            batch_rows: self.batch_rows.snapshot(),
            commit_times: self.commit_times.snapshot(),
            measurements: count(&self.measurements),
            refused: self.refused.iter().map(count).sum(),
            duplicates: count(&self.duplicates),
        }
    }

    /// Renders all metrics in Prometheus' text format.
    pub fn text(&self, ingest: &Ingest) -> String {
        let mut text = Text(String::with_capacity(16 * 1024));
        text.counters(&[(
            "app_measurements_total",
            "Measurements stored since the start.",
            &count(&self.measurements),
        )]);
        self.durations(&mut text);
        self.ingest(&mut text, ingest);
        self.engine_text(&mut text);
        let name = "kettles_process_number";
        let help = "Number of this process; 0 if it is the only one.";
        text.gauges(&[(name, help, &self.number())]);
        process(&mut text);
        group(&mut text);
        text.0
    }

    fn durations(&self, text: &mut Text) {
        let name = "http_request_duration_seconds";
        text.family(
            name,
            "histogram",
            "Time from the end of a request to the end of its response.",
        );
        let mut series = self.durations.iter();
        for handler in HANDLERS {
            for method in METHODS {
                for (status, histogram) in STATUSES.iter().zip(series.by_ref()) {
                    let snapshot = histogram.snapshot();
                    if snapshot.count() > 0 {
                        let labels = format!(
                            "handler=\"{handler}\",method=\"{method}\",status_code=\"{status}\""
                        );
                        text.histogram(name, &labels, &snapshot, Unit::Micros);
                    }
                }
            }
        }
    }

    fn ingest(&self, text: &mut Text, ingest: &Ingest) {
        let (waiting, oldest) = ingest.waiting();
        let device_count = ingest.totals().device_count;
        text.gauges(&[
            ("kettles_devices", "Known devices.", &device_count),
            (
                "kettles_active_devices",
                "Devices that sent a request in the last one to two minutes.",
                &self.active(),
            ),
            ("kettles_ingest_queue_rows", "Rows in the queue.", &waiting),
            (
                "kettles_ingest_queue_limit",
                "Capacity of the queue, in rows.",
                &ingest.options().queue_limit,
            ),
            (
                "kettles_ingest_oldest_seconds",
                "Age of the oldest row in the queue.",
                &oldest.as_secs_f64(),
            ),
        ]);
        let name = "kettles_ingest_batch_rows";
        text.family(name, "histogram", "Measurements per commit.");
        text.histogram(name, "", &self.batch_rows.snapshot(), Unit::One);
        let name = "kettles_ingest_commit_seconds";
        text.family(name, "histogram", "Duration of commits.");
        text.histogram(name, "", &self.commit_times.snapshot(), Unit::Micros);
        let name = "kettles_ingest_sync_seconds";
        text.family(name, "histogram", "Part of a commit spent in fsync.");
        text.histogram(name, "", &self.sync_times.snapshot(), Unit::Micros);
        let name = "kettles_ingest_wait_seconds";
        text.family(name, "histogram", "Time requests spent in the queue.");
        text.histogram(name, "", &self.wait_times.snapshot(), Unit::Micros);
        let name = "kettles_ingest_prune_seconds";
        text.family(
            name,
            "histogram",
            "Time commits waited for the deletion of expired rows.",
        );
        text.histogram(name, "", &self.prune_times.snapshot(), Unit::Micros);
        let name = "kettles_ingest_rejected_total";
        text.family(name, "counter", "Rows answered with 503, by reason.");
        for (refusal, rows) in Refusal::ALL.iter().zip(&self.refused) {
            text.put(name, &format!("reason=\"{}\"", refusal.name()), count(rows));
        }
        text.counters(&[
            (
                "kettles_ingest_commit_failures_total",
                "Commits that failed.",
                &count(&self.commit_failures),
            ),
            (
                "kettles_ingest_duplicates_total",
                "Duplicate measurements.",
                &count(&self.duplicates),
            ),
            (
                "kettles_pruned_total",
                "Expired measurements deleted.",
                &count(&self.pruned),
            ),
        ]);
    }

    fn engine_text(&self, text: &mut Text) {
        if let Some(load) = self.load() {
            let name = "engine_connections";
            text.family(name, "gauge", "Open connections, and their limit.");
            text.put(name, "state=\"open\"", load.connection_count);
            text.put(name, "state=\"max\"", load.connection_count_max);
            let (queued, running) = (load.queued_count, load.running_count);
            let (accepted, requests) = ("engine_accepted_total", "engine_requests_queued");
            text.counters(&[(accepted, "Connections accepted.", &load.accepted_count)]);
            text.gauges(&[
                (requests, "Jobs waiting for a worker.", &queued),
                ("engine_workers_running", "Running workers.", &running),
            ]);
        }
        text.gauges(&[(
            "engine_backlog",
            "Connections in the accept queue, of all processes on these ports.",
            &backlog(self.ports.get().map_or(&[], Vec::as_slice)),
        )]);
        let name = "engine_loop_lag_seconds";
        text.family(
            name,
            "histogram",
            "Time until all I/O threads answered a probe; measured each second.",
        );
        text.histogram(name, "", &self.loop_lag.snapshot(), Unit::Micros);
        let name = "engine_worker_busy_seconds_total";
        text.family(name, "counter", "CPU time of threads, by kind.");
        for (worker, seconds) in thread_times() {
            text.put(name, &format!("worker=\"{worker}\""), seconds);
        }
        let name = "engine_accept_errors_total";
        text.family(name, "counter", "Connections refused, by reason.");
        for (reason, errors) in ACCEPT_REASONS.iter().zip(&self.accept_errors) {
            text.put(name, &format!("reason=\"{reason}\""), count(errors));
        }
        text.counters(&[(
            "engine_incidents_total",
            "Other events reported by the engine.",
            &count(&self.incidents),
        )]);
    }
}

fn count(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

fn process(text: &mut Text) {
    let process = Process::now();
    let cpu = ("process_cpu_seconds_total", "Processor time.");
    text.counters(&[(cpu.0, cpu.1, &process.cpu_s)]);
    text.gauges(&[
        (
            "process_resident_memory_bytes",
            "Resident memory.",
            &process.resident_len,
        ),
        (
            "process_anonymous_memory_bytes",
            "Anonymous resident memory: heaps and stacks.",
            &process.anonymous_len,
        ),
        (
            "process_open_fds",
            "Open file descriptors.",
            &process.open_fds,
        ),
    ]);
    if let Some(max_fds) = process.max_fds {
        text.gauges(&[(
            "process_max_fds",
            "Limit of open file descriptors.",
            &max_fds,
        )]);
    }
}

/// Appends the metrics of the control group, except values that the kernel does not report.
fn group(text: &mut Text) {
    let group = Group::now();
    if let Some(seconds) = group.cpu_s {
        let name = "cgroup_cpu_seconds_total";
        text.counters(&[(name, "CPU time of the control group.", &seconds)]);
    }
    if let Some(seconds) = group.throttled_s {
        let name = "cgroup_cpu_throttled_seconds_total";
        text.counters(&[(name, "Time throttled by the CPU quota.", &seconds)]);
    }
    if let Some(len) = group.memory_len {
        let name = "cgroup_memory_bytes";
        text.gauges(&[(
            name,
            "Memory of the control group, page cache included.",
            &len,
        )]);
    }
    if let Some(len) = group.memory_max {
        let name = "cgroup_memory_max_bytes";
        text.gauges(&[(name, "Memory limit of the control group.", &len)]);
    }
    type Seconds = fn(&Pressure) -> f64;
    let kinds: [(&str, &str, Seconds); 2] = [
        ("waiting", "somebody", |pressure| pressure.some_s),
        ("stalled", "everybody", |pressure| pressure.full_s),
    ];
    for (kind, who, seconds) in kinds {
        let name = format!("pressure_{kind}_seconds_total");
        let help = format!("Time in which {who} waited for the resource (PSI).");
        text.family(&name, "counter", &help);
        for it in &group.pressure {
            let labels = format!("resource=\"{}\",scope=\"{}\"", it.resource, it.scope);
            text.put(&name, &labels, seconds(it));
        }
    }
}

/// Unit of a histogram; times are exported in seconds.
#[derive(Clone, Copy)]
enum Unit {
    Micros,
    One,
}

/// Name, help and value of a metric without labels.
type Figure<'a> = (&'a str, &'a str, &'a dyn fmt::Display);

/// Text of the exposition under construction.
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn put(&mut self, name: &str, labels: &str, value: impl fmt::Display) {
        if labels.is_empty() {
            self.line(format_args!("{name} {value}"));
        } else {
            self.line(format_args!("{name}{{{labels}}} {value}"));
        }
    }

    fn gauges(&mut self, figures: &[Figure<'_>]) {
        self.figures("gauge", figures);
    }

    fn counters(&mut self, figures: &[Figure<'_>]) {
        self.figures("counter", figures);
    }

    fn figures(&mut self, kind: &str, figures: &[Figure<'_>]) {
        for (name, help, value) in figures {
            self.family(name, kind, help);
            self.put(name, "", value);
        }
    }

    fn histogram(&mut self, name: &str, labels: &str, snapshot: &Snapshot, unit: Unit) {
        let comma = if labels.is_empty() { "" } else { "," };
        // Divides as integers first, to avoid digits such as 0.00030000000000000003.
        let in_unit = |value: u64| match unit {
            Unit::Micros => format!("{}.{:06}", value / 1_000_000, value % 1_000_000),
            Unit::One => value.to_string(),
        };
        for (bound, total) in snapshot.cumulative() {
            let bound = bound.map_or_else(|| "+Inf".to_owned(), in_unit);
            self.line(format_args!(
                "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {total}"
            ));
        }
        self.put(&format!("{name}_sum"), labels, in_unit(snapshot.sum));
        self.put(&format!("{name}_count"), labels, snapshot.count());
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        let written = writeln!(self.0, "{line}");
        written.expect("a string takes all that is written");
    }
}

/// Observer of the engine that counts the engine's events.
#[derive(Debug)]
pub struct Counting(pub Arc<Metrics>);

impl Observer for Counting {
    fn observes(&self) -> bool {
        true
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        let path = exchange.head.path();
        let first = path.split(|byte| *byte == b'/').nth(1).unwrap_or_default();
        let is_first = |handler: &&str| handler.as_bytes() == first;
        let handler = HANDLERS.iter().position(is_first);
        let handler = handler.unwrap_or(HANDLERS.len() - 1);
        let method = match exchange.head.method() {
            Method::Get => 0,
            Method::Post => 1,
            _ => 2,
        };
        let code = exchange.status.code();
        let status = STATUSES.iter().position(|status| *status == code);
        let status = status.unwrap_or(STATUSES.len() - 1);
        let index = (handler * METHODS.len() + method) * STATUSES.len() + status;
        if let Some(histogram) = self.0.durations.get(index) {
            histogram.add_time(exchange.duration);
        }
    }

    fn incident(&self, incident: &Incident<'_>) {
        let counter = match incident {
            Incident::ConnectionsFull | Incident::GaveWay { .. } => self.0.accept_error("full"),
            Incident::AcceptFailed { error, .. } => self.0.accept_error(accept_reason(error)),
            _ => &self.0.incidents,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        match incident {
            Incident::HandlerPanicked { .. }
            | Incident::HandlerFailed { .. }
            | Incident::SocketHandlerPanicked { .. } => {
                crate::log::say(&format!("kettles: {incident}"))
            }
            // Clients can cause the other events at any rate, so they are only counted: logging
            // them could fill a disk.
            _ => {}
        }
    }
}
