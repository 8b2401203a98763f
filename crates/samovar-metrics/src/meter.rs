//! Counters of requests, updated for every response.
//!
//! # Theory of operation
//!
//! The counters are sharded by thread, so that threads do not contend for cache lines. A lock is
//! held only while two pointers are swapped. A reader adds up all shards. Counters that exist for
//! each cache are in `by_cache.rs`.
//!
//! Each shard also records the requested paths, and a sampler thread takes these records once a
//! second. Above a certain rate, a shard records a random sample only, in which each record stands
//! for several requests.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use samovar_http::{Exchange, Peer};
use samovar_nix::HashPart;

use crate::buckets::{self, BUCKET_COUNT, Histogram};
use crate::by_cache::{ByCache, CacheSums, ClassCounts, Counted};
use crate::class::{Class, MethodClass, Outcome, Protocol, StatusClass};
use crate::routed::Routed;

const CLASS_COUNT: usize = Class::NAMES.len();
const PROTOCOL_COUNT: usize = Protocol::NAMES.len();

/// Maximum number of requests that a shard records per second. The records take 96 KiB.
const RECORD_COUNT_MAX: usize = 2048;

/// The request counters of all threads.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) by_cache: ByCache,
    shards: Box<[Shard]>,
}

/// One shard: the counters of some of the threads, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    classes: [ClassShard; CLASS_COUNT],
    /// Numbers of requests by protocol, without and with TLS.
    protocols: [[AtomicU64; 2]; PROTOCOL_COUNT],
    requests: Mutex<RequestShard>,
}

#[derive(Debug)]
struct ClassShard {
    durations: [AtomicU64; BUCKET_COUNT],
    duration_sum_ns: AtomicU64,
    /// Number of complete 2xx responses made by I/O threads.
    inline: AtomicU64,
}

/// A recorded request for a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordedRequest {
    pub(crate) kind: RequestKind,
    pub(crate) hash_part: HashPart,
    /// Number of requests that this record stands for.
    pub(crate) count: u64,
    /// Bytes of the body that were sent.
    pub(crate) len: u64,
    /// A hash of the client's address, from 0 to 63.
    pub(crate) client: u8,
}

/// The kind of a recorded request: for a narinfo that was found, for one that is missing, or for
/// the contents of a path: a NAR, or a file of the web interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Served,
    Missing,
    Contents,
}

#[derive(Debug)]
struct RequestShard {
    list: Vec<RecordedRequest>,
    /// Sampling interval: one in `stride` requests is recorded on average.
    stride: u64,
    /// Number of requests to skip before the next one is recorded.
    skip: u64,
    random: u64,
    /// Number of requests since the records were last taken.
    count: u64,
}

/// The sums over all shards, read at nearly the same moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sums {
    pub(crate) by_cache: CacheSums,
    pub(crate) classes: [ClassSums; CLASS_COUNT],
    pub(crate) protocols: [[u64; 2]; PROTOCOL_COUNT],
}

/// The sums of one class; see [`ClassShard`].
#[derive(Debug, Clone, Default)]
pub(crate) struct ClassSums {
    pub(crate) durations: Histogram,
    pub(crate) inline: u64,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Enough for the I/O threads and most workers.
        let count = (4 * cores).next_power_of_two().clamp(8, 64);
        let shard = |number: usize| Shard {
            classes: std::array::from_fn(|_| ClassShard::default()),
            protocols: Default::default(),
            requests: Mutex::new(RequestShard::new(number)),
        };
        Self {
            by_cache: ByCache::new(count),
            shards: (0..count).map(shard).collect(),
        }
    }

    pub(crate) fn record(&self, exchange: &Exchange<'_>) {
        let number = thread_number() & (self.shards.len() - 1);
        let shard = &self.shards[number];
        let head = exchange.head;
        let Routed {
            class,
            cache,
            hash_part,
        } = Routed::of(exchange.tag);
        let status = StatusClass::of(exchange.status.code());
        let method = MethodClass::of(head.method());
        let counted = Counted {
            class,
            method,
            status,
            outcome: Outcome::of(exchange.end),
            body_len: exchange.body_len,
        };
        self.by_cache.record(number, cache, counted);
        shard.classes[class as usize].record(exchange, counted);
        let protocol = &shard.protocols[Protocol::of(head.version()) as usize];
        protocol[usize::from(head.is_secure())].fetch_add(1, Ordering::Relaxed);
        let kind = match (class, status) {
            (Class::Narinfo, StatusClass::Success) => RequestKind::Served,
            (Class::Narinfo, StatusClass::Absent) => RequestKind::Missing,
            (Class::Nar | Class::Page, StatusClass::Success) => RequestKind::Contents,
            _ => return,
        };
        // The lock of the records is contended only when the sampler takes them, once a second.
        // Then this record is lost, which does not matter.
        if let Some(hash_part) = hash_part
            && let Ok(mut records) = shard.requests.try_lock()
        {
            records.put(kind, hash_part, exchange.body_len, head.peer());
        }
    }

    pub(crate) fn sums(&self) -> Sums {
        let mut sums = Sums {
            by_cache: self.by_cache.sums(),
            ..Sums::default()
        };
        for shard in &self.shards {
            for (sum, counts) in sums.classes.iter_mut().zip(&shard.classes) {
                counts.add_to(sum);
            }
            for (sums, counters) in sums.protocols.iter_mut().zip(&shard.protocols) {
                add_each(sums, counters);
            }
        }
        sums
    }

    /// Passes the requests recorded since the last call to `each`. `list` is a buffer that is
    /// swapped with each shard's buffer in turn.
    pub(crate) fn take_requests(
        &self,
        list: &mut Vec<RecordedRequest>,
        mut each: impl FnMut(RecordedRequest),
    ) {
        for shard in &self.shards {
            list.clear();
            let mut records = shard
                .requests
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if records.list.is_empty() {
                records.restart();
                continue;
            }
            list.reserve_exact(RECORD_COUNT_MAX);
            std::mem::swap(list, &mut records.list);
            records.restart();
            drop(records);
            list.drain(..).for_each(&mut each);
        }
    }
}

/// Returns the number of this thread, starting at zero.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

impl Default for ClassShard {
    fn default() -> Self {
        Self {
            durations: std::array::from_fn(|_| AtomicU64::new(0)),
            duration_sum_ns: AtomicU64::new(0),
            inline: AtomicU64::new(0),
        }
    }
}

impl ClassShard {
    fn record(&self, exchange: &Exchange<'_>, counted: Counted) {
        let add = |counter: &AtomicU64, value: u64| {
            counter.fetch_add(value, Ordering::Relaxed);
        };
        let duration = exchange.duration;
        let ns =
            duration.as_secs().saturating_mul(1_000_000_000) + u64::from(duration.subsec_nanos());
        add(&self.durations[buckets::index_of(ns)], 1);
        add(&self.duration_sum_ns, ns);
        let is_made = counted.outcome == Outcome::Complete && exchange.is_inline;
        if is_made && counted.status == StatusClass::Success {
            add(&self.inline, 1);
        }
    }

    fn add_to(&self, sums: &mut ClassSums) {
        add_each(&mut sums.durations.counts, &self.durations);
        sums.durations.sum_ns += self.duration_sum_ns.load(Ordering::Relaxed);
        sums.inline += self.inline.load(Ordering::Relaxed);
    }
}

fn add_each(sums: &mut [u64], counters: &[AtomicU64]) {
    for (sum, counter) in sums.iter_mut().zip(counters) {
        *sum += counter.load(Ordering::Relaxed);
    }
}

impl RequestShard {
    fn new(number: usize) -> Self {
        Self {
            list: Vec::new(),
            stride: 1,
            skip: 0,
            // The state of the xorshift generator must not be zero.
            random: 0x9E37_79B9_7F4A_7C15 ^ number as u64,
            count: 0,
        }
    }

    fn put(&mut self, kind: RequestKind, hash_part: HashPart, len: u64, peer: Peer) {
        self.count += 1;
        let count = match kind {
            // Record every request for contents: there are fewer of them, and each one weighs more.
            RequestKind::Contents => 1,
            _ if self.skip > 0 => {
                self.skip -= 1;
                return;
            }
            _ => {
                self.skip = self.next_skip();
                self.stride
            }
        };
        if self.list.len() < RECORD_COUNT_MAX {
            self.list.push(RecordedRequest {
                kind,
                hash_part,
                count,
                len,
                client: mark_of(peer),
            });
        }
    }

    /// Returns a random number of requests to skip. With a fixed number, a client that repeatedly
    /// requests the same list could always have the same path recorded.
    fn next_skip(&mut self) -> u64 {
        if self.stride == 1 {
            return 0;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % (2 * self.stride - 1)
    }

    /// Sets the sampling rate for as many requests as in the last second.
    fn restart(&mut self) {
        let count = std::mem::take(&mut self.count);
        self.stride = 1 + count * 3 / 2 / RECORD_COUNT_MAX as u64;
        self.skip = self.skip.min(self.stride);
    }
}

/// Hashes the client's address to a number from 0 to 63.
fn mark_of(peer: Peer) -> u8 {
    let bits = match peer {
        Peer::Unix(_) => 0,
        Peer::Tcp(address) => match address.ip() {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            #[expect(clippy::cast_possible_truncation, reason = "folded")]
            IpAddr::V6(ip) => (ip.to_bits() ^ ip.to_bits() >> 64) as u64,
        },
    };
    (bits.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as u8
}

impl Sums {
    pub(crate) fn of(&self, class: Class) -> &ClassSums {
        &self.classes[class as usize]
    }

    /// Returns the counts of all requests of a class.
    pub(crate) fn counts_of(&self, class: Class) -> &ClassCounts {
        self.by_cache.all.of(class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_sample_represents_all_requests_under_load() {
        let mut shard = RequestShard::new(3);
        let part = |number: u64| {
            let mut part = [0; 20];
            part[0] = u8::try_from(number % 2).expect("is small");
            HashPart::from_bytes(part)
        };
        for second in 0..10 {
            for number in 0..100_000 {
                shard.put(RequestKind::Served, part(number), 1, Peer::Unix(None));
            }
            let list = std::mem::take(&mut shard.list);
            shard.restart();
            assert!(list.len() <= RECORD_COUNT_MAX);
            if second > 0 {
                let sum = |number| -> u64 {
                    let of = list
                        .iter()
                        .filter(|request| request.hash_part == part(number));
                    of.map(|request| request.count).sum()
                };
                // If two paths alternate, each gets half of the count, whatever the sampling rate
                // is.
                for number in [0, 1] {
                    assert!((40_000..60_000).contains(&sum(number)), "{}", sum(number));
                }
            }
        }
        shard.restart();
        shard.put(RequestKind::Served, part(0), 1, Peer::Unix(None));
        assert_eq!(shard.stride, 1);
    }

    #[test]
    fn addresses_are_hashed_evenly_to_64_marks() {
        let marks: std::collections::HashSet<u8> = (0..=255)
            .map(|number| mark_of(Peer::Tcp(([10, 0, 0, number], 1).into())))
            .collect();
        assert!(marks.len() > 50 && marks.iter().all(|mark| *mark < 64));
    }
}
