//! The lists behind answers of many narinfos, bounded in sum.
//!
//! # Theory of operation
//!
//! An answer on its way holds the list of what is still to be said, and a slow reader holds it for
//! long. When there is no room for another list, the answer that would go on for longest gives way,
//! if that is for longer than [`PATIENCE`] or its reader has taken nothing for [`STALL_TIME`]: its
//! list is gone at once, and its connection breaks as soon as its reader takes the next piece. So
//! whoever reads slowly on purpose keeps nobody out, and where everybody reads at a fair pace, the
//! last to come is told to try again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use samovar_nix::HashPart;
use samovar_store::Member;

/// Paths of all answers under way, 40 bytes each at most.
pub(crate) const COUNT_MAX: usize = 2_000_000;

/// An answer that will be done within this does not give way: it has been, for 100,000 paths,
/// whoever reads a megabyte in a second.
const PATIENCE: Duration = Duration::from_secs(120);

/// The same for one whose reader has taken nothing for so long.
const STALL_TIME: Duration = Duration::from_secs(5);

/// Before this nothing is known about a reader's pace.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Which records are wanted, in their order.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// Whatever is to be said of these.
    Paths(Vec<HashPart>),
    /// These registrations: if one of them is no more, there is no answer.
    Closure(Vec<Member>),
}

impl Wanted {
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Paths(hash_parts) => hash_parts.len(),
            Self::Closure(members) => members.len(),
        }
    }

    pub(crate) fn at(&self, index: usize) -> Option<Member> {
        match self {
            Self::Paths(hash_parts) => hash_parts.get(index).map(|hash_part| Member {
                hash_part: *hash_part,
                registration: None,
            }),
            Self::Closure(members) => members.get(index).copied(),
        }
    }
}

/// All answers under way.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Paths of all lists.
    count: usize,
    lists: BTreeMap<u64, Arc<List>>,
    next_id: u64,
}

/// A list, and how far its answer is.
#[derive(Debug)]
struct List {
    count: usize,
    said_count: AtomicUsize,
    since: Instant,
    /// When it was last taken from, in milliseconds after that.
    taken_ms: AtomicU64,
    /// `None`: it gave way.
    wanted: Mutex<Option<Wanted>>,
}

/// A list under way; it makes room when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<UnderWay>,
    id: u64,
    list: Arc<List>,
}

/// An answer has given way to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GaveWay;

impl UnderWay {
    /// Takes a list in, if there is room or can be made; and says how many others gave way.
    pub(crate) fn share(self: &Arc<Self>, wanted: Wanted, now: Instant) -> (Option<Share>, usize) {
        let mut gave_way = Vec::new();
        let mut state = self.state();
        let count = wanted.count();
        while state.count.saturating_add(count) > COUNT_MAX {
            let Some(list) = state.drop_slowest(now) else {
                return (None, gave_way.len());
            };
            gave_way.push(list);
        }
        let list = Arc::new(List {
            count,
            said_count: AtomicUsize::new(0),
            since: now,
            taken_ms: AtomicU64::new(0),
            wanted: Mutex::new(Some(wanted)),
        });
        let id = state.next_id;
        state.next_id += 1;
        state.count += count;
        state.lists.insert(id, Arc::clone(&list));
        drop(state);
        let share = Share {
            of: Arc::clone(self),
            id,
            list,
        };
        (Some(share), gave_way.len())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Empties the list that would be held for longest, if that is for too long.
    fn drop_slowest(&mut self, now: Instant) -> Option<Wanted> {
        let left = |list: &List| list.time_left(now);
        let (id, _) = self
            .lists
            .iter()
            .map(|(id, list)| (*id, left(list)))
            .filter(|(_, left)| *left > PATIENCE)
            .max_by_key(|(_, left)| *left)?;
        let list = self.remove(id)?;
        list.wanted().take()
    }

    fn remove(&mut self, id: u64) -> Option<Arc<List>> {
        let list = self.lists.remove(&id)?;
        self.count -= list.count;
        Some(list)
    }
}

impl List {
    /// For how long it will be held if its reader goes on like this.
    fn time_left(&self, now: Instant) -> Duration {
        let age = now.saturating_duration_since(self.since);
        if age < FIRST_LOOK {
            return Duration::ZERO;
        }
        let said = self.said_count.load(Ordering::Relaxed);
        let left = self.count.saturating_sub(said);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let seconds = age.as_secs_f64() * left as f64 / said.max(1) as f64;
        let left = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let taken_at = Duration::from_millis(self.taken_ms.load(Ordering::Relaxed));
        match age.saturating_sub(taken_at) {
            stalled if stalled >= STALL_TIME => left.max(PATIENCE + stalled),
            _ => left,
        }
    }

    fn wanted(&self) -> MutexGuard<'_, Option<Wanted>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Share {
    /// How many records there are in all.
    pub(crate) fn count(&self) -> usize {
        self.list.count
    }

    /// Whether it is a closure: all of it or nothing.
    pub(crate) fn is_closure(&self) -> bool {
        matches!(*self.list.wanted(), Some(Wanted::Closure(_)))
    }

    /// At most `count` of those from `start` on. Those before are said.
    pub(crate) fn some(
        &self,
        start: usize,
        count: usize,
        now: Instant,
    ) -> Result<Vec<Member>, GaveWay> {
        let age = now.saturating_duration_since(self.list.since).as_millis();
        let taken_ms = u64::try_from(age).unwrap_or(u64::MAX);
        self.list.taken_ms.store(taken_ms, Ordering::Relaxed);
        self.list.said_count.store(start, Ordering::Relaxed);
        let wanted = self.list.wanted();
        let wanted = wanted.as_ref().ok_or(GaveWay)?;
        Ok((start..start.saturating_add(count))
            .map_while(|index| wanted.at(index))
            .collect())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let list = self.of.state().remove(self.id);
        // Freed without the lock.
        drop(list);
    }
}

/// Larger closures that are computed at once.
const CLOSURES_AT_ONCE_MAX: usize = 4;

/// How many large closures are being worked out.
#[derive(Debug, Default)]
pub(crate) struct Closures {
    count: AtomicUsize,
}

pub(crate) struct Place<'a>(&'a Closures);

impl Closures {
    pub(crate) fn place(&self) -> Option<Place<'_>> {
        let before = self.count.fetch_add(1, Ordering::AcqRel);
        // Counted, so given back by dropping.
        let place = Place(self);
        (before < CLOSURES_AT_ONCE_MAX).then_some(place)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(count: usize) -> Wanted {
        Wanted::Paths(vec![HashPart::from_bytes([1; 20]); count])
    }

    #[test]
    fn what_is_under_way_is_bounded() {
        let (under_way, now) = (Arc::new(UnderWay::default()), Instant::now());
        let share = |count| under_way.share(paths(count), now).0;
        let most = share(COUNT_MAX - 1).unwrap();
        assert!(share(2).is_none());
        let last = share(1).unwrap();
        assert!(share(1).is_none());
        drop(most);
        assert!(share(1).is_some());
        drop(last);
        assert!(share(COUNT_MAX).is_some());
        assert!(share(COUNT_MAX + 1).is_none());
        assert_eq!(under_way.state().count, 0);
    }

    #[test]
    fn the_slowest_gives_way_and_nobody_who_reads_at_a_fair_pace() {
        const TENTH: usize = COUNT_MAX / 10;
        let (under_way, start) = (Arc::new(UnderWay::default()), Instant::now());
        let readers: Vec<Share> = (0..10)
            .map(|_| under_way.share(paths(TENTH), start).0.unwrap())
            .collect();
        // A thousand in a second, and so on; the first would take 200 seconds.
        for (number, reader) in readers.iter().enumerate() {
            reader.some((number + 1) * 1000, 32, start).unwrap();
        }
        let at = |ms| start + Duration::from_millis(ms);
        assert!(under_way.share(paths(1), at(999)).0.is_none());
        let (newcomer, gave_way) = under_way.share(paths(TENTH), at(1000));
        assert_eq!(gave_way, 1);
        assert_eq!(readers[0].some(1000, 32, at(1000)), Err(GaveWay));
        // Everybody else will be done soon.
        for reader in &readers[1..] {
            reader.some(100_000, 32, at(1000)).unwrap();
        }
        newcomer
            .as_ref()
            .unwrap()
            .some(100_000, 32, at(1000))
            .unwrap();
        assert!(under_way.share(paths(1), at(5000)).0.is_none());
        // Unless nobody takes anything, but for one.
        readers[5].some(100_000, 32, at(5000)).unwrap();
        let (others, gave_way) = under_way.share(paths(9 * TENTH), at(6000));
        assert_eq!(gave_way, 9);
        assert!(readers[5].some(100_000, 32, at(6000)).is_ok());
        assert!(under_way.share(paths(1), at(6000)).0.is_none());
        drop(others);
        drop(readers);
        drop(newcomer);
        assert_eq!(under_way.state().count, 0);
        assert!(under_way.state().lists.is_empty());
    }

    #[test]
    fn places_are_bounded_and_given_back() {
        let closures = Closures::default();
        for _ in 0..2 {
            let places: Vec<_> = (0..CLOSURES_AT_ONCE_MAX)
                .filter_map(|_| closures.place())
                .collect();
            assert_eq!(places.len(), CLOSURES_AT_ONCE_MAX);
            assert!(closures.place().is_none());
            assert!(closures.place().is_none());
        }
    }
}
