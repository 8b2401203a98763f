//! The metric families of `/metrics`. `docs/book/monitoring.md` describes their use.

use std::time::{Instant, UNIX_EPOCH};

use samovar_http::tls::TlsConfig;

use crate::buckets::exposed;
use crate::by_cache::ByClass;
use crate::class::{Class, MethodClass, Outcome, Protocol, StatusClass};
use crate::event::Observer;
use crate::meter::Sums;
use crate::node;
use crate::oidc;
use crate::overview::with_hits;
use crate::process::{Process, thread_times};
use crate::registry::{Metrics, MetricsConfig};
use crate::remote;
use crate::sampled::totals_of;
use crate::status::{CacheStatus, ScrubStatus};
use crate::storage;
use crate::text::Text;
use crate::upstream;

/// All metric families, one line each: name, type and help.
const FAMILIES: &str = concat!(
    "
samovar_info gauge Name and version of the server; always 1.
samovar_tls_certificate_expiry_timestamp_seconds gauge End of the validity of each TLS \
    certificate, by its first name, since unix epoch in seconds.
samovar_http_requests_total counter Answered requests by cache, route, method and status class.
samovar_http_request_duration_seconds histogram Time from the end of the request to the end of \
    the response.
samovar_http_response_body_bytes_total counter Bytes of response bodies passed to the kernel, by \
    cache and outcome of the response.
samovar_http_responses_aborted_total counter Incomplete responses, by cache: aborted by the \
    client or by the server.
samovar_http_requests_refused_total counter Requests refused with a 4xx status other than 404, by \
    cache.
samovar_http_protocol_requests_total counter Answered requests by protocol and use of TLS.
samovar_narinfo_hits_total counter Requests for narinfos that were found, by cache.
samovar_narinfo_misses_total counter Requests for narinfos that were not found, by cache.
samovar_catalog_paths gauge Paths in the catalog, including paths deleted since it was loaded; 0 \
    before requests, or the end of a scrub round, have needed it.
samovar_catalog_bytes gauge Memory used by the catalog.
samovar_catalog_load_seconds gauge Duration of the last complete load of the catalog.
samovar_store_daemon_fallback gauge 1 if nix-daemon is queried because the database cannot be \
    read, else 0.
samovar_catalog_age_seconds gauge Time since the served state of the store was first seen.
samovar_catalog_reloads_total counter States of the store that were loaded.
samovar_ready gauge 1 if the server can answer requests, else 0; /readyz gives the reasons.
samovar_store_errors_total counter Store outages by kind of error.
samovar_quarantined_paths gauge Quarantined paths: their files do not match their registration.
samovar_scrub_paths gauge Paths of the current scrub.
samovar_scrub_paths_done gauge Paths of the current scrub that are done.
samovar_scrub_bytes gauge Bytes of the current scrub.
samovar_scrub_bytes_done gauge Bytes of the current scrub that are done: read, or verified recently.
samovar_scrub_quarantined_paths gauge Paths that the current scrub has quarantined.
samovar_scrub_unreadable_paths gauge Paths that the current scrub could not read.
samovar_scrub_rounds_total counter Completed scrubs.
samovar_scrub_read_bytes_total counter Bytes read by all scrubs.
samovar_cache_entries gauge Entries of the cache.
samovar_cache_bytes gauge Size of the cache.
samovar_cache_max_bytes gauge Maximum size of the cache.
samovar_cache_hits_total counter Requests answered from the cache.
samovar_cache_misses_total counter Requests not answered from the cache.
samovar_cache_evictions_total counter Entries evicted from the cache.
samovar_events_total counter Events by name; the error log uses the same names.
samovar_transfers gauge NARs being sent, without small ones.
samovar_connections gauge Open connections.
samovar_connections_max gauge Limit of open connections.
samovar_connections_accepted_total counter Accepted connections, including connections refused at \
    the limit.
samovar_tls_handshakes gauge TLS handshakes in progress.
samovar_workers_busy gauge Workers that run a job.
samovar_workers_waiting gauge Handlers that wait for their client in the middle of a body.
samovar_workers_max gauge Worker slots of all lanes.
samovar_workers_queued gauge Jobs that wait for a worker.
samovar_body_memory_bytes gauge Memory used by bodies in progress.
samovar_body_memory_max_bytes gauge Memory budget of bodies, beside a minimum per client.
samovar_io_loop_lag_seconds gauge Response time of the slowest I/O thread at the last probe.
samovar_io_loop_answered_age_seconds gauge Time since all I/O threads last responded to a probe.
samovar_io_thread_busy_seconds_total counter CPU time of an I/O thread.
samovar_io_thread_waited_seconds_total counter Time an I/O thread was runnable but had no CPU.
process_cpu_seconds_total counter Total user and system CPU time spent in seconds.
process_resident_memory_bytes gauge Resident memory size in bytes.
process_virtual_memory_bytes gauge Virtual memory size in bytes.
process_open_fds gauge Number of open file descriptors.
process_max_fds gauge Maximum number of open file descriptors.
process_threads gauge Number of OS threads in the process.
process_start_time_seconds gauge Start time of the process since unix epoch in seconds.
samovar_top_served_requests gauge Estimated requests for the narinfos requested most, since the \
    start.
samovar_top_served_bytes gauge Estimated bytes of the NARs with most bytes sent, since the start.
samovar_top_missing_requests gauge Estimated requests for the missing paths requested most, since \
    the start.
",
    storage::families!(),
    remote::families!(),
    node::families!(),
    oidc::families!(),
    upstream::families!()
);

#[expect(clippy::cast_precision_loss, reason = "a sum of durations")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl Metrics {
    /// Writes all metrics in Prometheus text format.
    #[must_use]
    pub fn exposition(&self) -> String {
        let mut text = Text::new(FAMILIES);
        let sums = self.meter.sums();
        let default = MetricsConfig::default();
        let config = self.config.get().unwrap_or(&default);
        let labels = [("name", &*config.name), ("version", &*config.version)];
        text.family("samovar_info").put(&labels, 1);
        if let Some(tls) = &config.tls {
            expiry(&mut text, tls);
        }
        requests(&mut text, &sums);
        narinfos(&mut text, &sums);
        store(&mut text, self, &sums);
        events(&mut text, self);
        load(&mut text, self);
        process(&mut text);
        if config.has_top_paths {
            top_paths(&mut text, self);
        }
        text.into_string()
    }
}

/// Writes the times at which the certificates in use expire. A time that cannot be parsed is left
/// out.
fn expiry(text: &mut Text, tls: &TlsConfig) {
    let mut family = text.family("samovar_tls_certificate_expiry_timestamp_seconds");
    for certificate in tls.certificates() {
        // No two certificates have the same name, and only one may have none.
        let name = certificate.names.first().map_or("", |name| &**name);
        let end = certificate
            .not_after
            .map(|end| end.duration_since(UNIX_EPOCH));
        if let Some(Ok(since)) = end {
            family.put(&[("certificate", name)], since.as_secs());
        }
    }
}

/// Returns the counts of each cache with its name, and the counts of requests below no cache.
fn caches(sums: &Sums) -> impl Iterator<Item = (Option<&str>, &ByClass)> {
    let caches = sums.by_cache.caches.iter();
    let caches = caches.map(|(cache, counts)| (Some(&*cache.name), counts));
    caches.chain([(None, &sums.by_cache.elsewhere)])
}

/// Returns the labels of a sample of a cache.
fn of_cache<'a>(cache: Option<&'a str>, labels: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let cache = cache.map(|name| ("cache", name));
    cache.into_iter().chain(labels.iter().copied()).collect()
}

// Long: one loop per metric family.
fn requests(text: &mut Text, sums: &Sums) {
    let mut family = text.family("samovar_http_requests_total");
    for (cache, counts) in caches(sums) {
        for (route, class) in counts.classes() {
            for (method, mut row) in MethodClass::NAMES.into_iter().zip(class.requests) {
                // 404 has its own class here, but is exposed as part of 4xx.
                row[StatusClass::ClientError as usize] += row[StatusClass::Absent as usize];
                row[StatusClass::Absent as usize] = 0;
                for (name, count) in StatusClass::NAMES.into_iter().zip(row) {
                    if count > 0 {
                        let labels = [("route", route), ("method", method), ("status", name)];
                        family.put(&of_cache(cache, &labels), count);
                    }
                }
            }
        }
    }
    let mut family = text.family("samovar_http_request_duration_seconds");
    let classes = Class::NAMES.into_iter().zip(&sums.classes);
    let classes = classes.filter(|(_, class)| class.durations.count() > 0);
    for (route, class) in classes {
        let durations = &class.durations;
        for (bound_ns, bound) in exposed() {
            let labels = [("route", route), ("le", bound)];
            family.put_as("_bucket", &labels, durations.count_up_to(bound_ns));
        }
        let count = durations.count();
        family
            .put_as("_bucket", &[("route", route), ("le", "+Inf")], count)
            .put_as("_sum", &[("route", route)], seconds(durations.sum_ns))
            .put_as("_count", &[("route", route)], count);
    }
    let mut family = text.family("samovar_http_response_body_bytes_total");
    for (cache, counts) in caches(sums) {
        for (route, class) in counts.classes() {
            for (outcome, len) in Outcome::NAMES.into_iter().zip(class.body_lens) {
                let labels = [("route", route), ("outcome", outcome)];
                family.put(&of_cache(cache, &labels), len);
            }
        }
    }
    let mut family = text.family("samovar_http_responses_aborted_total");
    for (cache, counts) in caches(sums) {
        for (route, class) in counts.classes() {
            // Skip complete responses, which are the first outcome.
            for (outcome, count) in Outcome::NAMES.into_iter().zip(class.aborted).skip(1) {
                let labels = [("route", route), ("outcome", outcome)];
                family.put(&of_cache(cache, &labels), count);
            }
        }
    }
    let mut family = text.family("samovar_http_requests_refused_total");
    for (cache, counts) in &sums.by_cache.caches {
        family.put(&[("cache", &cache.name)], totals_of(counts).refused_count);
    }
    let mut family = text.family("samovar_http_protocol_requests_total");
    for (protocol, counts) in Protocol::NAMES.into_iter().zip(sums.protocols) {
        for (tls, count) in ["no", "yes"].into_iter().zip(counts) {
            family.put(&[("protocol", protocol), ("tls", tls)], count);
        }
    }
}

fn narinfos(text: &mut Text, sums: &Sums) {
    for (name, status) in [
        ("samovar_narinfo_hits_total", StatusClass::Success),
        ("samovar_narinfo_misses_total", StatusClass::Absent),
    ] {
        let mut family = text.family(name);
        for (cache, counts) in &sums.by_cache.caches {
            let count = counts.of(Class::Narinfo).of_status(status);
            family.put(&[("cache", &cache.name)], count);
        }
    }
}

fn store(text: &mut Text, metrics: &Metrics, sums: &Sums) {
    let site = metrics.probe().map(|probe| probe.site().status());
    let site = site.unwrap_or_default();
    let (age, epoch_count) = {
        let sampled = metrics.sampled();
        (sampled.epoch_age(Instant::now()), sampled.epoch_count)
    };
    let store = site.store;
    text.put("samovar_catalog_paths", store.path_count.unwrap_or(0));
    text.put("samovar_catalog_bytes", store.catalog_len);
    if let Some(load_s) = store.load_s {
        text.put("samovar_catalog_load_seconds", load_s);
    }
    let uses_daemon = u8::from(store.uses_daemon);
    text.put("samovar_store_daemon_fallback", uses_daemon);
    text.put("samovar_catalog_age_seconds", age.as_secs_f64());
    text.put("samovar_catalog_reloads_total", epoch_count);
    let is_ready = u8::from(metrics.not_ready().is_empty());
    text.put("samovar_ready", is_ready);
    let mut family = text.family("samovar_store_errors_total");
    for (kind, count) in metrics.store_errors.counts() {
        family.put(&[("kind", kind)], count);
    }
    text.put("samovar_quarantined_paths", store.quarantined_count);
    if let Some(status) = &store.scrub {
        scrub(text, status);
    }
    if let Some(storage) = &site.storage {
        storage::expose(text, storage);
    }
    upstream::expose(text, &site.upstreams);
    let caches = site.caches.into_iter();
    let caches: Vec<_> = caches.map(|cache| with_hits(cache, sums)).collect();
    caches_of(text, &caches);
}

/// Writes the metrics of the background verification.
fn scrub(text: &mut Text, scrub: &ScrubStatus) {
    text.put("samovar_scrub_paths", scrub.path_count);
    text.put("samovar_scrub_paths_done", scrub.paths_done);
    text.put("samovar_scrub_bytes", scrub.len);
    text.put("samovar_scrub_bytes_done", scrub.len_done);
    text.put("samovar_scrub_quarantined_paths", scrub.quarantined_count);
    text.put("samovar_scrub_unreadable_paths", scrub.unreadable_count);
    text.put("samovar_scrub_rounds_total", scrub.round_count);
    text.put("samovar_scrub_read_bytes_total", scrub.read_len);
}

fn caches_of(text: &mut Text, caches: &[CacheStatus]) {
    let mut put = |name, value: fn(&CacheStatus) -> u64| {
        let mut family = text.family(name);
        for cache in caches {
            family.put(&[("cache", &cache.name)], value(cache));
        }
    };
    put("samovar_cache_entries", |cache| cache.entry_count);
    put("samovar_cache_bytes", |cache| cache.len);
    put("samovar_cache_max_bytes", |cache| cache.len_max);
    put("samovar_cache_hits_total", |cache| cache.hit_count);
    put("samovar_cache_misses_total", |cache| cache.miss_count);
    put("samovar_cache_evictions_total", |cache| {
        cache.eviction_count
    });
}

/// Writes all counters of events, also those at zero: Prometheus sees no increase in a series that
/// first appears with its first event.
fn events(text: &mut Text, metrics: &Metrics) {
    let mut family = text.family("samovar_events_total");
    for (name, count) in metrics.counts() {
        family.put(&[("event", name)], count);
    }
}

fn load(text: &mut Text, metrics: &Metrics) {
    text.put("samovar_transfers", metrics.transfers.count());
    if let Some(load) = metrics.probe().map(|probe| probe.load()) {
        text.put("samovar_connections", load.connection_count);
        text.put("samovar_connections_max", load.connection_count_max);
        text.put("samovar_connections_accepted_total", load.accepted_count);
        text.put("samovar_tls_handshakes", load.handshake_count);
        text.put("samovar_workers_busy", load.running_count);
        text.put("samovar_workers_waiting", load.waiting_count);
        text.put("samovar_workers_max", load.worker_count_max);
        text.put("samovar_workers_queued", load.queued_count);
        text.put("samovar_body_memory_bytes", load.body_memory_len);
        text.put("samovar_body_memory_max_bytes", load.body_memory_len_max);
    }
    if let Some((at, lag)) = metrics.sampled().answered {
        text.put("samovar_io_loop_lag_seconds", lag.as_secs_f64());
        let age_s = at.elapsed().as_secs_f64();
        text.put("samovar_io_loop_answered_age_seconds", age_s);
    }
    let threads = thread_times();
    let io_threads = || threads.iter().filter(|thread| thread.is_io());
    let mut family = text.family("samovar_io_thread_busy_seconds_total");
    for thread in io_threads() {
        family.put(&[("thread", &thread.name)], thread.busy_s);
    }
    let mut family = text.family("samovar_io_thread_waited_seconds_total");
    for thread in io_threads() {
        family.put(&[("thread", &thread.name)], thread.waited_s);
    }
}

/// Writes the standard `process_` metrics of Prometheus client libraries.
fn process(text: &mut Text) {
    let process = Process::now();
    let status = &process.status;
    text.put("process_cpu_seconds_total", status.cpu_s);
    text.put("process_resident_memory_bytes", status.resident_len);
    text.put("process_virtual_memory_bytes", process.virtual_len);
    text.put("process_open_fds", status.open_fds);
    if process.limits_fds {
        text.put("process_max_fds", status.max_fds);
    }
    text.put("process_threads", status.thread_count);
    text.put("process_start_time_seconds", process.started_s);
}

fn top_paths(text: &mut Text, metrics: &Metrics) {
    let families = {
        let sampled = metrics.sampled();
        [
            ("samovar_top_served_requests", sampled.top(&sampled.served)),
            ("samovar_top_served_bytes", sampled.top(&sampled.bytes)),
            (
                "samovar_top_missing_requests",
                sampled.top(&sampled.missing),
            ),
        ]
    };
    for (name, paths) in families {
        let mut family = text.family(name);
        for path in paths {
            let name = path.name.as_deref().unwrap_or("");
            family.put(&[("hash", &path.hash_part), ("name", name)], path.count);
        }
    }
}
