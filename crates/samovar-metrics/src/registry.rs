//! Counts the exchanges and events of a server since its start.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Instant, SystemTime};

use samovar_http::tls::TlsConfig;
use samovar_http::{Exchange, Incident, Server, Service};
use samovar_store::StoreError;

use crate::event::{Event, Observer, ServedCache};
use crate::meter::Meter;
use crate::probe::{Monitored, Probe};
use crate::sampled::{Sampled, totals_of};
use crate::status::{RecentError, Totals};
use crate::transfers::Transfers;

/// Facts about a server that are published with its metrics.
#[derive(Debug, Clone, Default)]
pub struct MetricsConfig {
    /// Name of the program.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// URLs and sockets on which the server listens.
    pub listeners: Vec<String>,
    /// Whether top paths become labels in `/metrics`. They are 60 series at a time, but other ones
    /// after a while, so the number of series in Prometheus grows without limit.
    pub has_top_paths: bool,
    /// Warnings about the configuration.
    pub warnings: Vec<String>,
    /// The certificate of the server; `None` without TLS.
    pub tls: Option<TlsConfig>,
}

/// An observer that counts exchanges and events and passes them on to another observer.
pub struct Metrics {
    pub(crate) config: OnceLock<MetricsConfig>,
    inner: Arc<dyn Observer>,
    pub(crate) meter: Meter,
    pub(crate) transfers: Arc<Transfers>,
    pub(crate) store_errors: StoreErrors,
    pub(crate) probe: OnceLock<Weak<dyn Probe>>,
    pub(crate) sampled: Mutex<Sampled>,
    pub(crate) started: Instant,
    pub(crate) started_at: SystemTime,
}

/// Numbers of store outages, by kind of error.
#[derive(Debug, Default)]
pub(crate) struct StoreErrors([AtomicU64; STORE_ERROR_KINDS.len()]);

const STORE_ERROR_KINDS: [&str; 7] = [
    "busy",
    "unavailable",
    "corrupt",
    "protocol",
    "refused",
    "io",
    "other",
];

impl StoreErrors {
    fn add(&self, error: StoreError) {
        let index: usize = match error {
            StoreError::Busy => 0,
            StoreError::Unavailable(_) => 1,
            StoreError::Corrupt(_) => 2,
            StoreError::Protocol(_) => 3,
            StoreError::Refused => 4,
            StoreError::Io { .. } => 5,
            _ => 6,
        };
        self.0[index].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        STORE_ERROR_KINDS.into_iter().zip(counts)
    }
}

impl Metrics {
    /// Creates metrics that pass all exchanges and events on to `inner`.
    pub fn new(inner: Arc<dyn Observer>) -> Self {
        Self {
            config: OnceLock::new(),
            inner,
            meter: Meter::new(),
            transfers: Arc::default(),
            store_errors: StoreErrors::default(),
            probe: OnceLock::new(),
            sampled: Mutex::default(),
            started: Instant::now(),
            started_at: SystemTime::now(),
        }
    }

    /// Sets the server to monitor. Later calls have no effect.
    pub fn watch(&self, config: MetricsConfig, server: Weak<Server<impl Service + Monitored>>) {
        drop(self.config.set(config));
        drop(self.probe.set(server));
    }

    /// Returns the totals of all requests since the start.
    #[must_use]
    pub fn totals(&self) -> Totals {
        totals_of(&self.meter.by_cache.sums().all)
    }

    /// Returns name and version of the program; empty before [`watch`](Self::watch).
    #[must_use]
    pub fn program(&self) -> (&str, &str) {
        let config = self.config.get();
        config.map_or(("", ""), |config| (&config.name, &config.version))
    }

    /// Returns the monitored server; `None` if it has ended or is not set yet.
    pub(crate) fn probe(&self) -> Option<Arc<dyn Probe>> {
        self.probe.get()?.upgrade()
    }

    pub(crate) fn sampled(&self) -> MutexGuard<'_, Sampled> {
        self.sampled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl samovar_http::Observer for Metrics {
    fn observes(&self) -> bool {
        true
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        self.meter.record(exchange);
        if self.inner.observes() {
            self.inner.exchanged(exchange);
        }
    }

    fn incident(&self, incident: &Incident<'_>) {
        self.inner.incident(incident);
    }
}

impl Observer for Metrics {
    fn event(&self, event: &Event<'_>) {
        if let Event::StoreFailed(error) = event {
            self.store_errors.add(*error);
        }
        self.inner.event(event);
    }

    fn serves(&self, caches: &[ServedCache]) {
        self.meter.by_cache.serve(caches);
        self.inner.serves(caches);
    }

    fn transfers(&self) -> Option<&Arc<Transfers>> {
        Some(&self.transfers)
    }

    fn names_paths(&self) -> bool {
        self.inner.names_paths()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.inner.counts()
    }

    fn recent_errors(&self) -> Vec<RecentError> {
        self.inner.recent_errors()
    }
}
