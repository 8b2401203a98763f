//! Assembles a [`Status`] from the metrics.

use std::time::{Duration, Instant, SystemTime};

use crate::by_cache::ByClass;
use crate::class::{Class, StatusClass};
use crate::event::{Observer, ServedCache};
use crate::event_count::EventCount;
use crate::meter::Sums;
use crate::process::Process;
use crate::registry::{Metrics, MetricsConfig};
use crate::sampled::{Sampled, totals_of};
use crate::status::{
    CacheStatus, LoadStatus, ServedCacheStatus, ServerStatus, Status, StoreStatus, VERSION,
};

/// Maximum number of transfers in a status.
const TRANSFER_COUNT_MAX: usize = 50;
/// Maximum number of lines of the error log in a status.
pub(crate) const ERROR_COUNT_MAX: usize = 50;
/// The server counts as not alive if the I/O threads have not answered for this long.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(5);
/// The store counts as unreadable if it has not answered for this long.
const STORE_TIME: Duration = Duration::from_secs(5);

/// Converts a time to milliseconds since 1970.
pub(crate) fn time_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

/// Adds the hits answered by I/O threads to a cache's status. They are taken from the request
/// counters, because counting them in the cache again would cost time.
pub(crate) fn with_hits(mut cache: CacheStatus, sums: &Sums) -> CacheStatus {
    match &*cache.name {
        "narinfos" => {
            let found_count = sums
                .counts_of(Class::Narinfo)
                .of_status(StatusClass::Success);
            cache.hit_count = sums.of(Class::Narinfo).inline;
            cache.miss_count = found_count.saturating_sub(cache.hit_count);
        }
        "small_nars" => cache.hit_count = sums.of(Class::Nar).inline,
        _ => {}
    }
    cache
}

fn served((cache, counts): &(ServedCache, ByClass)) -> ServedCacheStatus {
    ServedCacheStatus {
        name: cache.name.clone(),
        path_prefix: cache.path_prefix.clone(),
        totals: totals_of(counts),
    }
}

fn load(metrics: &Metrics, sampled: &Sampled) -> LoadStatus {
    let Some(load) = metrics.probe().map(|probe| probe.load()) else {
        return LoadStatus::default();
    };
    LoadStatus {
        connection_count: load.connection_count as u64,
        connection_count_max: load.connection_count_max as u64,
        running_count: load.running_count as u64,
        worker_count: load.worker_count as u64,
        worker_count_max: load.worker_count_max as u64,
        queued_count: load.queued_count as u64,
        body_memory_len: load.body_memory_len as u64,
        body_memory_len_max: load.body_memory_len_max as u64,
        loop_lag_s: sampled.answered.map(|(_, lag)| lag.as_secs_f64()),
        io_threads: sampled.io_threads.clone(),
    }
}

impl Metrics {
    /// Takes a snapshot of all metrics.
    #[must_use]
    pub fn status(&self) -> Status {
        let now = Instant::now();
        let sums = self.meter.sums();
        let (transfers, transfer_count) = self.transfers.list(TRANSFER_COUNT_MAX);
        let site = self.probe().map(|probe| probe.site().status());
        let site = site.unwrap_or_default();
        let caches = site.caches.into_iter();
        let not_ready = self.not_ready();
        let default = MetricsConfig::default();
        let config = self.config.get().unwrap_or(&default);
        let sampled = self.sampled();
        let mut recent_errors = self.recent_errors();
        recent_errors.truncate(ERROR_COUNT_MAX);
        let events = self.counts().into_iter();
        let event = |(name, count): (&str, u64)| EventCount {
            name: name.to_owned(),
            count,
        };
        Status {
            version: VERSION,
            time_ms: time_ms(SystemTime::now()),
            server: ServerStatus {
                name: config.name.clone(),
                version: config.version.clone(),
                started_ms: time_ms(self.started_at),
                uptime_s: now.saturating_duration_since(self.started).as_secs_f64(),
                listeners: config.listeners.clone(),
                pages_url: site.pages_url,
                is_ready: not_ready.is_empty(),
                not_ready,
            },
            now: sampled.rates(&sums, now),
            latencies: sampled.latencies(&sums),
            totals: totals_of(&sums.by_cache.all),
            history: sampled.history(),
            top_served: sampled.top(&sampled.served),
            top_bytes: sampled.top(&sampled.bytes),
            top_missing: sampled.top(&sampled.missing),
            transfers,
            transfer_count,
            recent_errors,
            store: StoreStatus {
                epoch_age_s: sampled.epoch_age(now).as_secs_f64(),
                error: sampled.store_error(now),
                ..site.store
            },
            storage: site.storage,
            upstreams: site.upstreams,
            caches: caches.map(|cache| with_hits(cache, &sums)).collect(),
            served_caches: sums.by_cache.caches.iter().map(served).collect(),
            events: events.filter(|(_, count)| *count > 0).map(event).collect(),
            load: load(self, &sampled),
            process: Process::now().status,
            warnings: config.warnings.clone(),
        }
    }

    /// Whether all I/O threads replied to a liveness probe within the last 5 s.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let since = |at: Instant| Instant::now().saturating_duration_since(at);
        self.sampled()
            .answered
            .is_some_and(|(at, _)| since(at) < ANSWER_TIME)
    }

    /// Returns the reasons why the server is not ready; empty if it is.
    #[must_use]
    pub fn not_ready(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        match self.probe() {
            Some(probe) if !probe.is_draining() => reasons.extend(probe.site().not_ready()),
            _ => reasons.push("the server ends".to_owned()),
        }
        if !self.is_alive() {
            reasons.push("the I/O threads do not answer".to_owned());
        }
        reasons.extend(self.sampled().store_error(Instant::now()));
        reasons
    }
}

impl Sampled {
    /// Returns the reason why the store cannot be read; `None` if it can be read.
    fn store_error(&self, now: Instant) -> Option<String> {
        match &self.store {
            None => Some("the store was not asked yet".to_owned()),
            Some((at, _)) if now.saturating_duration_since(*at) > STORE_TIME => {
                Some("the store does not answer".to_owned())
            }
            Some((_, Err(error))) => Some(format!("the store cannot be read: {error}")),
            Some((_, Ok(()))) => None,
        }
    }
}
