//! Counters of requests by cache.
//!
//! # Theory of operation
//!
//! A request counts for the cache with the longest prefix of its URL, also if that cache refuses
//! it. Requests below no cache have counters of their own.
//!
//! The site numbers its caches, and each request carries the number of its cache, so that threads
//! find the counters without a lock. The number of a removed cache goes to a new one, with the
//! counters, from which their present values are subtracted. So their number is bounded by the
//! greatest number of caches at a time, and no count is lost. A response that ends after its cache
//! was removed counts for the next cache of this number.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

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
    table: Table,
    /// Counts requests below no cache.
    elsewhere: Counters,
    /// The caches by number.
    slots: Mutex<Vec<Slot>>,
}

/// The cache that has a number.
#[derive(Debug, Default)]
struct Slot {
    /// `None` if the cache was removed.
    cache: Option<ServedCache>,
    /// The counts of earlier caches with this number.
    before: ByClass,
}

/// Counters by number, in chunks of which each is twice as long as the one before it. A chunk never
/// moves, so threads need no lock to use it.
#[derive(Debug)]
struct Table {
    chunks: [OnceLock<Box<[OnceLock<Counters>]>>; CHUNK_COUNT],
    shard_count: usize,
}

/// Number of chunks for all numbers of 16 bits.
const CHUNK_COUNT: usize = 17;

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

impl ByCache {
    pub(crate) fn new(shard_count: usize) -> Self {
        Self {
            table: Table {
                chunks: Default::default(),
                shard_count,
            },
            elsewhere: Counters::new(shard_count),
            slots: Mutex::default(),
        }
    }

    /// Counts requests for these caches from now on. A cache that had the same name keeps its
    /// counts.
    pub(crate) fn serve(&self, served: &[ServedCache]) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in slots.iter_mut() {
            let is_same = |cache: &ServedCache| {
                let mut same = served.iter().filter(|of| of.number == cache.number);
                same.any(|of| of.name == cache.name)
            };
            slot.cache.take_if(|cache| !is_same(cache));
        }
        for cache in served {
            let place = usize::from(cache.number);
            if slots.len() <= place {
                slots.resize_with(place + 1, Slot::default);
            }
            if slots[place].cache.replace(cache.clone()).is_none() {
                slots[place].before = self.table.counters_of(cache.number).sums();
            }
        }
    }

    /// Counts a response to a request for the cache of this number, in this shard.
    pub(crate) fn record(&self, shard: usize, cache: Option<u16>, counted: Counted) {
        let counters = cache.map_or(&self.elsewhere, |number| self.table.counters_of(number));
        counters.0[shard].0[counted.class as usize].record(counted);
    }

    pub(crate) fn sums(&self) -> CacheSums {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let elsewhere = self.elsewhere.sums();
        let mut sums = CacheSums {
            all: elsewhere.clone(),
            elsewhere,
            caches: Vec::new(),
        };
        for (number, slot) in (0..=u16::MAX).zip(&*slots) {
            let counts = self.table.counters_of(number).sums();
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
    fn counters_of(&self, number: u16) -> &Counters {
        let place = usize::from(number) + 1;
        let chunk = place.ilog2() as usize;
        let start = 1 << chunk;
        let chunk =
            self.chunks[chunk].get_or_init(|| (0..start).map(|_| OnceLock::new()).collect());
        chunk[place - start].get_or_init(|| Counters::new(self.shard_count))
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

    fn cache(name: &str, number: u16) -> ServedCache {
        ServedCache {
            name: name.to_owned(),
            number,
            path_prefix: String::new(),
        }
    }

    fn ask(by_cache: &ByCache, cache: Option<u16>) {
        let counted = Counted {
            class: Class::Narinfo,
            method: MethodClass::Get,
            status: StatusClass::Success,
            outcome: Outcome::Complete,
            body_len: 10,
        };
        by_cache.record(1, cache, counted);
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
    fn a_request_counts_for_the_cache_of_its_number() {
        let by_cache = ByCache::new(2);
        ask(&by_cache, None);
        by_cache.serve(&[cache("a", 0), cache("b", 1), cache("c", u16::MAX)]);
        for number in [0, 0, 1, u16::MAX] {
            ask(&by_cache, Some(number));
        }
        let expected = [("a", 2), ("b", 1), ("c", 1)];
        let expected = expected.map(|(name, count)| (name.to_owned(), count));
        assert_eq!(counts(&by_cache), (expected.to_vec(), 1, 5));
    }

    #[test]
    fn reloads_keep_counts_by_name_and_bound_their_number() {
        let by_cache = ByCache::new(2);
        let ask = |cache, count: usize| (0..count).for_each(|_| ask(&by_cache, cache));
        by_cache.serve(&[cache("a", 0), cache("b", 1)]);
        ask(Some(0), 1);
        ask(Some(1), 20);
        // A cache is replaced.
        by_cache.serve(&[cache("c", 1), cache("a", 0)]);
        ask(Some(0), 2);
        ask(Some(1), 5);
        ask(None, 7);
        let expected = vec![("a".to_owned(), 3), ("c".to_owned(), 5)];
        assert_eq!(counts(&by_cache), (expected, 7, 35));
        for number in 0..100 {
            by_cache.serve(&[cache(&number.to_string(), 0)]);
            ask(Some(0), 1);
        }
        assert_eq!(counts(&by_cache), (vec![("99".to_owned(), 1)], 7, 135));
        assert_eq!(by_cache.slots.lock().unwrap().len(), 2);
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
                        by_cache.record(shard, Some(0), counted);
                    }
                });
            }
            for number in 0..100 {
                by_cache.serve(&[cache(&number.to_string(), 0)]);
            }
        });
        let all = by_cache.sums().all;
        assert_eq!(all.of(Class::Other).aborted, [0, 4000, 0]);
    }
}
