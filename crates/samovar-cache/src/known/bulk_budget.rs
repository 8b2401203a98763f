//! The budget of bulk answers: memory for their lists, and slots for computing closures.
//!
//! # Theory of operation
//!
//! A bulk answer in progress holds the list of its remaining paths, and a slow client makes it hold
//! the list for long. If a new list does not fit, the answer with the longest estimated remaining
//! time is evicted, provided that this time exceeds [`PATIENCE`] or its client has read nothing for
//! [`STALL_TIME`]. Eviction frees the list at once; the connection is reset when the client reads
//! the next piece. So clients that read slowly on purpose cannot exclude others. If no answer may
//! be evicted, the new request gets 503.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use samovar_store::Member;

use crate::sync::Locked;

/// Maximum number of paths in the lists of all answers, at 40 bytes or less each: 80 MB.
pub(crate) const COUNT_MAX: usize = 2_000_000;

/// Answers expected to end within this time are not evicted. It is enough to send 100,000 paths at
/// one megabyte per second.
const PATIENCE: Duration = Duration::from_secs(120);

/// An answer whose client has read nothing for this long may be evicted.
const STALL_TIME: Duration = Duration::from_secs(5);

/// Age of an answer before its client's pace is estimated; until then it is not evicted.
const ESTIMATED_FROM: Duration = Duration::from_secs(1);

/// The lists of paths that all bulk answers in progress hold.
#[derive(Debug, Default)]
pub(crate) struct BulkBudget {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Total number of paths in all lists.
    count: usize,
    lists: BTreeMap<u64, Arc<List>>,
    next_id: u64,
}

/// The list of paths of one bulk answer, and the progress of that answer.
#[derive(Debug)]
struct List {
    count: usize,
    sent_count: AtomicUsize,
    since: Instant,
    /// Time of the client's last read, in milliseconds after `since`.
    taken_ms: AtomicU64,
    /// The requested paths, in order; `None` after eviction. A member without a registration stands
    /// for any registration of its path.
    members: Mutex<Option<Vec<Member>>>,
}

/// One answer's share of the budget; its list is freed when this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<BulkBudget>,
    id: u64,
    list: Arc<List>,
}

/// Error: this answer was evicted to make capacity for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Evicted;

impl BulkBudget {
    /// Adds a list, evicting others if necessary. Returns the share, or `None` if there is not
    /// enough capacity, and the number of evicted lists.
    pub(crate) fn share(
        self: &Arc<Self>,
        members: Vec<Member>,
        now: Instant,
    ) -> (Option<Share>, usize) {
        let mut evicted = Vec::new();
        let mut state = self.state.locked();
        let count = members.len();
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
            members: Mutex::new(Some(members)),
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
        (Some(share), evicted.len())
    }
}

impl State {
    /// Evicts the list with the longest remaining time, if that exceeds [`PATIENCE`] or its client
    /// stalls. Returns the evicted list; `None` if no list may be evicted.
    fn drop_slowest(&mut self, now: Instant) -> Option<Vec<Member>> {
        let left = |list: &List| list.time_left(now);
        let (id, _) = self
            .lists
            .iter()
            .map(|(id, list)| (*id, left(list)))
            .filter(|(_, left)| *left > PATIENCE)
            .max_by_key(|(_, left)| *left)?;
        let list = self.remove(id)?;
        list.members.locked().take()
    }

    fn remove(&mut self, id: u64) -> Option<Arc<List>> {
        let list = self.lists.remove(&id)?;
        self.count -= list.count;
        Some(list)
    }
}

impl List {
    /// Estimates the remaining time at the client's average pace so far.
    fn time_left(&self, now: Instant) -> Duration {
        let age = now.saturating_duration_since(self.since);
        if age < ESTIMATED_FROM {
            return Duration::ZERO;
        }
        let sent = self.sent_count.load(Ordering::Relaxed);
        let left = self.count.saturating_sub(sent);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let seconds = age.as_secs_f64() * left as f64 / sent.max(1) as f64;
        let left = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let taken_at = Duration::from_millis(self.taken_ms.load(Ordering::Relaxed));
        match age.saturating_sub(taken_at) {
            stalled if stalled >= STALL_TIME => left.max(PATIENCE + stalled),
            _ => left,
        }
    }
}

impl Share {
    /// Returns the total number of records in the answer.
    pub(crate) fn count(&self) -> usize {
        self.list.count
    }

    /// Returns at most `count` records from `start` on, and records that those before `start` were
    /// sent.
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
        let members = self.list.members.locked();
        let members = members.as_ref().ok_or(Evicted)?.iter();
        Ok(members.skip(start).take(count).copied().collect())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let list = self.of.state.locked().remove(self.id);
        // Free the list after the lock of the budget is released.
        drop(list);
    }
}

/// Maximum number of large closures that are computed at the same time. The other workers stay free
/// for other requests.
const CLOSURES_AT_ONCE_MAX: usize = 4;

/// Slots for computing large closures. Each acquired slot is one more reference.
#[derive(Debug, Default)]
pub(crate) struct ClosureSlots(Arc<()>);

impl ClosureSlots {
    /// Returns a slot, which is free again when it is dropped; `None` if all are in use.
    pub(crate) fn try_acquire(&self) -> Option<Arc<()>> {
        let slot = Arc::clone(&self.0);
        (Arc::strong_count(&slot) <= CLOSURES_AT_ONCE_MAX + 1).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use samovar_nix::HashPart;

    use super::*;

    fn paths(count: usize) -> Vec<Member> {
        let member = Member {
            hash_part: HashPart::from_bytes([1; 20]),
            registration: None,
        };
        vec![member; count]
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
    fn the_slowest_answer_is_evicted_and_answers_at_a_fair_pace_are_not() {
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
        // All other answers are nearly complete.
        for reader in &readers[1..] {
            reader.some(100_000, 32, at(1000)).unwrap();
        }
        newcomer
            .as_ref()
            .unwrap()
            .some(100_000, 32, at(1000))
            .unwrap();
        assert!(budget.share(paths(1), at(5000)).0.is_none());
        // From now on only one client reads.
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
    fn closure_slots_are_bounded_and_can_be_acquired_again() {
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
