//! Rates by client, in bounded memory.
//!
//! # Theory of operation
//!
//! A bucket is one number, the time at which it will be full again ("theoretical arrival time",
//! GCRA): each request moves it forward by one interval, and what would move it further ahead of
//! now than the bucket is large is refused. A bucket whose time has passed is full, and is as good
//! as none.
//!
//! The table has a fixed number of places, in sets of [`WAYS`]. A client that is not there takes
//! the place in its set that was full first, *as it stands*. If that one is full, as it is unless
//! more clients than there are places ask, nothing is lost. If it is not, the newcomer begins with
//! what the other one has used. So nobody gains by pushing a bucket out, neither his own nor
//! another's: the times in the table never go back. The price is paid by newcomers while somebody
//! asks from more addresses than there are places.
//!
//! In which set a client is depends on a secret, so nobody can choose whom he meets there.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Places in a set.
const WAYS: usize = 8;

/// Sets behind one lock.
const SETS: usize = 32;

/// Locks.
const SHARDS: usize = 64;

/// How many clients are told apart: with the 16 bytes of each, 256 KiB.
#[cfg(test)]
const CLIENTS_MAX: usize = WAYS * SETS * SHARDS;

#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// Whose it is; 0: nobody's.
    tag: u64,
    /// When it will be full, in nanoseconds since the start of the table.
    full_at: u64,
}

type Shard = [[Place; WAYS]; SETS];

/// Buckets of all clients.
#[derive(Debug)]
pub(crate) struct Buckets {
    shards: Box<[Mutex<Box<Shard>>]>,
    start: Instant,
    state: RandomState,
    /// Time for which one token lasts, in nanoseconds.
    interval: u64,
    /// Time to fill an empty bucket, in nanoseconds.
    size: u64,
}

impl Buckets {
    /// `interval`: the time in which one token comes back; `burst`: how many a full bucket has.
    pub(crate) fn new(interval: Duration, burst: u32, start: Instant) -> Self {
        let interval = nanoseconds(interval).max(1);
        let shard = || Mutex::new(Box::new([[Place::default(); WAYS]; SETS]));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            start,
            state: RandomState::new(),
            interval,
            size: interval.saturating_mul(u64::from(burst.max(1))),
        }
    }

    /// Takes a token. The error is how long to wait for one.
    pub(crate) fn take(&self, client: &impl Hash, now: Instant) -> Result<(), Duration> {
        let now = nanoseconds(now.saturating_duration_since(self.start));
        self.with(client, |place| {
            let full_at = place.full_at.max(now).saturating_add(self.interval);
            let wait = full_at.saturating_sub(now.saturating_add(self.size));
            if wait > 0 {
                return Err(Duration::from_nanos(wait));
            }
            place.full_at = full_at;
            Ok(())
        })
    }

    /// Checks for a token without taking it. The error is the time until there is one.
    pub(crate) fn peek(&self, client: &impl Hash, now: Instant) -> Result<(), Duration> {
        let now = nanoseconds(now.saturating_duration_since(self.start));
        let (mut shard, set, tag) = self.find(client);
        let place = shard
            .get_mut(set)
            .and_then(|set| set.iter().find(|place| place.tag == tag));
        let full_at = place.map_or(0, |place| place.full_at).max(now);
        let wait =
            (full_at.saturating_add(self.interval)).saturating_sub(now.saturating_add(self.size));
        match wait {
            0 => Ok(()),
            wait => Err(Duration::from_nanos(wait)),
        }
    }

    fn with<T>(&self, client: &impl Hash, act: impl FnOnce(&mut Place) -> T) -> T {
        let (mut shard, set, tag) = self.find(client);
        let mut nowhere = [Place::default(); WAYS];
        let set = shard.get_mut(set).unwrap_or(&mut nowhere);
        let rank = |place: &&mut Place| (place.tag != tag, place.full_at);
        let mut spare = Place::default();
        let place = set.iter_mut().min_by_key(rank).unwrap_or(&mut spare);
        place.tag = tag;
        act(place)
    }

    fn find(&self, client: &impl Hash) -> (MutexGuard<'_, Box<Shard>>, usize, u64) {
        let tag = self.state.hash_one(client).max(1);
        let [shard, set, ..] = tag.to_le_bytes();
        let shard = &self.shards[usize::from(shard) % SHARDS];
        let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
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
    fn a_burst_and_then_the_rate() {
        let start = Instant::now();
        let buckets = Buckets::new(SECOND / 10, 5, start);
        assert_eq!(tokens(&buckets, 1, start), 5);
        assert_eq!(buckets.take(&1_u32, start), Err(SECOND / 10));
        assert_eq!(buckets.peek(&1_u32, start), Err(SECOND / 10));
        // Who is refused uses nothing up.
        let later = start + SECOND / 10;
        assert_eq!(buckets.peek(&1_u32, later), Ok(()));
        assert_eq!(tokens(&buckets, 1, later), 1);
        assert_eq!(tokens(&buckets, 2, later), 5);
        assert_eq!(tokens(&buckets, 1, start + SECOND * 60), 5);
    }

    #[test]
    fn others_do_not_refill_a_bucket() {
        let start = Instant::now();
        let buckets = Buckets::new(SECOND * 3600, 5, start);
        let of_one = tokens(&buckets, 0, start);
        assert_eq!(of_one, 5);
        let crowd = u32::try_from(CLIENTS_MAX).unwrap() * 20;
        let of_all: usize = (1..=crowd)
            .map(|client| tokens(&buckets, client, start))
            .sum();
        // All places together, and not a token more.
        assert_eq!(of_one + of_all, CLIENTS_MAX * 5);
        assert_eq!(tokens(&buckets, 0, start), 0);
    }

    #[test]
    fn as_many_clients_as_there_are_places_are_mostly_told_apart() {
        let start = Instant::now();
        let buckets = Buckets::new(SECOND, 5, start);
        let clients = u32::try_from(CLIENTS_MAX / 4).unwrap();
        let whole = (0..clients).filter(|client| tokens(&buckets, *client, start) == 5);
        let whole = whole.count();
        assert!(whole * 100 > clients as usize * 98, "{whole} of {clients}");
    }

    proptest! {
        /// In no span of time is there more than the burst and what the span brings.
        #[test]
        fn never_more_than_the_rate(
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
