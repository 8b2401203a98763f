//! Counters of requests by cache.
//!
//! # Theory of operation
//!
//! A request counts for the cache with the longest prefix of its URL, also if that cache refuses
//! it. Requests below no cache have counters of their own.
//!
//! Each thread has a copy of the table of prefixes, and renews it after a reload, so that a request
//! writes to nothing that threads share. A removed cache leaves its counters to the next new one,
//! which subtracts their present values. So their number is bounded by the greatest number of
//! caches at a time, and no count of a thread with the previous table is lost.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use samovar_http::http::percent;

use crate::class::{Class, MethodClass, Outcome, StatusClass};
use crate::event::ServedCache;

const CLASS_COUNT: usize = Class::NAMES.len();
const METHOD_COUNT: usize = MethodClass::NAMES.len();
const STATUS_COUNT: usize = StatusClass::NAMES.len();
const OUTCOME_COUNT: usize = Outcome::NAMES.len();

/// A response to count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    pub(crate) class: Class,
    pub(crate) method: MethodClass,
    pub(crate) status: StatusClass,
    pub(crate) outcome: Outcome,
    pub(crate) body_len: u64,
}

/// The request counters of all caches.
#[derive(Debug)]
pub(crate) struct ByCache {
    /// Number of the current table.
    number: AtomicU64,
    caches: Mutex<Caches>,
}

#[derive(Debug)]
struct Caches {
    table: Arc<Table>,
    slots: Vec<Slot>,
}

/// Counters that belong to one cache at a time.
#[derive(Debug)]
struct Slot {
    counters: Arc<Counters>,
    /// The cache that has these counters; `None` if it was removed.
    cache: Option<ServedCache>,
    /// The counts of earlier caches.
    before: ByClass,
}

/// The counters for each URL prefix.
#[derive(Debug)]
struct Table {
    /// Unique in the process.
    number: u64,
    /// In descending order of length.
    prefixes: Box<[Prefix]>,
    /// Counts requests below no cache.
    elsewhere: Arc<Counters>,
}

/// The URL prefix of a cache, and its counters.
#[derive(Debug)]
struct Prefix {
    path: Box<[u8]>,
    counters: Arc<Counters>,
}

/// The counters of one cache, in shards as those of [`Meter`](crate::meter::Meter).
#[derive(Debug)]
struct Counters(Box<[Shard]>);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard([ClassCounters; CLASS_COUNT]);

/// Numbers of requests by method and status; numbers of incomplete responses and of body bytes by
/// [`Outcome`].
#[derive(Debug, Default)]
struct ClassCounters {
    requests: [[AtomicU64; STATUS_COUNT]; METHOD_COUNT],
    aborted: [AtomicU64; OUTCOME_COUNT],
    body_lens: [AtomicU64; OUTCOME_COUNT],
}

/// The counts of one class of requests; see [`ClassCounters`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClassCounts {
    pub(crate) requests: [[u64; STATUS_COUNT]; METHOD_COUNT],
    pub(crate) aborted: [u64; OUTCOME_COUNT],
    pub(crate) body_lens: [u64; OUTCOME_COUNT],
}

/// The counts of all classes, in the order of [`Class`].
#[derive(Debug, Clone, Default)]
pub(crate) struct ByClass(pub(crate) [ClassCounts; CLASS_COUNT]);

/// The counts of the server and of its caches, read at nearly the same moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct CacheSums {
    /// All requests, including those for removed caches.
    pub(crate) all: ByClass,
    /// Requests below no cache.
    pub(crate) elsewhere: ByClass,
    /// The present caches, in the order of the configuration.
    pub(crate) caches: Vec<(ServedCache, ByClass)>,
}

fn decoded(path: &[u8]) -> Cow<'_, [u8]> {
    percent::decode(path).unwrap_or(Cow::Borrowed(path))
}

thread_local! {
    static TABLE: RefCell<Option<Arc<Table>>> = const { RefCell::new(None) };
}

impl ByCache {
    pub(crate) fn new(shard_count: usize) -> Self {
        let elsewhere = Counters::new(shard_count);
        let table = Table::new(Vec::new(), Arc::new(elsewhere));
        Self {
            number: AtomicU64::new(table.number),
            caches: Mutex::new(Caches {
                table: Arc::new(table),
                slots: Vec::new(),
            }),
        }
    }

    /// Counts requests for these caches from now on. A cache that had the same name keeps its
    /// counts.
    pub(crate) fn serve(&self, served: &[ServedCache]) {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let Caches { table, slots } = &mut *caches;
        for slot in slots.iter_mut() {
            let is_named = |name: &str| served.iter().any(|cache| cache.name == name);
            slot.cache.take_if(|cache| !is_named(&cache.name));
        }
        let mut prefixes = Vec::with_capacity(served.len());
        for cache in served {
            let is_same = |slot: &Slot| matches!(&slot.cache, Some(of) if of.name == cache.name);
            let place = slots.iter().position(is_same).unwrap_or_else(|| {
                let free = slots.iter().position(|slot| slot.cache.is_none());
                free.unwrap_or_else(|| {
                    slots.push(Slot {
                        counters: Arc::new(Counters::new(table.elsewhere.0.len())),
                        cache: None,
                        before: ByClass::default(),
                    });
                    slots.len() - 1
                })
            });
            let slot = &mut slots[place];
            if slot.cache.replace(cache.clone()).is_none() {
                slot.before = slot.counters.sums();
            }
            prefixes.push(Prefix {
                path: decoded(cache.path_prefix.as_bytes()).into(),
                counters: Arc::clone(&slot.counters),
            });
        }
        *table = Arc::new(Table::new(prefixes, Arc::clone(&table.elsewhere)));
        self.number.store(table.number, Ordering::Release);
    }

    /// Counts a response to a request for the URL path, in the shard of this number.
    pub(crate) fn record(&self, shard: usize, path: &[u8], counted: Counted) {
        let is_recorded = TABLE.try_with(|local| {
            let mut local = local.borrow_mut();
            let number = self.number.load(Ordering::Acquire);
            let table = match &mut *local {
                Some(table) if table.number == number => table,
                other => other.insert(self.table()),
            };
            table.record(shard, path, counted);
        });
        // The thread ends, and has dropped its table.
        if is_recorded.is_err() {
            self.table().record(shard, path, counted);
        }
    }

    fn table(&self) -> Arc<Table> {
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&caches.table)
    }

    pub(crate) fn sums(&self) -> CacheSums {
        let caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let elsewhere = caches.table.elsewhere.sums();
        let mut sums = CacheSums {
            all: elsewhere.clone(),
            elsewhere,
            caches: Vec::new(),
        };
        for slot in &caches.slots {
            let counts = slot.counters.sums();
            sums.all.combine(&counts, u64::wrapping_add);
            if let Some(cache) = &slot.cache {
                let mut counts = counts;
                counts.combine(&slot.before, u64::wrapping_sub);
                sums.caches.push((cache.clone(), counts));
            }
        }
        sums.caches.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        sums
    }
}

impl Table {
    fn new(mut prefixes: Vec<Prefix>, elsewhere: Arc<Counters>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.path.len()));
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            prefixes: prefixes.into(),
            elsewhere,
        }
    }

    fn record(&self, shard: usize, path: &[u8], counted: Counted) {
        let counters = &self.counters_of(path).0[shard];
        counters.0[counted.class as usize].record(counted);
    }

    fn counters_of(&self, path: &[u8]) -> &Counters {
        let longest = self.prefixes.first();
        let has_prefixes = longest.is_some_and(|longest| !longest.path.is_empty());
        let decoded = has_prefixes.then(|| decoded(path));
        let path = decoded.as_deref().unwrap_or(path);
        let is_below = |prefix: &&Prefix| {
            let rest = path.strip_prefix(&*prefix.path);
            matches!(rest, Some([] | [b'/', ..]))
        };
        let found = self.prefixes.iter().find(is_below);
        found.map_or(&self.elsewhere, |prefix| &prefix.counters)
    }
}

impl Counters {
    fn new(shard_count: usize) -> Self {
        Self((0..shard_count).map(|_| Shard::default()).collect())
    }

    fn sums(&self) -> ByClass {
        let mut sums = ByClass::default();
        for shard in &self.0 {
            for (sum, counters) in sums.0.iter_mut().zip(&shard.0) {
                sum.combine(&counters.read(), u64::wrapping_add);
            }
        }
        sums
    }
}

impl ClassCounters {
    fn record(&self, counted: Counted) {
        let add = |counter: &AtomicU64, value: u64| {
            counter.fetch_add(value, Ordering::Relaxed);
        };
        let outcome = counted.outcome as usize;
        add(
            &self.requests[counted.method as usize][counted.status as usize],
            1,
        );
        add(&self.body_lens[outcome], counted.body_len);
        if counted.outcome != Outcome::Complete {
            add(&self.aborted[outcome], 1);
        }
    }

    fn read(&self) -> ClassCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClassCounts {
            requests: self.requests.each_ref().map(|row| row.each_ref().map(read)),
            aborted: self.aborted.each_ref().map(read),
            body_lens: self.body_lens.each_ref().map(read),
        }
    }
}

impl ClassCounts {
    fn combine(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
        let values = self.requests.iter_mut().flatten();
        let values = values.chain(&mut self.aborted).chain(&mut self.body_lens);
        let others = other.requests.iter().flatten();
        let others = others.chain(&other.aborted).chain(&other.body_lens);
        for (value, other) in values.zip(others) {
            *value = with(*value, *other);
        }
    }

    /// Returns the number of responses with a status of this class.
    pub(crate) fn of_status(&self, status: StatusClass) -> u64 {
        self.requests.iter().map(|row| row[status as usize]).sum()
    }

    pub(crate) fn request_count(&self) -> u64 {
        self.requests.iter().flatten().sum()
    }
}

impl ByClass {
    fn combine(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
        for (counts, other) in self.0.iter_mut().zip(&other.0) {
            counts.combine(other, with);
        }
    }

    pub(crate) fn of(&self, class: Class) -> &ClassCounts {
        &self.0[class as usize]
    }

    /// Returns the classes with at least one request.
    pub(crate) fn classes(&self) -> impl Iterator<Item = (&'static str, &ClassCounts)> + Clone {
        let named = Class::NAMES.into_iter().zip(&self.0);
        named.filter(|(_, counts)| counts.request_count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(name: &str, path_prefix: &str) -> ServedCache {
        ServedCache {
            name: name.to_owned(),
            path_prefix: path_prefix.to_owned(),
        }
    }

    fn ask(by_cache: &ByCache, path: &str) {
        let counted = Counted {
            class: Class::Narinfo,
            method: MethodClass::Get,
            status: StatusClass::Success,
            outcome: Outcome::Complete,
            body_len: 10,
        };
        by_cache.record(1, path.as_bytes(), counted);
    }

    /// Returns the number of requests of each cache, and below no cache.
    fn counts(by_cache: &ByCache) -> (Vec<(String, u64)>, u64, u64) {
        let sums = by_cache.sums();
        let count = |counts: &ByClass| {
            let narinfos = counts.of(Class::Narinfo);
            let complete = narinfos.body_lens[Outcome::Complete as usize];
            assert_eq!(complete, 10 * narinfos.request_count());
            narinfos.request_count()
        };
        let caches = sums.caches.iter();
        let caches = caches.map(|(cache, counts)| (cache.name.clone(), count(counts)));
        (caches.collect(), count(&sums.elsewhere), count(&sums.all))
    }

    #[test]
    fn a_request_counts_for_the_cache_with_the_longest_prefix() {
        let by_cache = ByCache::new(2);
        ask(&by_cache, "/a/x");
        by_cache.serve(&[cache("a", "/a"), cache("a/b", "/a/b"), cache("c", "/c%20")]);
        for path in [
            "/a/x", "/a", "/ab", "/a/b/x", "/a/bx", "/c%20/x", "/%61/x", "/", "*", "",
        ] {
            ask(&by_cache, path);
        }
        let expected = [("a", 4), ("a/b", 1), ("c", 1)];
        let expected = expected.map(|(name, count)| (name.to_owned(), count));
        assert_eq!(counts(&by_cache), (expected.to_vec(), 5, 11));
    }

    #[test]
    fn reloads_keep_counts_by_name_and_bound_their_number() {
        let by_cache = ByCache::new(2);
        let ask = |path: &str, count: usize| (0..count).for_each(|_| ask(&by_cache, path));
        by_cache.serve(&[cache("a", ""), cache("b", "/b")]);
        ask("/x", 1);
        ask("/b/x", 20);
        // The URL of a cache changes, and another one is replaced.
        by_cache.serve(&[cache("c", "/b"), cache("a", "/a")]);
        ask("/a/x", 2);
        ask("/b/x", 5);
        ask("/x", 7);
        let expected = vec![("a".to_owned(), 3), ("c".to_owned(), 5)];
        assert_eq!(counts(&by_cache), (expected, 7, 35));
        for number in 0..100 {
            by_cache.serve(&[cache(&number.to_string(), "")]);
            ask("/x", 1);
        }
        assert_eq!(counts(&by_cache), (vec![("99".to_owned(), 1)], 7, 135));
        assert_eq!(by_cache.caches.lock().unwrap().slots.len(), 2);
    }

    #[test]
    fn threads_count_while_caches_are_replaced() {
        let by_cache = ByCache::new(4);
        std::thread::scope(|scope| {
            for shard in 0..4 {
                let by_cache = &by_cache;
                scope.spawn(move || {
                    for _ in 0..1000 {
                        let counted = Counted {
                            class: Class::Other,
                            method: MethodClass::Other,
                            status: StatusClass::Absent,
                            outcome: Outcome::AbortedByClient,
                            body_len: 0,
                        };
                        by_cache.record(shard, b"/x", counted);
                    }
                });
            }
            for number in 0..100 {
                by_cache.serve(&[cache(&number.to_string(), "")]);
            }
        });
        let all = by_cache.sums().all;
        assert_eq!(all.of(Class::Other).aborted, [0, 4000, 0]);
    }
}
