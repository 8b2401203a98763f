//! The values sampled once a second: rates, percentiles and top paths.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use samovar_nix::HashPart;

use crate::buckets::Histogram;
use crate::by_cache::ByClass;
use crate::class::{Class, Outcome, StatusClass};
use crate::meter::{Meter, RecordedRequest, RequestKind, Sums};
use crate::process::{ThreadTime, thread_times};
use crate::sketch::{Counter, Sketch};
use crate::status::{Latency, Moment, Rates, TopPath, Totals};

/// Number of paths in a list of top paths.
pub(crate) const TOP_COUNT: usize = 20;
/// Length of the history, in seconds: the width of the chart.
const HISTORY_LEN: usize = 120;
/// Time windows of the percentiles. The first is for the present, the second for comparison. Each
/// has the interval at which a state is stored for it.
const WINDOWS: [(Duration, Duration); 2] = [
    (Duration::from_secs(10), Duration::from_secs(1)),
    (Duration::from_secs(300), Duration::from_secs(10)),
];

/// The results of sampling, updated once a second.
#[derive(Debug, Default)]
pub(crate) struct Sampled {
    pub(crate) served: Sketch<HashPart>,
    pub(crate) bytes: Sketch<HashPart>,
    pub(crate) missing: Sketch<HashPart>,
    /// Names of top paths; `None` if a path has no known name.
    names: HashMap<HashPart, Option<String>>,
    last: Option<Totals>,
    history: VecDeque<Moment>,
    /// Earlier states for each of [`WINDOWS`], oldest first.
    states: [VecDeque<State>; WINDOWS.len()],
    threads: Vec<ThreadTime>,
    /// CPU utilisation of each I/O thread over the last second, from 0 to 1.
    pub(crate) io_threads: Vec<f64>,
    threads_at: Option<Instant>,
    /// The time of the last probe that all I/O threads answered, and how long they took; `None`
    /// before the first one.
    pub(crate) answered: Option<(Instant, Duration)>,
    /// The current epoch, and the time when it was first seen; `None` before the first sample.
    epoch: Option<(u64, Instant)>,
    /// Number of catalog loads, counted by changes of the epoch.
    pub(crate) epoch_count: u64,
    /// The time and result of the last probe of the store; `None` before the first one.
    pub(crate) store: Option<(Instant, Result<(), String>)>,
    list: Vec<RecordedRequest>,
}

/// The counters and histograms at one moment. Their differences to those of a later moment give the
/// percentiles of the time between.
#[derive(Debug)]
struct State {
    at: Instant,
    durations: Durations,
    totals: Totals,
}

/// Names of the routes with percentiles. Each has a histogram since the start.
const ROUTES: [&str; 3] = ["all", "narinfo", "nar"];
type Durations = [Histogram; ROUTES.len()];

/// Computes the totals of all classes.
pub(crate) fn totals_of(counts: &ByClass) -> Totals {
    let narinfos = counts.of(Class::Narinfo);
    let mut totals = Totals {
        hit_count: narinfos.of_status(StatusClass::Success),
        miss_count: narinfos.of_status(StatusClass::Absent),
        ..Totals::default()
    };
    for class in &counts.0 {
        totals.request_count += class.request_count();
        totals.body_len += class.body_lens.iter().sum::<u64>();
        totals.error_count += class.of_status(StatusClass::ServerError);
        totals.refused_count += class.of_status(StatusClass::ClientError);
        totals.aborted_count += class.aborted.iter().sum::<u64>();
        totals.client_aborted_count += class.aborted[Outcome::AbortedByClient as usize];
    }
    totals
}

/// Returns the number of requests that failed because of the server.
fn failure_count(totals: &Totals) -> u64 {
    totals.error_count + totals.aborted_count - totals.client_aborted_count
}

fn durations_of(sums: &Sums) -> Durations {
    let mut all = Histogram::default();
    for class in &sums.classes {
        all.add(&class.durations);
    }
    let of = |class| sums.of(class).durations.clone();
    [all, of(Class::Narinfo), of(Class::Nar)]
}

impl Sampled {
    /// Takes a sample of the sums, about once a second.
    /// `connection_count`: the number of connections that are open now.
    pub(crate) fn sample(
        &mut self,
        sums: &Sums,
        now: Instant,
        time_ms: u64,
        connection_count: u64,
    ) {
        let totals = totals_of(&sums.by_cache.all);
        let durations = durations_of(sums);
        if let Some(last) = self.last.replace(totals) {
            let before = self.states[0].back().map(|state| &state.durations[0]);
            let since = before.map(|before| durations[0].since(before));
            let since = since.filter(|since| since.count() > 0);
            let moment = Moment {
                time_ms,
                connection_count,
                error_count: failure_count(&totals).saturating_sub(failure_count(&last)),
                p99_s: since.map(|since| since.percentile_s(99)),
                request_count: totals.request_count.saturating_sub(last.request_count),
                body_len: totals.body_len.saturating_sub(last.body_len),
                hit_count: totals.hit_count.saturating_sub(last.hit_count),
                miss_count: totals.miss_count.saturating_sub(last.miss_count),
            };
            if self.history.len() == HISTORY_LEN {
                self.history.pop_front();
            }
            self.history.push_back(moment);
        }
        for (states, (window, step)) in self.states.iter_mut().zip(WINDOWS) {
            // Accept a sample that is taken slightly too early.
            let step = step.mul_f64(0.9);
            let is_due = |last: &State| now.saturating_duration_since(last.at) >= step;
            if states.back().is_none_or(is_due) {
                states.push_back(State {
                    at: now,
                    durations: durations.clone(),
                    totals,
                });
            }
            // The window starts at the newest state that is older than the window.
            let is_over = |state: &State| now.saturating_duration_since(state.at) >= window;
            while states.get(1).is_some_and(is_over) {
                states.pop_front();
            }
        }
        self.sample_threads(now);
    }

    fn sample_threads(&mut self, now: Instant) {
        let threads = thread_times();
        if let Some(before) = self.threads_at.replace(now) {
            let past_s = now.saturating_duration_since(before).as_secs_f64();
            let share = |thread: &ThreadTime| {
                let before = self.threads.iter().find(|old| old.name == thread.name);
                let busy_s = thread.busy_s - before.map_or(0.0, |before| before.busy_s);
                (busy_s / past_s.max(0.001)).clamp(0.0, 1.0)
            };
            let io = threads.iter().filter(|thread| thread.is_io());
            self.io_threads = io.map(share).collect();
        }
        self.threads = threads;
    }

    /// Adds the requested paths to the sketches.
    pub(crate) fn count_requests(&mut self, meter: &Meter) {
        let mut list = std::mem::take(&mut self.list);
        meter.take_requests(&mut list, |request| {
            let hash_part = request.hash_part;
            let client = u64::from(request.client);
            match request.kind {
                RequestKind::Served => self.served.add(hash_part, request.count, client),
                RequestKind::Missing => self.missing.add(hash_part, request.count, client),
                RequestKind::Contents => self.bytes.add(hash_part, request.len, client),
            }
        });
        self.list = list;
    }

    /// Returns top paths that exist and whose names were not looked up yet.
    pub(crate) fn unnamed(&self) -> Vec<HashPart> {
        let top = top_of(&self.served).chain(top_of(&self.bytes));
        let is_new = |hash_part: &HashPart| !self.names.contains_key(hash_part);
        top.map(|(hash_part, _)| hash_part).filter(is_new).collect()
    }

    /// Stores the names of top paths, and drops the names of all other paths.
    pub(crate) fn name(&mut self, names: Vec<(HashPart, Option<String>)>) {
        self.names.extend(names);
        let top = top_of(&self.served).chain(top_of(&self.bytes));
        let top: Vec<HashPart> = top.map(|(hash_part, _)| hash_part).collect();
        self.names.retain(|hash_part, _| top.contains(hash_part));
    }

    pub(crate) fn top(&self, sketch: &Sketch<HashPart>) -> Vec<TopPath> {
        let path = |(hash_part, counter): (HashPart, Counter)| TopPath {
            hash_part: hash_part.to_string(),
            name: self.names.get(&hash_part).cloned().flatten(),
            count: counter.count,
            error: counter.error,
            client_count: counter.mark_count(),
        };
        top_of(sketch).map(path).collect()
    }

    /// Records the current epoch of the store.
    pub(crate) fn note_epoch(&mut self, epoch: u64, now: Instant) {
        match self.epoch {
            Some((seen, _)) if seen == epoch => {}
            before => {
                let seen = before.map_or(0, |(seen, _)| seen);
                self.epoch_count += epoch.saturating_sub(seen);
                self.epoch = Some((epoch, now));
            }
        }
    }

    pub(crate) fn epoch_age(&self, now: Instant) -> Duration {
        self.epoch.map_or(Duration::ZERO, |(_, since)| {
            now.saturating_duration_since(since)
        })
    }

    pub(crate) fn history(&self) -> Vec<Moment> {
        self.history.iter().copied().collect()
    }

    pub(crate) fn rates(&self, sums: &Sums, now: Instant) -> Rates {
        let Some(from) = self.states.first().and_then(|states| states.front()) else {
            return Rates::default();
        };
        let window_s = now.saturating_duration_since(from.at).as_secs_f64();
        let totals = totals_of(&sums.by_cache.all);
        let since = |of: fn(&Totals) -> u64| of(&totals).saturating_sub(of(&from.totals));
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let per_s = |count: u64| count as f64 / window_s.max(0.001);
        let hit_count = since(|totals| totals.hit_count);
        let asked = hit_count + since(|totals| totals.miss_count);
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let hit_ratio = (asked > 0).then(|| hit_count as f64 / asked as f64);
        Rates {
            window_s,
            requests_per_s: per_s(since(|totals| totals.request_count)),
            bytes_per_s: per_s(since(|totals| totals.body_len)),
            errors_per_s: per_s(since(failure_count)),
            hit_ratio,
        }
    }

    pub(crate) fn latencies(&self, sums: &Sums) -> Vec<Latency> {
        let now = durations_of(sums);
        let nothing = Durations::default();
        let mut latencies = Vec::new();
        for (states, (window, _)) in self.states.iter().zip(WINDOWS) {
            let from = states.front().map_or(&nothing, |state| &state.durations);
            for ((route, now), from) in ROUTES.into_iter().zip(&now).zip(from) {
                let since = now.since(from);
                latencies.push(Latency {
                    route: route.to_owned(),
                    window_s: window.as_secs_f64(),
                    count: since.count(),
                    p50_s: since.percentile_s(50),
                    p90_s: since.percentile_s(90),
                    p99_s: since.percentile_s(99),
                });
            }
        }
        latencies
    }
}

/// Returns the top paths of a sketch. Omits paths without weight, and paths whose count may mostly
/// belong to evicted paths: otherwise many paths requested once each would fill the list.
fn top_of(sketch: &Sketch<HashPart>) -> impl Iterator<Item = (HashPart, Counter)> {
    let all = sketch.top(usize::MAX);
    let weighs = |(_, counter): &(HashPart, Counter)| counter.count > 2 * counter.error;
    all.filter(weighs).take(TOP_COUNT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(count: u64, ns: u64) -> Sums {
        let mut sums = Sums::default();
        let class = &mut sums.by_cache.all.0[Class::Narinfo as usize];
        class.requests[0][StatusClass::Success as usize] = count / 4;
        class.requests[0][StatusClass::Absent as usize] = count - count / 4;
        class.body_lens[Outcome::Complete as usize] = count * 100;
        let class = &mut sums.classes[Class::Narinfo as usize];
        class.durations.counts[crate::buckets::index_of(ns)] = count;
        sums
    }

    #[test]
    fn paths_requested_once_each_do_not_fill_the_top_list() {
        let mut sampled = Sampled::default();
        let part = |number: u32| HashPart::parse(format!("{number:032}").as_bytes()).unwrap();
        for number in 0..100_000 {
            sampled.missing.add(part(number), 1, 0);
            if number % 500 == 0 {
                sampled.missing.add(part(u32::MAX), 1, 1);
            }
        }
        let top = sampled.top(&sampled.missing);
        let list: Vec<_> = top
            .iter()
            .map(|path| (&*path.hash_part, path.count))
            .collect();
        assert_eq!(list, [("00000000000000000000004294967295", 200)]);
    }

    #[test]
    fn rates_and_percentiles_cover_their_windows() {
        let (mut sampled, start) = (Sampled::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        // A hundred slow requests per second for one minute, then none for one minute.
        for second in 0..=60 {
            sampled.sample(&sums(second * 100, 1_000_000), at(second), second * 1000, 7);
        }
        let latest = sums(6000, 1_000_000);
        let rates = sampled.rates(&latest, at(60));
        assert!((rates.requests_per_s - 100.0).abs() < 10.0, "{rates:?}");
        assert!((rates.bytes_per_s - 10_000.0).abs() < 1000.0, "{rates:?}");
        assert_eq!(rates.hit_ratio, Some(0.25));
        let newest = *sampled.history().last().expect("is there");
        assert_eq!((newest.connection_count, newest.error_count), (7, 0));
        assert!(
            newest
                .p99_s
                .is_some_and(|p99_s| (0.000_5..0.002).contains(&p99_s))
        );
        for second in 61..=120 {
            sampled.sample(&latest, at(second), second * 1000, 7);
        }
        let rates = sampled.rates(&latest, at(120));
        assert_eq!(sampled.history().last().expect("is there").p99_s, None);
        assert_eq!((rates.requests_per_s, rates.hit_ratio), (0.0, None));
        let latencies = sampled.latencies(&latest);
        let count_of = |route: &str, window_s: f64| {
            let find = |one: &&Latency| one.route == route && one.window_s == window_s;
            latencies.iter().find(find).expect("is there").count
        };
        assert_eq!(
            (count_of("narinfo", 10.0), count_of("narinfo", 300.0)),
            (0, 6000)
        );
        assert_eq!((count_of("all", 300.0), count_of("nar", 300.0)), (6000, 0));
        // The slow requests are outside the window now.
        for second in 121..=400 {
            sampled.sample(&latest, at(second), second * 1000, 7);
        }
        assert_eq!(sampled.latencies(&latest)[3].count, 0);
        assert_eq!(sampled.history().len(), HISTORY_LEN);
        assert!(sampled.states.iter().all(|states| states.len() < 35));
    }
}
