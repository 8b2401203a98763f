//! The budget of bulk answers: memory for their lists, and slots for computing closures.
//!
//! # Theory of operation
//!
//! A bulk answer in progress holds the list of its remaining paths, and a slow client holds it for
//! long. When there is no capacity for another list, the answer with the most time left is evicted,
//! if that is more than [`PATIENCE`] or its client has read nothing for [`STALL_TIME`]: its list is
//! freed at once, and its connection is reset when its client reads the next piece. So clients that
//! read slowly on purpose cannot exclude others. If all clients read at a fair pace, the newest
//! request is answered with 503.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use samovar_store::Member;

use crate::sync::Locked;

/// Paths of all answers in progress, 40 bytes each at most.
pub(crate) const COUNT_MAX: usize = 2_000_000;

/// An answer that will be complete within this is not evicted: 100,000 paths at a megabyte a
/// second.
const PATIENCE: Duration = Duration::from_secs(120);

/// An answer whose client has read nothing for this long may be evicted.
const STALL_TIME: Duration = Duration::from_secs(5);

/// The time before a client's pace is estimated.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// The requested records, in order.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Without a registration: whichever the path has.
    pub(crate) members: Vec<Member>,
    /// Whether they are a closure, which is answered as a whole or not at all.
    pub(crate) is_closure: bool,
}

/// The lists of all answers in progress.
#[derive(Debug, Default)]
pub(crate) struct BulkBudget {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The paths of all lists.
    count: usize,
    lists: BTreeMap<u64, Arc<List>>,
    next_id: u64,
}

/// A list, and the progress of its answer.
#[derive(Debug)]
struct List {
    count: usize,
    sent_count: AtomicUsize,
    since: Instant,
    /// The last read, in milliseconds after `since`.
    taken_ms: AtomicU64,
    /// `None`: evicted.
    wanted: Mutex<Option<Wanted>>,
}

/// A list in progress, freed when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<BulkBudget>,
    id: u64,
    list: Arc<List>,
    pub(crate) is_closure: bool,
}

/// The answer was evicted in favour of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evicted;

impl BulkBudget {
    /// Adds a list if there is capacity, after evictions if need be. Returns the number of evicted
    /// lists as well.
    pub(crate) fn share(self: &Arc<Self>, wanted: Wanted, now: Instant) -> (Option<Share>, usize) {
        let mut evicted = Vec::new();
        let mut state = self.state.locked();
        let count = wanted.members.len();
        let is_closure = wanted.is_closure;
        while state.count.saturating_add(count) > COUNT_MAX {
            let Some(list) = state.drop_slowest(now) else {
                return (None, evicted.len());
            };
            evicted.push(list);
        }
        let list = Arc::new(List {
            count,
            sent_count: AtomicUsize::new(0),
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
            is_closure,
        };
        (Some(share), evicted.len())
    }
}

impl State {
    /// Evicts the list with the most time left, if that exceeds [`PATIENCE`] or its client stalls.
    fn drop_slowest(&mut self, now: Instant) -> Option<Wanted> {
        let left = |list: &List| list.time_left(now);
        let (id, _) = self
            .lists
            .iter()
            .map(|(id, list)| (*id, left(list)))
            .filter(|(_, left)| *left > PATIENCE)
            .max_by_key(|(_, left)| *left)?;
        let list = self.remove(id)?;
        list.wanted.locked().take()
    }

    fn remove(&mut self, id: u64) -> Option<Arc<List>> {
        let list = self.lists.remove(&id)?;
        self.count -= list.count;
        Some(list)
    }
}

impl List {
    /// The time left at the client's present pace.
    fn time_left(&self, now: Instant) -> Duration {
        let age = now.saturating_duration_since(self.since);
        if age < FIRST_LOOK {
            return Duration::ZERO;
        }
        let said = self.sent_count.load(Ordering::Relaxed);
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
}

impl Share {
    /// The number of records.
    pub(crate) fn count(&self) -> usize {
        self.list.count
    }

    /// At most `count` records from `start` on. Those before were sent.
    pub(crate) fn some(
        &self,
        start: usize,
        count: usize,
        now: Instant,
    ) -> Result<Vec<Member>, Evicted> {
        let age = now.saturating_duration_since(self.list.since).as_millis();
        let taken_ms = u64::try_from(age).unwrap_or(u64::MAX);
        self.list.taken_ms.store(taken_ms, Ordering::Relaxed);
        self.list.sent_count.store(start, Ordering::Relaxed);
        let wanted = self.list.wanted.locked();
        let members = &wanted.as_ref().ok_or(Evicted)?.members;
        Ok(members.iter().skip(start).take(count).copied().collect())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let list = self.of.state.locked().remove(self.id);
        // Freed without the lock.
        drop(list);
    }
}

/// Larger closures that are computed at once.
const CLOSURES_AT_ONCE_MAX: usize = 4;

/// Slots for computing large closures.
#[derive(Debug, Default)]
pub(crate) struct ClosureSlots {
    count: AtomicUsize,
}

pub(crate) struct ClosureSlot<'a>(&'a ClosureSlots);

impl ClosureSlots {
    pub(crate) fn try_acquire(&self) -> Option<ClosureSlot<'_>> {
        let before = self.count.fetch_add(1, Ordering::AcqRel);
        // Counted before the check, so that dropping gives it back.
        let slot = ClosureSlot(self);
        (before < CLOSURES_AT_ONCE_MAX).then_some(slot)
    }
}

impl Drop for ClosureSlot<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use samovar_nix::HashPart;

    use super::*;

    fn paths(count: usize) -> Wanted {
        let member = Member {
            hash_part: HashPart::from_bytes([1; 20]),
            registration: None,
        };
        Wanted {
            members: vec![member; count],
            is_closure: false,
        }
    }

    #[test]
    fn answers_in_progress_are_bounded() {
        let (budget, now) = (Arc::new(BulkBudget::default()), Instant::now());
        let share = |count| budget.share(paths(count), now).0;
        let most = share(COUNT_MAX - 1).unwrap();
        assert!(share(2).is_none());
        let last = share(1).unwrap();
        assert!(share(1).is_none());
        drop(most);
        assert!(share(1).is_some());
        drop(last);
        assert!(share(COUNT_MAX).is_some());
        assert!(share(COUNT_MAX + 1).is_none());
        assert_eq!(budget.state.locked().count, 0);
    }

    #[test]
    fn the_slowest_answer_is_evicted_and_none_at_a_fair_pace() {
        const TENTH: usize = COUNT_MAX / 10;
        let (budget, start) = (Arc::new(BulkBudget::default()), Instant::now());
        let readers: Vec<Share> = (0..10)
            .map(|_| budget.share(paths(TENTH), start).0.unwrap())
            .collect();
        // The first client reads 1000 paths per second, which takes 200 seconds; the others read
        // faster.
        for (number, reader) in readers.iter().enumerate() {
            reader.some((number + 1) * 1000, 32, start).unwrap();
        }
        let at = |ms| start + Duration::from_millis(ms);
        assert!(budget.share(paths(1), at(999)).0.is_none());
        let (newcomer, evicted) = budget.share(paths(TENTH), at(1000));
        assert_eq!(evicted, 1);
        assert_eq!(readers[0].some(1000, 32, at(1000)), Err(Evicted));
        // All others are close to their end.
        for reader in &readers[1..] {
            reader.some(100_000, 32, at(1000)).unwrap();
        }
        newcomer
            .as_ref()
            .unwrap()
            .some(100_000, 32, at(1000))
            .unwrap();
        assert!(budget.share(paths(1), at(5000)).0.is_none());
        // Now all but one stall.
        readers[5].some(100_000, 32, at(5000)).unwrap();
        let (others, evicted) = budget.share(paths(9 * TENTH), at(6000));
        assert_eq!(evicted, 9);
        assert!(readers[5].some(100_000, 32, at(6000)).is_ok());
        assert!(budget.share(paths(1), at(6000)).0.is_none());
        drop(others);
        drop(readers);
        drop(newcomer);
        assert_eq!(budget.state.locked().count, 0);
        assert!(budget.state.locked().lists.is_empty());
    }

    #[test]
    fn closure_slots_are_bounded_and_given_back() {
        let closures = ClosureSlots::default();
        for _ in 0..2 {
            let slots: Vec<_> = (0..CLOSURES_AT_ONCE_MAX)
                .filter_map(|_| closures.try_acquire())
                .collect();
            assert_eq!(slots.len(), CLOSURES_AT_ONCE_MAX);
            assert!(closures.try_acquire().is_none());
            assert!(closures.try_acquire().is_none());
        }
    }
}
