//! What is sampled once a second: rates, percentiles, and the top paths.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | paths with a counter | 1024 per list | an error is at most a thousandth of the total |
//! | history | 120 seconds | the width of the chart |
//! | windows of percentiles | 10 s and 300 s | the present, and for comparison |

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use samovar_nix::HashPart;

use crate::buckets::Histogram;
use crate::class::{Class, StatusClass};
use crate::meter::{Asked, Sums, What};
use crate::process::{ThreadTime, thread_times};
use crate::sketch::{Counter, Sketch};
use crate::status::{Latency, Moment, Rates, TopPath};

/// Number of counters of a sketch.
const SKETCH_LEN: usize = 1024;
/// Length of a list of top paths.
pub(crate) const TOP_COUNT: usize = 20;
/// Seconds of history.
const HISTORY_LEN: usize = 120;
/// Windows of the percentiles, and the interval at which a state is stored for each.
const WINDOWS: [(Duration, Duration); 2] = [
    (Duration::from_secs(10), Duration::from_secs(1)),
    (Duration::from_secs(300), Duration::from_secs(10)),
];

/// The results of sampling once a second.
#[derive(Debug)]
pub(crate) struct Sampled {
    pub(crate) served: Sketch<HashPart>,
    pub(crate) bytes: Sketch<HashPart>,
    pub(crate) missing: Sketch<HashPart>,
    /// Names of top paths; `None` if a path has no known name.
    names: HashMap<HashPart, Option<String>>,
    last: Option<Tally>,
    history: VecDeque<Moment>,
    /// Earlier states, for each of [`WINDOWS`], oldest first.
    states: [VecDeque<State>; WINDOWS.len()],
    threads: Vec<ThreadTime>,
    /// CPU utilisation of each I/O thread over the last second, from 0 to 1.
    pub(crate) io_threads: Vec<f64>,
    threads_at: Option<Instant>,
    /// When all I/O threads last answered a probe, and how long that took.
    pub(crate) answered: Option<(Instant, Duration)>,
    /// The current epoch, and when it was first seen.
    epoch: Option<(u64, Instant)>,
    /// Number of catalog loads, as far as epochs show them.
    pub(crate) epoch_count: u64,
    /// The time and result of the last probe of the store.
    pub(crate) store: Option<(Instant, Result<(), String>)>,
    list: Vec<Asked>,
}

/// Counters and histograms at a moment.
#[derive(Debug)]
struct State {
    at: Instant,
    durations: Durations,
    tally: Tally,
}

/// Histograms since the start.
#[derive(Debug, Clone, Default)]
struct Durations {
    all: Histogram,
    narinfo: Histogram,
    nar: Histogram,
}

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) request_count: u64,
    pub(crate) body_len: u64,
    pub(crate) hit_count: u64,
    pub(crate) miss_count: u64,
    pub(crate) error_count: u64,
    /// Responses aborted by the server.
    pub(crate) aborted_count: u64,
    pub(crate) client_aborted_count: u64,
}

impl Default for Sampled {
    fn default() -> Self {
        Self {
            served: Sketch::new(SKETCH_LEN),
            bytes: Sketch::new(SKETCH_LEN),
            missing: Sketch::new(SKETCH_LEN),
            names: HashMap::new(),
            last: None,
            history: VecDeque::new(),
            states: Default::default(),
            threads: Vec::new(),
            io_threads: Vec::new(),
            threads_at: None,
            answered: None,
            epoch: None,
            epoch_count: 0,
            store: None,
            list: Vec::new(),
        }
    }
}

impl Tally {
    pub(crate) fn of(sums: &Sums) -> Self {
        let all = || sums.classes.iter();
        let narinfos = sums.of(Class::Narinfo);
        let of = |status| narinfos.map_or(0, |class| class.of_status(status));
        Self {
            request_count: all().map(|class| class.request_count()).sum(),
            body_len: all().map(|class| class.body_len()).sum(),
            hit_count: of(StatusClass::Success),
            miss_count: of(StatusClass::Absent),
            error_count: all()
                .map(|class| class.of_status(StatusClass::ServerError))
                .sum(),
            aborted_count: all().map(|class| class.cut).sum(),
            client_aborted_count: all().map(|class| class.left).sum(),
        }
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            request_count: self.request_count.saturating_sub(earlier.request_count),
            body_len: self.body_len.saturating_sub(earlier.body_len),
            hit_count: self.hit_count.saturating_sub(earlier.hit_count),
            miss_count: self.miss_count.saturating_sub(earlier.miss_count),
            error_count: self.error_count.saturating_sub(earlier.error_count),
            aborted_count: self.aborted_count.saturating_sub(earlier.aborted_count),
            client_aborted_count: self
                .client_aborted_count
                .saturating_sub(earlier.client_aborted_count),
        }
    }
}

impl Durations {
    fn of(sums: &Sums) -> Self {
        let of = |class| sums.of(class).map(|sums| sums.durations.clone());
        let mut all = Histogram::default();
        for class in &sums.classes {
            all.add(&class.durations);
        }
        Self {
            all,
            narinfo: of(Class::Narinfo).unwrap_or_default(),
            nar: of(Class::Nar).unwrap_or_default(),
        }
    }

    fn named(&self) -> [(&'static str, &Histogram); 3] {
        [
            ("all", &self.all),
            ("narinfo", &self.narinfo),
            ("nar", &self.nar),
        ]
    }
}

impl Sampled {
    /// Samples the sums, about once a second.
    pub(crate) fn look(&mut self, sums: &Sums, now: Instant, time_ms: u64) {
        let tally = Tally::of(sums);
        if let Some(last) = self.last.replace(tally) {
            let since = tally.since(last);
            push(
                &mut self.history,
                HISTORY_LEN,
                Moment {
                    time_ms,
                    request_count: since.request_count,
                    body_len: since.body_len,
                    hit_count: since.hit_count,
                    miss_count: since.miss_count,
                },
            );
        }
        let mut durations = None;
        for (states, (window, step)) in self.states.iter_mut().zip(WINDOWS) {
            // Tolerates a sample that is slightly early.
            let step = step.mul_f64(0.9);
            let is_due = |last: &State| now.saturating_duration_since(last.at) >= step;
            if states.back().is_none_or(is_due) {
                let durations = durations.get_or_insert_with(|| Durations::of(sums)).clone();
                let at = now;
                states.push_back(State {
                    at,
                    durations,
                    tally,
                });
            }
            // The newest state older than the window is where the window starts.
            let is_over = |state: &State| now.saturating_duration_since(state.at) >= window;
            while states.get(1).is_some_and(is_over) {
                states.pop_front();
            }
        }
        self.look_at_threads(now);
    }

    fn look_at_threads(&mut self, now: Instant) {
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

    /// Counts requested paths in the sketches.
    pub(crate) fn count_asked(
        &mut self,
        take: impl FnOnce(&mut Vec<Asked>, &mut dyn FnMut(Asked)),
    ) {
        let mut list = std::mem::take(&mut self.list);
        take(&mut list, &mut |asked| {
            // Skip anything that is not a hash part.
            let Ok(hash_part) = HashPart::parse(&asked.hash_part) else {
                return;
            };
            let client = u64::from(asked.client);
            match asked.what {
                What::Served => self.served.add(hash_part, asked.count, client),
                What::Missing => self.missing.add(hash_part, asked.count, client),
                What::Nar => self.bytes.add(hash_part, asked.len, client),
            }
        });
        self.list = list;
    }

    /// Returns existing top paths whose names were not looked up yet.
    pub(crate) fn nameless(&self) -> Vec<HashPart> {
        let top = top_of(&self.served).chain(top_of(&self.bytes));
        let is_new = |hash_part: &HashPart| !self.names.contains_key(hash_part);
        top.map(|(hash_part, _)| hash_part).filter(is_new).collect()
    }

    /// Stores names of top paths, and drops those of all other paths.
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
    pub(crate) fn see_epoch(&mut self, epoch: u64, now: Instant) {
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
        let since = Tally::of(sums).since(from.tally);
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let per_s = |count: u64| count as f64 / window_s.max(0.001);
        let asked = since.hit_count + since.miss_count;
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let hit_ratio = (asked > 0).then(|| since.hit_count as f64 / asked as f64);
        Rates {
            window_s,
            requests_per_s: per_s(since.request_count),
            bytes_per_s: per_s(since.body_len),
            errors_per_s: per_s(since.error_count + since.aborted_count),
            hit_ratio,
        }
    }

    pub(crate) fn latencies(&self, sums: &Sums) -> Vec<Latency> {
        let now = Durations::of(sums);
        let nothing = Durations::default();
        let mut latencies = Vec::new();
        for (states, (window, _)) in self.states.iter().zip(WINDOWS) {
            let from = states.front().map_or(&nothing, |state| &state.durations);
            for ((route, now), (_, from)) in now.named().into_iter().zip(from.named()) {
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
/// stem from evicted ones: many paths requested once each would fill the list.
fn top_of(sketch: &Sketch<HashPart>) -> impl Iterator<Item = (HashPart, Counter)> {
    let all = sketch.top(SKETCH_LEN);
    let weighs = |(_, counter): &(HashPart, Counter)| counter.count > 2 * counter.error;
    all.filter(weighs).take(TOP_COUNT)
}

/// Appends a value and drops the oldest ones beyond `len_max`.
fn push<T>(queue: &mut VecDeque<T>, len_max: usize, value: T) {
    while queue.len() >= len_max {
        queue.pop_front();
    }
    queue.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(count: u64, ns: u64) -> Sums {
        let mut sums = Sums::default();
        let class = &mut sums.classes[Class::Narinfo as usize];
        class.requests[0][StatusClass::Success as usize] = count / 4;
        class.requests[0][StatusClass::Absent as usize] = count - count / 4;
        class.durations.counts[crate::buckets::index_of(ns)] = count;
        class.whole_len = count * 100;
        sums
    }

    #[test]
    fn a_flood_does_not_fill_the_list() {
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
    fn rates_and_percentiles_are_of_their_windows() {
        let (mut sampled, start) = (Sampled::default(), Instant::now());
        let at = |second| start + Duration::from_secs(second);
        // One minute of a hundred slow requests per second, then one minute of none.
        for second in 0..=60 {
            sampled.look(&sums(second * 100, 1_000_000), at(second), second * 1000);
        }
        let latest = sums(6000, 1_000_000);
        let rates = sampled.rates(&latest, at(60));
        assert!((rates.requests_per_s - 100.0).abs() < 10.0, "{rates:?}");
        assert!((rates.bytes_per_s - 10_000.0).abs() < 1000.0, "{rates:?}");
        assert_eq!(rates.hit_ratio, Some(0.25));
        for second in 61..=120 {
            sampled.look(&latest, at(second), second * 1000);
        }
        let rates = sampled.rates(&latest, at(120));
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
        // They have left the window.
        for second in 121..=400 {
            sampled.look(&latest, at(second), second * 1000);
        }
        assert_eq!(sampled.latencies(&latest)[3].count, 0);
        assert_eq!(sampled.history().len(), HISTORY_LEN);
        assert!(sampled.states.iter().all(|states| states.len() < 35));
    }
}
