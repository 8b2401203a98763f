//! Every family of `/metrics`. `docs/book/monitoring.md` says what they are good for.

use std::time::Instant;

use crate::buckets::EXPOSED;
use crate::class::{Class, MethodClass, Protocol, StatusClass};
use crate::meter::{ClassSums, Sums};
use crate::overview::with_hits;
use crate::process::{Process, thread_times};
use crate::registry::{Metrics, MetricsConfig};
use crate::status::{CacheFigures, ScrubStatus, TopPath};
use crate::text::Text;

#[expect(clippy::cast_precision_loss, reason = "a sum of times")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

pub(crate) fn exposition(metrics: &Metrics) -> String {
    let mut text = Text::default();
    let sums = metrics.meter.sums();
    let default = MetricsConfig::default();
    let config = metrics.config.get().unwrap_or(&default);
    text.gauge("samovar_info", "The program that answers; always 1.")
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

/// The classes that anything was asked of; all of them would be a lot of zeros.
fn classes(sums: &Sums) -> impl Iterator<Item = (&'static str, &ClassSums)> + Clone {
    let named = Class::ALL.into_iter().map(|(_, name)| name);
    named
        .zip(&sums.classes)
        .filter(|(_, class)| class.request_count() > 0)
}

fn requests(text: &mut Text, sums: &Sums) {
    let mut family = text.counter(
        "samovar_http_requests_total",
        "Requests that were answered, by what they were about, method and kind of status.",
    );
    for (route, class) in classes(sums) {
        for ((_, method), row) in MethodClass::ALL.into_iter().zip(class.requests) {
            for ((status, name), count) in StatusClass::ALL.into_iter().zip(row) {
                // Those of 404 are of 4xx, and the sum of a label is the sum of all.
                let is_part = matches!(status, StatusClass::Absent);
                let is_whole = matches!(status, StatusClass::ClientError);
                let absent = row.get(StatusClass::Absent as usize).copied().unwrap_or(0);
                let count = if is_whole { count + absent } else { count };
                if count > 0 && !is_part {
                    let labels = [("route", route), ("method", method), ("status", name)];
                    family.put(&labels, count);
                }
            }
        }
    }
    let mut family = text.histogram(
        "samovar_http_request_duration_seconds",
        "From the moment a request was there to the end of its answer.",
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
        "Bytes of bodies that were handed to the kernel, by what became of the answer.",
    );
    for (route, class) in classes(sums) {
        for (outcome, len) in [
            ("complete", class.whole_len),
            ("client-gone", class.left_len),
            ("cut", class.cut_len),
        ] {
            family.put(&[("route", route), ("outcome", outcome)], len);
        }
    }
    let mut family = text.counter(
        "samovar_http_responses_broken_total",
        "Answers that are not complete: their client is gone, or they were cut off here.",
    );
    for (route, class) in classes(sums) {
        for (outcome, count) in [("client-gone", class.left), ("cut", class.cut)] {
            family.put(&[("route", route), ("outcome", outcome)], count);
        }
    }
    let mut family = text.counter(
        "samovar_http_protocol_requests_total",
        "Requests that were answered, by protocol, and whether over TLS.",
    );
    for ((_, protocol), counts) in Protocol::ALL.into_iter().zip(sums.protocols) {
        for (tls, count) in ["no", "yes"].into_iter().zip(counts) {
            family.put(&[("protocol", protocol), ("tls", tls)], count);
        }
    }
}

fn narinfos(text: &mut Text, sums: &Sums) {
    let of = |status| {
        let class = sums.of(Class::Narinfo);
        class.map_or(0, |class| class.of_status(status))
    };
    text.counter(
        "samovar_narinfo_hits_total",
        "Narinfos that were asked for and are there.",
    )
    .put(&[], of(StatusClass::Success));
    text.counter(
        "samovar_narinfo_misses_total",
        "Narinfos that were asked for and are not there.",
    )
    .put(&[], of(StatusClass::Absent));
}

fn store(text: &mut Text, metrics: &Metrics, sums: &Sums) {
    let figures = metrics.probe().map(|probe| probe.figures());
    let figures = figures.unwrap_or_default();
    let (age, epoch_count) = {
        let sampled = metrics.sampled();
        (sampled.epoch_age(Instant::now()), sampled.epoch_count)
    };
    let store = figures.store;
    text.gauge(
        "samovar_catalog_paths",
        "Paths in the catalog, those deleted since they were loaded included.",
    )
    .put(&[], store.path_count.unwrap_or(0));
    text.gauge("samovar_catalog_bytes", "Memory of the catalog.")
        .put(&[], store.catalog_len);
    if let Some(load_s) = store.load_s {
        text.gauge(
            "samovar_catalog_load_seconds",
            "How long it took to load all paths, when that was last done.",
        )
        .put(&[], load_s);
    }
    text.gauge(
        "samovar_store_left_to_daemon",
        "Whether the daemon answers, because the database cannot be read here: 1, or 0.",
    )
    .put(&[], u8::from(store.is_left_to_daemon));
    text.gauge(
        "samovar_catalog_age_seconds",
        "How long the store has been in the state that is served from.",
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
        "Whether it would answer well: 1, or 0. /readyz says why not.",
    )
    .put(&[], u8::from(not_ready.is_empty()));
    let mut family = text.counter(
        "samovar_store_errors_total",
        "How often the store began to fail, by why.",
    );
    for (kind, count) in metrics.store_errors.counts() {
        family.put(&[("kind", kind)], count);
    }
    text.gauge(
        "samovar_damaged_paths",
        "Paths that are kept out because their files are not what they should be.",
    )
    .put(&[], store.damaged_count);
    if let Some(status) = &store.scrub {
        scrub(text, status);
    }
    let caches: Vec<CacheFigures> = figures
        .caches
        .into_iter()
        .map(|cache| with_hits(cache, sums))
        .collect();
    caches_of(text, &caches);
}

/// Verifying what nobody asks for.
fn scrub(text: &mut Text, scrub: &ScrubStatus) {
    for (name, help, value) in [
        (
            "samovar_scrub_paths",
            "Paths of this round of verifying what nobody asks for.",
            scrub.path_count,
        ),
        (
            "samovar_scrub_paths_done",
            "Paths that this round has passed.",
            scrub.paths_done,
        ),
        ("samovar_scrub_bytes", "Bytes of this round.", scrub.len),
        (
            "samovar_scrub_bytes_done",
            "Bytes that this round has passed, read or verified of late for others.",
            scrub.len_done,
        ),
        (
            "samovar_scrub_damaged_paths",
            "Damaged paths that this round has found.",
            scrub.damaged_count,
        ),
        (
            "samovar_scrub_unread_paths",
            "Paths that could not be read in this round.",
            scrub.unread_count,
        ),
    ] {
        text.gauge(name, help).put(&[], value);
    }
    text.counter("samovar_scrub_rounds_total", "Rounds that ended.")
        .put(&[], scrub.round_count);
    text.counter(
        "samovar_scrub_read_bytes_total",
        "Bytes that were read in all rounds.",
    )
    .put(&[], scrub.read_len);
}

fn caches_of(text: &mut Text, caches: &[CacheFigures]) {
    type Figure = fn(&CacheFigures) -> u64;
    let gauges: [(&'static str, &str, Figure); 3] = [
        ("samovar_cache_entries", "What is kept.", |cache| {
            cache.entry_count
        }),
        ("samovar_cache_bytes", "How much that takes.", |cache| {
            cache.len
        }),
        (
            "samovar_cache_max_bytes",
            "How much it may take.",
            |cache| cache.len_max,
        ),
    ];
    for (name, help, figure) in gauges {
        let mut family = text.gauge(name, help);
        for cache in caches {
            family.put(&[("cache", &cache.name)], figure(cache));
        }
    }
    let counters: [(&'static str, &str, Figure); 3] = [
        (
            "samovar_cache_hits_total",
            "How often what was asked for was kept.",
            |cache| cache.hit_count,
        ),
        (
            "samovar_cache_misses_total",
            "How often it was not.",
            |cache| cache.miss_count,
        ),
        (
            "samovar_cache_evictions_total",
            "What made room for others.",
            |cache| cache.eviction_count,
        ),
    ];
    for (name, help, figure) in counters {
        let mut family = text.counter(name, help);
        for cache in caches {
            family.put(&[("cache", &cache.name)], figure(cache));
        }
    }
}

/// All of them from the start: what first happens later would be no increase.
fn events(text: &mut Text, metrics: &Metrics) {
    let mut family = text.counter(
        "samovar_events_total",
        "How often it has happened, by the name that the error log has for it.",
    );
    for (name, count) in metrics.events() {
        family.put(&[("event", name)], count);
    }
}

fn load(text: &mut Text, metrics: &Metrics) {
    text.gauge("samovar_transfers", "NARs on their way that are not small.")
        .put(&[], metrics.transfers.count());
    if let Some(load) = metrics.probe().and_then(|probe| probe.load()) {
        text.gauge("samovar_connections", "Connections that are open.")
            .put(&[], load.connection_count);
        text.gauge("samovar_connections_max", "How many there may be.")
            .put(&[], load.connection_count_max);
        text.counter(
            "samovar_connections_accepted_total",
            "Connections that were accepted, those that were refused at once included.",
        )
        .put(&[], load.accepted_count);
        text.gauge("samovar_tls_handshakes", "TLS handshakes under way.")
            .put(&[], load.handshake_count);
        text.gauge("samovar_workers_busy", "Workers that run.")
            .put(&[], load.running_count);
        text.gauge(
            "samovar_workers_waiting",
            "Handlers that wait for their client in the middle of a body.",
        )
        .put(&[], load.waiting_count);
        text.gauge(
            "samovar_workers_max",
            "Workers that may run at once, those for what computes included.",
        )
        .put(&[], load.worker_count_max);
        text.gauge(
            "samovar_workers_queued",
            "Requests and answers that wait for a worker.",
        )
        .put(&[], load.queued_count);
        text.gauge("samovar_body_memory_bytes", "Memory for bodies under way.")
            .put(&[], load.body_memory_len);
        text.gauge(
            "samovar_body_memory_max_bytes",
            "How much that may be, before each client has a little.",
        )
        .put(&[], load.body_memory_len_max);
    }
    if let Some((at, lag)) = metrics.sampled().answered {
        text.gauge(
            "samovar_io_loop_lag_seconds",
            "How long the slowest I/O thread took to answer, when last asked.",
        )
        .put(&[], lag.as_secs_f64());
        text.gauge(
            "samovar_io_loop_answered_age_seconds",
            "For how long the I/O threads have not answered.",
        )
        .put(&[], at.elapsed().as_secs_f64());
    }
    let threads = thread_times();
    let mut family = text.counter(
        "samovar_io_thread_busy_seconds_total",
        "Processor time of an I/O thread.",
    );
    for thread in threads.iter().filter(|thread| thread.is_io()) {
        family.put(&[("thread", &thread.name)], thread.busy_s);
    }
    let mut family = text.counter(
        "samovar_io_thread_waited_seconds_total",
        "Time that an I/O thread had something to do and no processor.",
    );
    for thread in threads.iter().filter(|thread| thread.is_io()) {
        family.put(&[("thread", &thread.name)], thread.waited_s);
    }
}

/// Under the names that every program has for them.
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
            "Estimated requests for the narinfos most asked for, since the start.",
            served,
        ),
        (
            "samovar_top_served_bytes",
            "Estimated bytes of the NARs that most bytes were sent of, since the start.",
            bytes,
        ),
        (
            "samovar_top_missing_requests",
            "Estimated requests for what is most asked for and not there, since the start.",
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
