//! Rate limits per client, in bounded memory.
//!
//! # Theory of operation
//!
//! Each bucket is stored as a single number, the time at which it will be full again (the
//! "theoretical arrival time" of GCRA). A request moves that time forward by one interval. It is
//! refused if the time would then be further in the future than an empty bucket takes to fill. A
//! time in the past means a full bucket, which is the same as no entry.
//!
//! The table has a fixed number of entries, in sets of [`WAYS`]. A new client replaces the entry of
//! its set with the earliest time, *and inherits that time*. Normally that bucket is full, so
//! nothing changes for the new client. If more clients are active than the table has entries, the
//! bucket may not be full, and the new client starts with the tokens left in it. So no client gains
//! tokens from the eviction of a bucket, its own or another's, because times in the table never go
//! back. New clients pay for this during a flood from more addresses than there are entries.
//!
//! The hash that selects the set is keyed with a secret, so a client cannot choose which clients
//! share its set.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use crate::sync::Locked;

/// Number of entries in a set.
const WAYS: usize = 8;

/// Number of sets that share one mutex.
const SETS: usize = 32;

/// Number of mutexes in a table.
const SHARDS: usize = 64;

/// Maximum number of clients that the table distinguishes: at 16 bytes each, 256 KiB.
#[cfg(test)]
const CLIENTS_MAX: usize = WAYS * SETS * SHARDS;

#[derive(Debug, Clone, Copy, Default)]
struct Bucket {
    /// Hash of the client to which the entry belongs; 0 if the entry is unused.
    tag: u64,
    /// Time at which the client's bucket is full again, in nanoseconds since the table was created.
    full_at: u64,
}

type Shard = [[Bucket; WAYS]; SETS];

/// The buckets of all clients.
#[derive(Debug)]
pub(crate) struct Buckets {
    /// Created when the first client is counted: most servers never see a wrong password.
    shards: OnceLock<Box<[Mutex<Box<Shard>>]>>,
    start: Instant,
    state: RandomState,
    /// Time after which the bucket gains one token, in nanoseconds.
    interval: u64,
    /// Time in which an empty bucket fills up completely, in nanoseconds.
    size: u64,
}

impl Buckets {
    /// Creates the table. Each client starts with a full bucket of `burst` tokens, and gains one
    /// token per `interval`.
    pub(crate) fn new(interval: Duration, burst: u32, start: Instant) -> Self {
        let interval = nanoseconds(interval).max(1);
        Self {
            shards: OnceLock::new(),
            start,
            state: RandomState::new(),
            interval,
            size: interval.saturating_mul(u64::from(burst.max(1))),
        }
    }

    /// Takes a token. If there is none, the error is the time to wait for one.
    pub(crate) fn take(&self, client: &impl Hash, now: Instant) -> Result<(), Duration> {
        let now = nanoseconds(now.saturating_duration_since(self.start));
        self.with(client, |bucket| {
            let full_at = bucket.full_at.max(now).saturating_add(self.interval);
            let wait = full_at.saturating_sub(now.saturating_add(self.size));
            if wait > 0 {
                return Err(Duration::from_nanos(wait));
            }
            bucket.full_at = full_at;
            Ok(())
        })
    }

    /// Checks for a token without taking it. If there is none, the error is the time to wait for
    /// one.
    pub(crate) fn peek(&self, client: &impl Hash, now: Instant) -> Result<(), Duration> {
        if self.shards.get().is_none() {
            return Ok(());
        }
        let now = nanoseconds(now.saturating_duration_since(self.start));
        let (shard, set, tag) = self.find(client);
        let bucket = shard[set].iter().find(|bucket| bucket.tag == tag);
        let full_at = bucket.map_or(0, |bucket| bucket.full_at).max(now);
        let wait =
            (full_at.saturating_add(self.interval)).saturating_sub(now.saturating_add(self.size));
        match wait {
            0 => Ok(()),
            wait => Err(Duration::from_nanos(wait)),
        }
    }

    fn with<T>(&self, client: &impl Hash, act: impl FnOnce(&mut Bucket) -> T) -> T {
        let (mut shard, set, tag) = self.find(client);
        let rank = |bucket: &&mut Bucket| (bucket.tag != tag, bucket.full_at);
        let mut spare = Bucket::default();
        let bucket = shard[set].iter_mut().min_by_key(rank);
        let bucket = bucket.unwrap_or(&mut spare);
        bucket.tag = tag;
        act(bucket)
    }

    fn find(&self, client: &impl Hash) -> (MutexGuard<'_, Box<Shard>>, usize, u64) {
        let tag = self.state.hash_one(client).max(1);
        let [shard, set, ..] = tag.to_le_bytes();
        let shards = self.shards.get_or_init(|| {
            let shard = || Mutex::new(Box::new([[Bucket::default(); WAYS]; SETS]));
            (0..SHARDS).map(|_| shard()).collect()
        });
        let shard = shards[usize::from(shard) % SHARDS].locked();
        (shard, usize::from(set) % SETS, tag)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn tokens(buckets: &Buckets, client: u32, now: Instant) -> usize {
        (0..1000)
            .take_while(|_| buckets.take(&client, now).is_ok())
            .count()
    }

    #[test]
    fn a_burst_is_admitted_and_then_requests_at_the_rate() {
        let start = Instant::now();
        let buckets = Buckets::new(SECOND / 10, 5, start);
        assert_eq!(tokens(&buckets, 1, start), 5);
        assert_eq!(buckets.take(&1_u32, start), Err(SECOND / 10));
        assert_eq!(buckets.peek(&1_u32, start), Err(SECOND / 10));
        // A refused request uses no token.
        let later = start + SECOND / 10;
        assert_eq!(buckets.peek(&1_u32, later), Ok(()));
        assert_eq!(tokens(&buckets, 1, later), 1);
        assert_eq!(tokens(&buckets, 2, later), 5);
        assert_eq!(tokens(&buckets, 1, start + SECOND * 60), 5);
    }

    #[test]
    fn other_clients_do_not_refill_a_bucket() {
        let start = Instant::now();
        let buckets = Buckets::new(SECOND * 3600, 5, start);
        let of_one = tokens(&buckets, 0, start);
        assert_eq!(of_one, 5);
        let crowd = u32::try_from(CLIENTS_MAX).unwrap() * 20;
        let of_all: usize = (1..=crowd)
            .map(|client| tokens(&buckets, client, start))
            .sum();
        // No more tokens than those of all entries together.
        assert_eq!(of_one + of_all, CLIENTS_MAX * 5);
        assert_eq!(tokens(&buckets, 0, start), 0);
    }

    #[test]
    fn a_quarter_as_many_clients_as_entries_rarely_share_a_bucket() {
        let start = Instant::now();
        let buckets = Buckets::new(SECOND, 5, start);
        let clients = u32::try_from(CLIENTS_MAX / 4).unwrap();
        let whole = (0..clients).filter(|client| tokens(&buckets, *client, start) == 5);
        let whole = whole.count();
        assert!(whole * 100 > clients as usize * 98, "{whole} of {clients}");
    }

    proptest! {
        /// No span of time admits more than the burst plus the tokens added in that span.
        #[test]
        fn no_span_of_time_admits_more_than_burst_and_rate(
            steps in prop::collection::vec((0_u64..300, 0_u32..40), 1..100)
        ) {
            let start = Instant::now();
            let buckets = Buckets::new(SECOND / 100, 20, start);
            let (mut now, mut count) = (start, 0_u128);
            for (step, asked) in steps {
                now += Duration::from_millis(step);
                count += (0..asked).filter(|_| buckets.take(&7_u8, now).is_ok()).count() as u128;
                prop_assert!(count <= 20 + (now - start).as_millis() / 10);
            }
        }
    }
}
