//! Threads that sample a server once a second.
//!
//! One thread probes the store. It may block for as long as a disk does; meanwhile the store is
//! reported as not answering. The other thread waits only for the server's I/O threads, and for at
//! most one second.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use samovar_http::ws::{Frame, Socket};

use crate::overview::time_ms;
use crate::registry::Metrics;

/// Time between two samples.
const STEP: Duration = Duration::from_secs(1);
/// Maximum time to wait for the I/O threads.
const LAG_MAX: Duration = Duration::from_secs(1);

/// A task that a thread runs once per interval.
type Job = fn(&Metrics, &Shared);

/// The two sampling threads. They end when this is dropped.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
pub(crate) struct Shared {
    is_over: Mutex<bool>,
    over: Condvar,
    /// WebSockets that receive live updates, by a number that identifies each.
    sockets: Mutex<HashMap<u64, Socket>>,
}

impl Sampler {
    /// Starts sampling the server that `metrics` [watches](Metrics::watch).
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub fn start(metrics: &Arc<Metrics>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let jobs: [(&str, Job); 2] = [("metrics", sample), ("metrics-store", probe_store)];
        let sampler = Self {
            shared: Arc::clone(&shared),
        };
        for (name, job) in jobs {
            let (metrics, shared) = (Arc::downgrade(metrics), Arc::clone(&shared));
            let named = std::thread::Builder::new().name(name.to_owned());
            named.spawn(move || run(&metrics, &shared, job))?;
        }
        Ok(sampler)
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        let is_over = self.shared.is_over.lock();
        *is_over.unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.over.notify_all();
    }
}

impl Shared {
    pub(crate) fn sockets(&self) -> MutexGuard<'_, HashMap<u64, Socket>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `deadline`, or until the threads must end. Returns whether they must end.
    fn is_over_by(&self, deadline: Instant) -> bool {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.over.wait_timeout_while(is_over, left, |over| !*over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

fn run(metrics: &Weak<Metrics>, shared: &Shared, job: Job) {
    loop {
        let next = Instant::now() + STEP;
        let Some(metrics) = metrics.upgrade() else {
            return;
        };
        job(&metrics, shared);
        drop(metrics);
        if shared.is_over_by(next) {
            return;
        }
    }
}

fn sample(metrics: &Metrics, shared: &Shared) {
    if let Some(probe) = metrics.probe() {
        let started = Instant::now();
        if probe.answers_within(LAG_MAX) {
            let now = Instant::now();
            metrics.sampled().answered = Some((now, now.saturating_duration_since(started)));
        }
        let epoch = probe.site().status().store.epoch;
        metrics.sampled().note_epoch(epoch, Instant::now());
    }
    let load = metrics.probe().map(|probe| probe.load());
    let connection_count = load.map_or(0, |load| load.connection_count as u64);
    let sums = metrics.meter.sums();
    let mut sampled = metrics.sampled();
    let time_ms = time_ms(SystemTime::now());
    sampled.sample(&sums, Instant::now(), time_ms, connection_count);
    sampled.count_requests(&metrics.meter);
    drop(sampled);
    send(metrics, shared);
}

/// Sends the status to all WebSockets.
fn send(metrics: &Metrics, shared: &Shared) {
    if shared.sockets().is_empty() {
        return;
    }
    let Ok(json) = serde_json::to_string(&metrics.status()) else {
        return;
    };
    let frame = Frame::new(&json);
    for socket in shared.sockets().values() {
        socket.send_frame(&frame);
    }
}

fn probe_store(metrics: &Metrics, _: &Shared) {
    let Some(probe) = metrics.probe() else {
        return;
    };
    let answer = probe
        .site()
        .probe_store()
        .map_err(|error| error.to_string());
    let is_well = answer.is_ok();
    let mut sampled = metrics.sampled();
    sampled.store = Some((Instant::now(), answer));
    let unnamed = sampled.unnamed();
    drop(sampled);
    if is_well && !unnamed.is_empty() {
        let name = |hash_part| (hash_part, probe.site().name_of(hash_part));
        let names = unnamed.into_iter().map(name).collect();
        metrics.sampled().name(names);
    }
}
