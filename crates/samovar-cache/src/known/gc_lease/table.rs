//! The table of granted and requested leases, and of NARs in progress.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use samovar_nix::{HashPart, StorePath};

use super::Waiter;
use crate::known::sharded::HashPartHasher;

/// Maximum number of leases in one generation.
const LEASE_COUNT_MAX: usize = 100_000;

/// Maximum number of paths that wait for a lease.
const QUEUE_COUNT_MAX: usize = 8192;

type Set = HashSet<HashPart, BuildHasherDefault<HashPartHasher>>;

/// The state of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Status {
    /// No connection to a daemon has been opened yet.
    #[default]
    Off,
    /// The daemon replies in time.
    Leasing,
    /// The daemon has not replied to a request in time.
    Stalled,
    /// The connection to the daemon is lost.
    Failing,
}

/// A path to lease.
#[derive(Debug)]
pub(super) struct LeaseRequest {
    pub(super) path: StorePath,
    /// The request that waits for the lease; `None` for a renewal.
    pub(super) waiter: Option<Arc<Waiter>>,
}

/// The lease state of several paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseState {
    /// All paths are leased by the present generation, or by the previous one and queued for
    /// renewal.
    Leased,
    /// All paths are leased, but some only by the previous generation, and their renewal could not
    /// be queued.
    Expiring,
    /// This number of paths is queued for their first lease; the request should wait.
    Requested(usize),
    /// Some paths are not leased; waiting is useless.
    Unleased,
}

/// The state of all leases.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) status: Status,
    /// The number of the present generation, never zero. A lost generation skips the next number,
    /// so that no path looks leased by the previous one.
    pub(super) generation: u32,
    pub(super) present: Set,
    previous: Set,
    queue: Vec<LeaseRequest>,
    /// Whether the keeper thread must be woken, because the queue was empty before its first entry
    /// was added.
    needs_wake: bool,
    in_progress: HashMap<HashPart, (StorePath, usize), BuildHasherDefault<HashPartHasher>>,
    pub(super) is_stopped: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            status: Status::Off,
            generation: 2,
            present: Set::default(),
            previous: Set::default(),
            queue: Vec::new(),
            needs_wake: false,
            in_progress: HashMap::default(),
            is_stopped: false,
        }
    }
}

impl Table {
    /// Returns the generation for I/O threads; zero while no lease can be obtained.
    pub(super) fn published(&self) -> u32 {
        match self.status {
            Status::Leasing | Status::Stalled if !self.is_full() => self.generation,
            _ => 0,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.present.len() >= LEASE_COUNT_MAX
    }

    /// Looks up the leases of paths. Queues paths that the present generation does not lease.
    pub(super) fn request(&mut self, paths: &[StorePath], waiter: &Arc<Waiter>) -> LeaseState {
        let can_request =
            matches!(self.status, Status::Leasing | Status::Stalled) && !self.is_full();
        let (mut unleased_count, mut left_out_count, mut is_lasting) = (0, 0, true);
        for path in paths {
            let hash_part = path.hash_part();
            if self.present.contains(&hash_part) {
                continue;
            }
            let is_leased = self.previous.contains(&hash_part);
            unleased_count += usize::from(!is_leased);
            if can_request && self.queue.len() < QUEUE_COUNT_MAX {
                self.needs_wake |= self.queue.is_empty();
                self.queue.push(LeaseRequest {
                    path: path.clone(),
                    waiter: (!is_leased).then(|| Arc::clone(waiter)),
                });
            } else {
                is_lasting = false;
                left_out_count += usize::from(!is_leased);
            }
        }
        match (unleased_count, left_out_count) {
            (0, _) if is_lasting => LeaseState::Leased,
            (0, _) => LeaseState::Expiring,
            (count, 0) if self.status == Status::Leasing => LeaseState::Requested(count),
            _ => LeaseState::Unleased,
        }
    }

    /// Returns whether the keeper thread must be woken because of the queue, and resets that.
    pub(super) fn take_wake(&mut self) -> bool {
        std::mem::take(&mut self.needs_wake)
    }

    pub(super) fn take_queue(&mut self) -> Vec<LeaseRequest> {
        std::mem::take(&mut self.queue)
    }

    pub(super) fn is_leased(&self, path: &StorePath) -> bool {
        self.present.contains(&path.hash_part())
    }

    /// Records a lease that the daemon granted in the present generation.
    pub(super) fn note_leased(&mut self, path: &StorePath) {
        self.present.insert(path.hash_part());
        self.note_answer();
    }

    /// Records that the daemon replies again.
    pub(super) fn note_answer(&mut self) {
        if self.status == Status::Stalled {
            self.status = Status::Leasing;
        }
    }

    /// Records that a request waited for the daemon in vain.
    pub(super) fn note_stalled(&mut self) {
        if self.status == Status::Leasing {
            self.status = Status::Stalled;
        }
    }

    /// Starts a generation. Returns the NARs in progress, which it must lease.
    pub(super) fn begin_generation(&mut self) -> Vec<LeaseRequest> {
        self.generation += 1;
        self.previous = std::mem::take(&mut self.present);
        self.requests_in_progress()
    }

    /// Records that the connection of the previous generation was closed or lost.
    pub(super) fn lose_previous(&mut self) {
        self.generation += 2;
        self.previous = Set::default();
    }

    /// Records that the connection of the present generation was lost.
    pub(super) fn lose_present(&mut self) {
        self.generation += 2;
        self.present = Set::default();
        self.status = Status::Failing;
    }

    /// Records that the present generation has a connection. Returns the NARs in progress, to be
    /// leased.
    pub(super) fn begin_leasing(&mut self) -> Vec<LeaseRequest> {
        self.status = Status::Leasing;
        self.requests_in_progress()
    }

    fn requests_in_progress(&self) -> Vec<LeaseRequest> {
        let paths = self.in_progress.values().map(|(path, _)| path.clone());
        let request = |path| LeaseRequest { path, waiter: None };
        paths.map(request).collect()
    }

    /// Records that a NAR of the path is being sent.
    pub(super) fn begin(&mut self, path: &StorePath) {
        let entry = self.in_progress.entry(path.hash_part());
        entry.or_insert_with(|| (path.clone(), 0)).1 += 1;
    }

    /// Records that a NAR of the path was sent or aborted.
    pub(super) fn end(&mut self, path: &StorePath) {
        if let Some((_, count)) = self.in_progress.get_mut(&path.hash_part()) {
            *count -= 1;
            if *count == 0 {
                self.in_progress.remove(&path.hash_part());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(number: usize) -> StorePath {
        let mut bytes = [0; 20];
        // The hasher reads these bytes; real hash parts differ in all bytes.
        bytes[1..9].copy_from_slice(&(number as u64).to_be_bytes());
        let hash_part = HashPart::from_bytes(bytes);
        StorePath::from_base_name(&format!("{hash_part}-a")).unwrap()
    }

    fn leasing() -> (Table, Arc<Waiter>) {
        let mut table = Table::default();
        assert!(table.begin_leasing().is_empty());
        (table, Arc::default())
    }

    #[test]
    fn nothing_is_queued_before_a_daemon_answers() {
        let (mut table, waiter) = (Table::default(), Arc::default());
        assert_eq!((table.published(), table.status), (0, Status::Off));
        assert_eq!(table.request(&[path(1)], &waiter), LeaseState::Unleased);
        assert!(!table.take_wake() && table.take_queue().is_empty());
        table.begin_leasing();
        assert_eq!(table.published(), table.generation);
    }

    #[test]
    fn a_lease_lasts_for_its_generation_and_the_next() {
        let (mut table, waiter) = leasing();
        assert_eq!(table.request(&[path(1)], &waiter), LeaseState::Requested(1));
        assert!(table.take_wake());
        assert_eq!(table.request(&[path(2)], &waiter), LeaseState::Requested(1));
        assert!(!table.take_wake(), "the keeper is awake");
        for wanted in table.take_queue() {
            assert!(wanted.waiter.is_some());
            table.note_leased(&wanted.path);
        }
        assert_eq!(
            table.request(&[path(1), path(2)], &waiter),
            LeaseState::Leased
        );
        let before = table.published();
        assert!(table.begin_generation().is_empty());
        assert_eq!(table.published(), before + 1);
        // Leased by the previous generation, and renewed without waiting.
        assert_eq!(table.request(&[path(1)], &waiter), LeaseState::Leased);
        let again = table.take_queue();
        assert!(again.iter().all(|wanted| wanted.waiter.is_none()));
        assert_eq!(again.len(), 1);
        table.begin_generation();
        assert_eq!(
            table.request(&[path(1), path(3)], &waiter),
            LeaseState::Requested(2)
        );
    }

    #[test]
    fn nars_in_progress_are_leased_by_every_generation() {
        let (mut table, _) = leasing();
        table.begin(&path(1));
        table.begin(&path(1));
        table.begin(&path(2));
        assert_eq!(table.begin_generation().len(), 2);
        table.end(&path(1));
        table.end(&path(2));
        assert_eq!(table.begin_generation().len(), 1);
        table.end(&path(1));
        assert_eq!(table.begin_generation().len(), 0);
    }

    #[test]
    fn a_full_generation_grants_no_more_leases_and_the_next_does() {
        let (mut table, waiter) = leasing();
        for number in 0..LEASE_COUNT_MAX {
            assert_ne!(table.published(), 0, "{number}");
            table.note_leased(&path(number));
        }
        assert_eq!(table.published(), 0);
        assert_eq!(table.request(&[path(0)], &waiter), LeaseState::Leased);
        let one_more = path(LEASE_COUNT_MAX);
        let wanted = [path(0), one_more.clone()];
        assert_eq!(table.request(&wanted, &waiter), LeaseState::Unleased);
        assert!(table.take_queue().is_empty());
        table.begin_generation();
        assert_ne!(table.published(), 0);
        assert_eq!(
            table.request(&[one_more], &waiter),
            LeaseState::Requested(1)
        );
    }

    #[test]
    fn the_queue_is_bounded() {
        let (mut table, waiter) = leasing();
        let paths: Vec<StorePath> = (0..=QUEUE_COUNT_MAX).map(path).collect();
        let (last, most) = paths.split_last().unwrap();
        assert_eq!(
            table.request(most, &waiter),
            LeaseState::Requested(QUEUE_COUNT_MAX)
        );
        let last = std::slice::from_ref(last);
        assert_eq!(table.request(last, &waiter), LeaseState::Unleased);
        assert_eq!(table.take_queue().len(), QUEUE_COUNT_MAX);
        assert_eq!(table.request(last, &waiter), LeaseState::Requested(1));
    }

    #[test]
    fn no_request_waits_while_the_daemon_is_stalled() {
        let (mut table, waiter) = leasing();
        table.note_stalled();
        assert_eq!(table.request(&[path(1)], &waiter), LeaseState::Unleased);
        assert_eq!(table.take_queue().len(), 1, "queued nevertheless");
        table.note_leased(&path(1));
        assert_eq!(table.request(&[path(2)], &waiter), LeaseState::Requested(1));
    }

    #[test]
    fn a_path_leased_by_a_lost_generation_is_not_leased() {
        let (mut table, waiter) = leasing();
        table.note_leased(&path(1));
        table.begin_generation();
        table.note_leased(&path(2));
        let numbers = [table.generation - 1, table.generation];
        table.lose_present();
        assert_eq!(table.published(), 0);
        table.begin_leasing();
        let now = table.published();
        assert!(!numbers.contains(&now) && !numbers.contains(&(now - 1)));
        assert_eq!(table.request(&[path(1)], &waiter), LeaseState::Leased);
        assert_eq!(table.request(&[path(2)], &waiter), LeaseState::Requested(1));
        table.lose_present();
        assert_eq!(table.request(&[path(1)], &waiter), LeaseState::Expiring);
        table.begin_leasing();
        table.lose_previous();
        assert_eq!(table.request(&[path(1)], &waiter), LeaseState::Requested(1));
    }
}
