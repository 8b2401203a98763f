//! The metric families of `/metrics`. `docs/book/monitoring.md` describes their use.

use std::time::Instant;

use crate::buckets::EXPOSED;
use crate::class::{Class, MethodClass, Outcome, Protocol, StatusClass};
use crate::event::Observer;
use crate::meter::{ClassSums, Sums};
use crate::overview::with_hits;
use crate::process::{Process, thread_times};
use crate::registry::{Metrics, MetricsConfig};
use crate::status::{CacheStatus, ScrubStatus, TopPath};
use crate::text::{Family, Text};

#[expect(clippy::cast_precision_loss, reason = "a sum of durations")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

pub(crate) fn exposition(metrics: &Metrics) -> String {
    let mut text = Text::default();
    let sums = metrics.meter.sums();
    let default = MetricsConfig::default();
    let config = metrics.config.get().unwrap_or(&default);
    text.gauge("samovar_info", "Name and version of the server; always 1.")
        .put(&[("name", &config.name), ("version", &config.version)], 1);
    requests(&mut text, &sums);
    narinfos(&mut text, &sums);
    store(&mut text, metrics, &sums);
    events(&mut text, metrics);
    load(&mut text, metrics);
    process(&mut text);
    if config.has_top_paths {
        top_paths(&mut text, metrics);
    }
    text.into_string()
}

/// The classes with at least one request.
fn classes(sums: &Sums) -> impl Iterator<Item = (&'static str, &ClassSums)> + Clone {
    let named = Class::NAMES.into_iter().zip(&sums.classes);
    named.filter(|(_, class)| class.request_count() > 0)
}

// Long: a table of metric families.
fn requests(text: &mut Text, sums: &Sums) {
    let mut family = text.counter(
        "samovar_http_requests_total",
        "Answered requests by route, method and status class.",
    );
    for (route, class) in classes(sums) {
        for (method, mut row) in MethodClass::NAMES.into_iter().zip(class.requests) {
            // 404 has its own class but is exposed as 4xx.
            row[StatusClass::ClientError as usize] += row[StatusClass::Absent as usize];
            row[StatusClass::Absent as usize] = 0;
            for (name, count) in StatusClass::NAMES.into_iter().zip(row) {
                if count > 0 {
                    let labels = [("route", route), ("method", method), ("status", name)];
                    family.put(&labels, count);
                }
            }
        }
    }
    let mut family = text.histogram(
        "samovar_http_request_duration_seconds",
        "Time from the end of the request to the end of the response.",
    );
    for (route, class) in classes(sums) {
        let durations = &class.durations;
        for (bound_ns, bound) in EXPOSED {
            let labels = [("route", route), ("le", bound)];
            family.put_as("_bucket", &labels, durations.count_up_to(bound_ns));
        }
        let count = durations.count();
        family
            .put_as("_bucket", &[("route", route), ("le", "+Inf")], count)
            .put_as("_sum", &[("route", route)], seconds(durations.sum_ns))
            .put_as("_count", &[("route", route)], count);
    }
    let mut family = text.counter(
        "samovar_http_response_body_bytes_total",
        "Bytes of response bodies passed to the kernel, by outcome of the response.",
    );
    for (route, class) in classes(sums) {
        for (outcome, len) in Outcome::NAMES.into_iter().zip(class.body_lens) {
            family.put(&[("route", route), ("outcome", outcome)], len);
        }
    }
    let mut family = text.counter(
        "samovar_http_responses_aborted_total",
        "Incomplete responses: aborted by the client or by the server.",
    );
    for (route, class) in classes(sums) {
        // Without the complete ones, which come first.
        for (outcome, count) in Outcome::NAMES.into_iter().zip(class.aborted).skip(1) {
            family.put(&[("route", route), ("outcome", outcome)], count);
        }
    }
    let mut family = text.counter(
        "samovar_http_protocol_requests_total",
        "Answered requests by protocol and use of TLS.",
    );
    for (protocol, counts) in Protocol::NAMES.into_iter().zip(sums.protocols) {
        for (tls, count) in ["no", "yes"].into_iter().zip(counts) {
            family.put(&[("protocol", protocol), ("tls", tls)], count);
        }
    }
}

fn narinfos(text: &mut Text, sums: &Sums) {
    let of = |status| sums.of(Class::Narinfo).of_status(status);
    text.counter(
        "samovar_narinfo_hits_total",
        "Requests for narinfos that were found.",
    )
    .put(&[], of(StatusClass::Success));
    text.counter(
        "samovar_narinfo_misses_total",
        "Requests for narinfos that were not found.",
    )
    .put(&[], of(StatusClass::Absent));
}

fn store(text: &mut Text, metrics: &Metrics, sums: &Sums) {
    let site = metrics.probe().map(|probe| probe.status());
    let site = site.unwrap_or_default();
    let (age, epoch_count) = {
        let sampled = metrics.sampled();
        (sampled.epoch_age(Instant::now()), sampled.epoch_count)
    };
    let store = site.store;
    text.gauge(
        "samovar_catalog_paths",
        "Paths in the catalog, including paths deleted since it was loaded.",
    )
    .put(&[], store.path_count.unwrap_or(0));
    text.gauge("samovar_catalog_bytes", "Memory used by the catalog.")
        .put(&[], store.catalog_len);
    if let Some(load_s) = store.load_s {
        text.gauge(
            "samovar_catalog_load_seconds",
            "Duration of the last complete load of the catalog.",
        )
        .put(&[], load_s);
    }
    text.gauge(
        "samovar_store_daemon_fallback",
        "1 if nix-daemon is queried because the database cannot be read, else 0.",
    )
    .put(&[], u8::from(store.uses_daemon));
    text.gauge(
        "samovar_catalog_age_seconds",
        "Time since the served state of the store was first seen.",
    )
    .put(&[], age.as_secs_f64());
    text.counter(
        "samovar_catalog_reloads_total",
        "States of the store that were loaded.",
    )
    .put(&[], epoch_count);
    let not_ready = metrics.not_ready();
    text.gauge(
        "samovar_ready",
        "1 if the server can answer requests, else 0; /readyz gives the reasons.",
    )
    .put(&[], u8::from(not_ready.is_empty()));
    let mut family = text.counter(
        "samovar_store_errors_total",
        "Store outages by kind of error.",
    );
    for (kind, count) in metrics.store_errors.counts() {
        family.put(&[("kind", kind)], count);
    }
    text.gauge(
        "samovar_quarantined_paths",
        "Quarantined paths: their files do not match their registration.",
    )
    .put(&[], store.quarantined_count);
    if let Some(status) = &store.scrub {
        scrub(text, status);
    }
    let caches = site.caches.into_iter();
    let caches: Vec<_> = caches.map(|cache| with_hits(cache, sums)).collect();
    caches_of(text, &caches);
}

/// Background verification.
fn scrub(text: &mut Text, scrub: &ScrubStatus) {
    for (name, help, value) in [
        (
            "samovar_scrub_paths",
            "Paths of the current scrub.",
            scrub.path_count,
        ),
        (
            "samovar_scrub_paths_done",
            "Paths of the current scrub that are done.",
            scrub.paths_done,
        ),
        (
            "samovar_scrub_bytes",
            "Bytes of the current scrub.",
            scrub.len,
        ),
        (
            "samovar_scrub_bytes_done",
            "Bytes of the current scrub that are done: read, or verified recently.",
            scrub.len_done,
        ),
        (
            "samovar_scrub_quarantined_paths",
            "Paths that the current scrub has quarantined.",
            scrub.quarantined_count,
        ),
        (
            "samovar_scrub_unreadable_paths",
            "Paths that the current scrub could not read.",
            scrub.unreadable_count,
        ),
    ] {
        text.gauge(name, help).put(&[], value);
    }
    text.counter("samovar_scrub_rounds_total", "Completed scrubs.")
        .put(&[], scrub.round_count);
    text.counter(
        "samovar_scrub_read_bytes_total",
        "Bytes read by all scrubs.",
    )
    .put(&[], scrub.read_len);
}

fn caches_of(text: &mut Text, caches: &[CacheStatus]) {
    type Value = fn(&CacheStatus) -> u64;
    let put = |mut family: Family<'_>, value: Value| {
        for cache in caches {
            family.put(&[("cache", &cache.name)], value(cache));
        }
    };
    let family = text.gauge("samovar_cache_entries", "Entries of the cache.");
    put(family, |cache| cache.entry_count);
    let family = text.gauge("samovar_cache_bytes", "Size of the cache.");
    put(family, |cache| cache.len);
    let family = text.gauge("samovar_cache_max_bytes", "Maximum size of the cache.");
    put(family, |cache| cache.len_max);
    let help = "Requests answered from the cache.";
    let family = text.counter("samovar_cache_hits_total", help);
    put(family, |cache| cache.hit_count);
    let help = "Requests not answered from the cache.";
    let family = text.counter("samovar_cache_misses_total", help);
    put(family, |cache| cache.miss_count);
    let help = "Entries evicted from the cache.";
    let family = text.counter("samovar_cache_evictions_total", help);
    put(family, |cache| cache.eviction_count);
}

/// Includes events that have not occurred: Prometheus sees no increase in a series that appears
/// with its first event.
fn events(text: &mut Text, metrics: &Metrics) {
    let mut family = text.counter(
        "samovar_events_total",
        "Events by name; the error log uses the same names.",
    );
    for (name, count) in metrics.counts() {
        family.put(&[("event", name)], count);
    }
}

fn load(text: &mut Text, metrics: &Metrics) {
    text.gauge("samovar_transfers", "NARs being sent, without small ones.")
        .put(&[], metrics.transfers.count());
    if let Some(load) = metrics.probe().map(|probe| probe.load()) {
        text.gauge("samovar_connections", "Open connections.")
            .put(&[], load.connection_count);
        text.gauge("samovar_connections_max", "Limit of open connections.")
            .put(&[], load.connection_count_max);
        text.counter(
            "samovar_connections_accepted_total",
            "Accepted connections, including connections refused at the limit.",
        )
        .put(&[], load.accepted_count);
        text.gauge("samovar_tls_handshakes", "TLS handshakes in progress.")
            .put(&[], load.handshake_count);
        text.gauge("samovar_workers_busy", "Workers that run a job.")
            .put(&[], load.running_count);
        text.gauge(
            "samovar_workers_waiting",
            "Handlers that wait for their client in the middle of a body.",
        )
        .put(&[], load.waiting_count);
        text.gauge("samovar_workers_max", "Worker slots of all lanes.")
            .put(&[], load.worker_count_max);
        text.gauge("samovar_workers_queued", "Jobs that wait for a worker.")
            .put(&[], load.queued_count);
        text.gauge(
            "samovar_body_memory_bytes",
            "Memory used by bodies in progress.",
        )
        .put(&[], load.body_memory_len);
        text.gauge(
            "samovar_body_memory_max_bytes",
            "Memory budget of bodies, beside a minimum per client.",
        )
        .put(&[], load.body_memory_len_max);
    }
    if let Some((at, lag)) = metrics.sampled().answered {
        text.gauge(
            "samovar_io_loop_lag_seconds",
            "Response time of the slowest I/O thread at the last probe.",
        )
        .put(&[], lag.as_secs_f64());
        text.gauge(
            "samovar_io_loop_answered_age_seconds",
            "Time since all I/O threads last responded to a probe.",
        )
        .put(&[], at.elapsed().as_secs_f64());
    }
    let threads = thread_times();
    let mut family = text.counter(
        "samovar_io_thread_busy_seconds_total",
        "CPU time of an I/O thread.",
    );
    for thread in threads.iter().filter(|thread| thread.is_io()) {
        family.put(&[("thread", &thread.name)], thread.busy_s);
    }
    let mut family = text.counter(
        "samovar_io_thread_waited_seconds_total",
        "Time an I/O thread was runnable but had no CPU.",
    );
    for thread in threads.iter().filter(|thread| thread.is_io()) {
        family.put(&[("thread", &thread.name)], thread.waited_s);
    }
}

/// The standard `process_` metrics of Prometheus client libraries.
fn process(text: &mut Text) {
    let process = Process::now();
    text.counter(
        "process_cpu_seconds_total",
        "Total user and system CPU time spent in seconds.",
    )
    .put(&[], process.cpu_s);
    text.gauge(
        "process_resident_memory_bytes",
        "Resident memory size in bytes.",
    )
    .put(&[], process.resident_len);
    text.gauge(
        "process_virtual_memory_bytes",
        "Virtual memory size in bytes.",
    )
    .put(&[], process.virtual_len);
    text.gauge("process_open_fds", "Number of open file descriptors.")
        .put(&[], process.open_fds);
    if let Some(max_fds) = process.max_fds {
        text.gauge(
            "process_max_fds",
            "Maximum number of open file descriptors.",
        )
        .put(&[], max_fds);
    }
    text.gauge("process_threads", "Number of OS threads in the process.")
        .put(&[], process.thread_count);
    text.gauge(
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.",
    )
    .put(&[], process.started_s);
}

fn top_paths(text: &mut Text, metrics: &Metrics) {
    let (served, bytes, missing) = {
        let sampled = metrics.sampled();
        let top = |sketch| sampled.top(sketch);
        (
            top(&sampled.served),
            top(&sampled.bytes),
            top(&sampled.missing),
        )
    };
    let families: [(&'static str, &str, Vec<TopPath>); 3] = [
        (
            "samovar_top_served_requests",
            "Estimated requests for the narinfos requested most, since the start.",
            served,
        ),
        (
            "samovar_top_served_bytes",
            "Estimated bytes of the NARs with most bytes sent, since the start.",
            bytes,
        ),
        (
            "samovar_top_missing_requests",
            "Estimated requests for the missing paths requested most, since the start.",
            missing,
        ),
    ];
    for (name, help, paths) in families {
        let mut family = text.gauge(name, help);
        for path in paths {
            let name = path.name.as_deref().unwrap_or("");
            family.put(&[("hash", &path.hash_part), ("name", name)], path.count);
        }
    }
}
