//! The figures of a server, from when it starts.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Instant, SystemTime};

use samovar_http::{Exchange, Incident, Server};
use samovar_store::StoreError;

use crate::event::{Event, Observer};
use crate::meter::Meter;
use crate::probe::{Monitored, Probe};
use crate::sampled::Sampled;
use crate::status::{RecentError, Status};
use crate::transfers::Transfers;

/// What is said of a server beside its figures.
#[derive(Debug, Clone, Default)]
pub struct MetricsConfig {
    /// The program's name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What it listens on, in words.
    pub listeners: Vec<String>,
    /// Whether the paths most asked for are labels in `/metrics`. There are 60 at a time, and ever
    /// others: not every store of figures takes that well.
    pub has_top_paths: bool,
    /// What in the configuration deserves a look.
    pub warnings: Vec<String>,
}

/// Counts what happens, and hands it on to the observer of a server.
pub struct Metrics {
    pub(crate) config: OnceLock<MetricsConfig>,
    inner: Arc<dyn Observer>,
    pub(crate) meter: Meter,
    pub(crate) transfers: Arc<Transfers>,
    pub(crate) store_errors: StoreErrors,
    pub(crate) probe: OnceLock<Box<dyn Probe>>,
    pub(crate) sampled: Mutex<Sampled>,
    pub(crate) started: Instant,
    pub(crate) started_at: SystemTime,
}

/// How often the store began to fail, by why.
#[derive(Debug, Default)]
pub(crate) struct StoreErrors([AtomicU64; STORE_ERROR_KINDS.len()]);

/// Their names.
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
        let index = match error {
            StoreError::Busy => 0,
            StoreError::Unavailable(_) => 1,
            StoreError::Corrupt(_) => 2,
            StoreError::Protocol(_) => 3,
            StoreError::Refused => 4,
            StoreError::Io { .. } => 5,
            _ => 6,
        };
        if let Some(count) = self.0.get(index) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        STORE_ERROR_KINDS.into_iter().zip(counts)
    }
}

impl Metrics {
    /// Figures of what `inner` is told too.
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

    /// Says whose figures these are, once the server is there. Said once.
    pub fn watch(&self, config: MetricsConfig, server: Weak<Server<impl Monitored>>) {
        drop(self.config.set(config));
        drop(self.probe.set(Box::new(server)));
    }

    /// Name and version of the program; empty before [`watch`](Self::watch).
    #[must_use]
    pub fn program(&self) -> (&str, &str) {
        let config = self.config.get();
        config.map_or(("", ""), |config| (&config.name, &config.version))
    }

    /// How often what was told of has happened, by name.
    pub(crate) fn events(&self) -> Vec<(&'static str, u64)> {
        self.inner.counts()
    }

    pub(crate) fn recent_errors(&self) -> Vec<RecentError> {
        self.inner.recent_errors()
    }

    pub(crate) fn probe(&self) -> Option<&dyn Probe> {
        self.probe.get().map(|probe| &**probe)
    }

    pub(crate) fn sampled(&self) -> MutexGuard<'_, Sampled> {
        self.sampled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All figures of this moment.
    #[must_use]
    pub fn status(&self) -> Status {
        crate::overview::status(self)
    }

    /// All figures in Prometheus' text format.
    #[must_use]
    pub fn exposition(&self) -> String {
        crate::exposition::exposition(self)
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
