//! Which paths are held, wanted, and under way.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use samovar_nix::{HashPart, StorePath};

use super::Waiter;
use crate::known::sharded::HashPartHasher;

/// Paths that one generation holds.
const ROOT_COUNT_MAX: usize = 100_000;

/// Paths that wait to be asked for.
const QUEUE_COUNT_MAX: usize = 8192;

type Set = HashSet<HashPart, BuildHasherDefault<HashPartHasher>>;

/// What can be expected of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Status {
    /// None has ever answered.
    #[default]
    Off,
    /// It answers in time.
    Holding,
    /// Somebody waited for it in vain.
    Stalled,
    /// There is no connection.
    Failing,
}

/// A path to ask for.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) path: StorePath,
    /// Who waits for it, if somebody does.
    pub(super) waiter: Option<Arc<Waiter>>,
}

/// What is known of some paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// All are held.
    Held,
    /// All are, but some not by the present generation, and that could not be asked.
    HeldYet,
    /// So many are asked for, and worth waiting for.
    Asked(usize),
    /// Some are not, and cannot be, or nobody knows when.
    Unheld,
}

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    status: Status,
    /// The number of the present generation, never zero. A generation that is lost takes the number
    /// after it along, so that nothing is taken for held by the generation before.
    generation: u32,
    present: Set,
    previous: Set,
    queue: Vec<Wanted>,
    /// Whether the queue was empty before what is in it came.
    is_news: bool,
    under_way: HashMap<HashPart, (StorePath, usize), BuildHasherDefault<HashPartHasher>>,
    is_stopped: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            status: Status::Off,
            generation: 2,
            present: Set::default(),
            previous: Set::default(),
            queue: Vec::new(),
            is_news: false,
            under_way: HashMap::default(),
            is_stopped: false,
        }
    }
}

impl Table {
    pub(super) fn status(&self) -> Status {
        self.status
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// The generation for those who may ask for more; zero while that is no use.
    pub(super) fn published(&self) -> u32 {
        match self.status {
            Status::Holding | Status::Stalled if !self.is_full() => self.generation,
            _ => 0,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.present.len() >= ROOT_COUNT_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.present.is_empty()
    }

    /// Finds out whether paths are held, and has those asked for that the present generation does
    /// not hold.
    pub(super) fn want(&mut self, paths: &[StorePath], waiter: &Arc<Waiter>) -> Found {
        let can_ask = matches!(self.status, Status::Holding | Status::Stalled) && !self.is_full();
        let (mut unheld_count, mut left_out_count, mut is_lasting) = (0, 0, true);
        for path in paths {
            let hash_part = path.hash_part();
            if self.present.contains(&hash_part) {
                continue;
            }
            let is_held = self.previous.contains(&hash_part);
            unheld_count += usize::from(!is_held);
            if can_ask && self.queue.len() < QUEUE_COUNT_MAX {
                self.is_news |= self.queue.is_empty();
                self.queue.push(Wanted {
                    path: path.clone(),
                    waiter: (!is_held).then(|| Arc::clone(waiter)),
                });
            } else {
                is_lasting = false;
                left_out_count += usize::from(!is_held);
            }
        }
        match (unheld_count, left_out_count) {
            (0, _) if is_lasting => Found::Held,
            (0, _) => Found::HeldYet,
            (count, 0) if self.status == Status::Holding => Found::Asked(count),
            _ => Found::Unheld,
        }
    }

    /// Whether the keeper has to be woken for what came into the queue.
    pub(super) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.is_news)
    }

    pub(super) fn take_queue(&mut self) -> Vec<Wanted> {
        std::mem::take(&mut self.queue)
    }

    pub(super) fn holds(&self, path: &StorePath) -> bool {
        self.present.contains(&path.hash_part())
    }

    /// The present generation holds this path: the daemon has said so.
    pub(super) fn note_held(&mut self, path: &StorePath) {
        self.present.insert(path.hash_part());
        self.note_answer();
    }

    /// The daemon has said something.
    pub(super) fn note_answer(&mut self) {
        if self.status == Status::Stalled {
            self.status = Status::Holding;
        }
    }

    /// Somebody waited for the daemon in vain.
    pub(super) fn note_stalled(&mut self) {
        if self.status == Status::Holding {
            self.status = Status::Stalled;
        }
    }

    /// A new generation has begun. Returns what is under way, to be held by it.
    pub(super) fn turn(&mut self) -> Vec<Wanted> {
        self.generation += 1;
        self.previous = std::mem::take(&mut self.present);
        self.wanted_under_way()
    }

    /// The connection of the generation before is closed or lost.
    pub(super) fn lose_previous(&mut self) {
        self.generation += 2;
        self.previous = Set::default();
    }

    /// The connection of the present generation is lost.
    pub(super) fn lose_present(&mut self) {
        self.generation += 2;
        self.present = Set::default();
        self.status = Status::Failing;
    }

    /// The present generation has a connection (again). Returns what is under way.
    pub(super) fn begin_holding(&mut self) -> Vec<Wanted> {
        self.status = Status::Holding;
        self.wanted_under_way()
    }

    fn wanted_under_way(&self) -> Vec<Wanted> {
        let paths = self.under_way.values().map(|(path, _)| path.clone());
        let wanted = |path| Wanted { path, waiter: None };
        paths.map(wanted).collect()
    }

    /// The files of a path begin to be sent.
    pub(super) fn begin(&mut self, path: &StorePath) {
        let entry = self.under_way.entry(path.hash_part());
        entry.or_insert_with(|| (path.clone(), 0)).1 += 1;
    }

    /// They are sent, or nobody wants them any more.
    pub(super) fn end(&mut self, path: &StorePath) {
        if let Some((_, count)) = self.under_way.get_mut(&path.hash_part()) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&path.hash_part());
            }
        }
    }

    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(number: usize) -> StorePath {
        let mut bytes = [0; 20];
        // Where the table looks: real ones differ everywhere.
        bytes[1..9].copy_from_slice(&(number as u64).to_be_bytes());
        let hash_part = HashPart::from_bytes(bytes);
        StorePath::from_base_name(&format!("{hash_part}-a")).unwrap()
    }

    fn holding() -> (Table, Arc<Waiter>) {
        let mut table = Table::default();
        assert!(table.begin_holding().is_empty());
        (table, Arc::default())
    }

    #[test]
    fn nothing_is_asked_for_before_a_daemon_answers() {
        let (mut table, waiter) = (Table::default(), Arc::default());
        assert_eq!((table.published(), table.status()), (0, Status::Off));
        assert_eq!(table.want(&[path(1)], &waiter), Found::Unheld);
        assert!(!table.take_news() && table.take_queue().is_empty());
        table.begin_holding();
        assert_eq!(table.published(), table.generation());
    }

    #[test]
    fn held_in_this_generation_and_the_next_and_not_in_the_one_after() {
        let (mut table, waiter) = holding();
        assert_eq!(table.want(&[path(1)], &waiter), Found::Asked(1));
        assert!(table.take_news());
        assert_eq!(table.want(&[path(2)], &waiter), Found::Asked(1));
        assert!(!table.take_news(), "the keeper is awake");
        for wanted in table.take_queue() {
            assert!(wanted.waiter.is_some());
            table.note_held(&wanted.path);
        }
        assert_eq!(table.want(&[path(1), path(2)], &waiter), Found::Held);
        let before = table.published();
        assert!(table.turn().is_empty());
        assert_eq!(table.published(), before + 1);
        // Held, and asked for again without waiting.
        assert_eq!(table.want(&[path(1)], &waiter), Found::Held);
        let again = table.take_queue();
        assert!(again.iter().all(|wanted| wanted.waiter.is_none()));
        assert_eq!(again.len(), 1);
        table.turn();
        assert_eq!(table.want(&[path(1), path(3)], &waiter), Found::Asked(2));
    }

    #[test]
    fn what_is_under_way_is_held_by_every_generation() {
        let (mut table, _) = holding();
        table.begin(&path(1));
        table.begin(&path(1));
        table.begin(&path(2));
        assert_eq!(table.turn().len(), 2);
        table.end(&path(1));
        table.end(&path(2));
        assert_eq!(table.turn().len(), 1);
        table.end(&path(1));
        assert_eq!(table.turn().len(), 0);
    }

    #[test]
    fn a_full_generation_takes_no_more_and_the_next_does() {
        let (mut table, waiter) = holding();
        for number in 0..ROOT_COUNT_MAX {
            assert_ne!(table.published(), 0, "{number}");
            table.note_held(&path(number));
        }
        assert_eq!(table.published(), 0);
        assert_eq!(table.want(&[path(0)], &waiter), Found::Held);
        let one_more = path(ROOT_COUNT_MAX);
        let wanted = [path(0), one_more.clone()];
        assert_eq!(table.want(&wanted, &waiter), Found::Unheld);
        assert!(table.take_queue().is_empty());
        table.turn();
        assert_ne!(table.published(), 0);
        assert_eq!(table.want(&[one_more], &waiter), Found::Asked(1));
    }

    #[test]
    fn the_queue_is_bounded() {
        let (mut table, waiter) = holding();
        let paths: Vec<StorePath> = (0..=QUEUE_COUNT_MAX).map(path).collect();
        let (last, most) = paths.split_last().unwrap();
        assert_eq!(table.want(most, &waiter), Found::Asked(QUEUE_COUNT_MAX));
        let last = std::slice::from_ref(last);
        assert_eq!(table.want(last, &waiter), Found::Unheld);
        assert_eq!(table.take_queue().len(), QUEUE_COUNT_MAX);
        assert_eq!(table.want(last, &waiter), Found::Asked(1));
    }

    #[test]
    fn nobody_waits_while_the_daemon_is_stalled() {
        let (mut table, waiter) = holding();
        table.note_stalled();
        assert_eq!(table.want(&[path(1)], &waiter), Found::Unheld);
        assert_eq!(table.take_queue().len(), 1, "asked for all the same");
        table.note_held(&path(1));
        assert_eq!(table.want(&[path(2)], &waiter), Found::Asked(1));
    }

    #[test]
    fn what_is_lost_is_held_by_no_number() {
        let (mut table, waiter) = holding();
        table.note_held(&path(1));
        table.turn();
        table.note_held(&path(2));
        let numbers = [table.generation() - 1, table.generation()];
        table.lose_present();
        assert_eq!(table.published(), 0);
        table.begin_holding();
        let now = table.published();
        assert!(!numbers.contains(&now) && !numbers.contains(&(now - 1)));
        assert_eq!(table.want(&[path(1)], &waiter), Found::Held);
        assert_eq!(table.want(&[path(2)], &waiter), Found::Asked(1));
        table.lose_present();
        assert_eq!(table.want(&[path(1)], &waiter), Found::HeldYet);
        table.begin_holding();
        table.lose_previous();
        assert_eq!(table.want(&[path(1)], &waiter), Found::Asked(1));
    }
}
