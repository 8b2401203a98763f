//! [`Queue`]: decides which blocks are fetched next. [`Outage`]: decides when readers give up.
//!
//! One worker streams all missing blocks in their order. Blocks that readers wait for jump the
//! queue in requests of their own, unless the stream will reach them soon.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Number of blocks ahead of the stream that are not requested separately.
const SOON: usize = 4;

/// Number of missing blocks after a requested one that are fetched in the same request.
const NEIGHBOURS: usize = 3;

/// Maximum number of blocks of a request for readers.
const REQUEST_MAX: usize = 16;

/// A stream ends before this many blocks in a row that are on this machine already. It transfers
/// shorter runs again, which is cheaper than another request.
const GAP: usize = 8;

/// Time for which a block that arrived damaged is not requested again.
pub(super) const DAMAGED_TIME: Duration = Duration::from_secs(10);

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Missing,
    /// A request for readers fetches the block.
    Requested,
    /// The server sent it damaged at this time.
    Damaged(Instant),
    Present,
}

/// A request that a worker sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Job {
    /// Fetches these blocks, for which readers wait.
    Request(Range<usize>),
    /// Fetches these blocks in the background.
    Stream(Range<usize>),
}

/// The blocks of a NAR that are not on this machine, and the requests in progress.
#[derive(Debug)]
pub(super) struct Queue {
    blocks: Vec<Block>,
    left: usize,
    /// Missing blocks for which readers wait.
    wanted: BTreeSet<usize>,
    /// Blocks that the stream has not reached yet.
    stream: Option<Range<usize>>,
    /// Whether blocks can be requested in any order.
    can_seek: bool,
}

impl Queue {
    /// `is_present`: returns whether a block is on this machine.
    pub(super) fn new(count: usize, can_seek: bool, is_present: impl Fn(usize) -> bool) -> Self {
        let block = |at| match is_present(at) {
            true => Block::Present,
            false => Block::Missing,
        };
        let blocks: Vec<Block> = (0..count).map(block).collect();
        Self {
            left: blocks.iter().filter(|at| **at != Block::Present).count(),
            blocks,
            wanted: BTreeSet::new(),
            stream: None,
            can_seek,
        }
    }

    /// Returns whether all blocks are on this machine.
    pub(super) fn is_complete(&self) -> bool {
        self.left == 0
    }

    pub(super) fn are_present(&self, blocks: &Range<usize>) -> bool {
        let blocks = self.blocks.get(blocks.clone()).unwrap_or_default();
        blocks.iter().all(|block| *block == Block::Present)
    }

    /// Returns whether one of these blocks has arrived damaged a short time ago.
    pub(super) fn is_damaged(&self, blocks: &Range<usize>, now: Instant) -> bool {
        let blocks = self.blocks.get(blocks.clone()).unwrap_or_default();
        blocks.iter().any(|block| is_recent(*block, now))
    }

    /// Notes that readers wait for these blocks.
    pub(super) fn want(&mut self, blocks: Range<usize>) {
        let missing = blocks.filter(|at| self.blocks.get(*at) != Some(&Block::Present));
        self.wanted.extend(missing);
    }

    /// Notes that no reader waits any longer.
    pub(super) fn want_none(&mut self) {
        self.wanted.clear();
    }

    /// Notes that a block is on this machine. Returns whether this is new.
    pub(super) fn arrived(&mut self, at: usize) -> bool {
        let block = self.blocks.get_mut(at);
        let Some(block) = block.filter(|block| **block != Block::Present) else {
            return false;
        };
        *block = Block::Present;
        self.left -= 1;
        self.wanted.remove(&at);
        true
    }

    /// Notes that the server sent a damaged block.
    pub(super) fn damaged(&mut self, at: usize, now: Instant) {
        if let Some(block) = self.blocks.get_mut(at)
            && *block != Block::Present
        {
            *block = Block::Damaged(now);
            self.wanted.remove(&at);
        }
    }

    /// Returns the next job. `may_stream`: whether this worker may start the stream.
    pub(super) fn next(&mut self, may_stream: bool, now: Instant) -> Option<Job> {
        if self.can_seek
            && let Some(blocks) = self.next_request(now)
        {
            for block in self.blocks.get_mut(blocks.clone()).unwrap_or_default() {
                *block = Block::Requested;
            }
            return Some(Job::Request(blocks));
        }
        if !may_stream || self.stream.is_some() {
            return None;
        }
        let blocks = self.next_stream(now)?;
        self.stream = Some(blocks.clone());
        Some(Job::Stream(blocks))
    }

    fn next_request(&self, now: Instant) -> Option<Range<usize>> {
        let is_missing = |at: usize| match self.blocks.get(at) {
            Some(Block::Missing) => true,
            Some(damaged @ Block::Damaged(_)) => !is_recent(*damaged, now),
            _ => false,
        };
        let soon = match &self.stream {
            Some(stream) => stream.start..stream.end.min(stream.start + SOON),
            None => 0..0,
        };
        let can_request = |at: usize| is_missing(at) && !soon.contains(&at);
        let start = *self.wanted.iter().find(|at| can_request(**at))?;
        let mut end = start + 1;
        let mut after_wanted = 0;
        while can_request(end) && end - start < REQUEST_MAX {
            if self.wanted.contains(&end) {
                after_wanted = 0;
            } else if after_wanted == NEIGHBOURS {
                break;
            } else {
                after_wanted += 1;
            }
            end += 1;
        }
        Some(start..end)
    }

    /// Damaged blocks are fetched again only for readers.
    fn next_stream(&self, now: Instant) -> Option<Range<usize>> {
        let is_missing = |block: &Block| *block == Block::Missing;
        if !self.can_seek {
            let is_due = |at: &usize| {
                let block = self.blocks.get(*at);
                block.is_some_and(|block| !is_recent(*block, now))
            };
            let is_left = self.blocks.iter().any(is_missing) || self.wanted.iter().any(is_due);
            return is_left.then_some(0..self.blocks.len());
        }
        let start = self.blocks.iter().position(is_missing)?;
        let mut end = start;
        for (at, block) in self.blocks.iter().enumerate().skip(start) {
            if is_missing(block) {
                end = at + 1;
            } else if at - end >= GAP {
                break;
            }
        }
        Some(start..end)
    }

    /// Notes how far the stream is. `at`: the first block that it has not transferred.
    pub(super) fn streamed(&mut self, at: usize) {
        if let Some(stream) = &mut self.stream {
            stream.start = at;
        }
    }

    /// Notes the end of a job, which may have failed.
    pub(super) fn ended(&mut self, job: &Job) {
        match job {
            Job::Stream(_) => self.stream = None,
            Job::Request(blocks) => {
                for block in self.blocks.get_mut(blocks.clone()).unwrap_or_default() {
                    if *block == Block::Requested {
                        *block = Block::Missing;
                    }
                }
            }
        }
    }
}

fn is_recent(block: Block, now: Instant) -> bool {
    matches!(block, Block::Damaged(time) if now.saturating_duration_since(time) < DAMAGED_TIME)
}

/// Whether the server sends data, and since when it does not.
#[derive(Debug)]
pub(super) struct Outage {
    since: Option<Instant>,
    /// Time of the last data.
    progress: Instant,
    /// Time after which readers get an error, from when the server became unreachable.
    patience: Duration,
}

impl Outage {
    pub(super) fn new(now: Instant, patience: Duration) -> Self {
        Self {
            since: None,
            progress: now,
            patience,
        }
    }

    /// Returns whether requests fail.
    pub(super) fn is_on(&self) -> bool {
        self.since.is_some()
    }

    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Notes that data arrived. Returns whether an outage ended.
    pub(super) fn progressed(&mut self, now: Instant) -> bool {
        self.progress = now;
        self.since.take().is_some()
    }

    /// Notes that a request failed. Returns whether an outage began.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        let began = self.since.is_none();
        self.since.get_or_insert(now);
        began
    }

    /// Returns the time at which a reader gets an error. `started`: when it began to wait.
    pub(super) fn deadline(&self, started: Instant) -> Instant {
        let quiet_since = self.progress.max(started);
        self.since.unwrap_or(quiet_since).min(quiet_since) + self.patience
    }

    /// Notes that a reader has waited for too long, so that later ones get an error at once.
    pub(super) fn expired(&mut self, now: Instant) {
        self.since
            .get_or_insert(now.checked_sub(self.patience).unwrap_or(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(15);

    fn queue(count: usize) -> Queue {
        Queue::new(count, true, |_| false)
    }

    #[test]
    fn the_stream_fetches_everything_in_order() {
        let now = Instant::now();
        let mut queue = queue(100);
        let stream = Job::Stream(0..100);
        assert_eq!(queue.next(true, now), Some(stream.clone()));
        assert_eq!(queue.next(true, now), None);
        for at in 0..100 {
            queue.arrived(at);
            queue.streamed(at + 1);
        }
        queue.ended(&stream);
        assert!(queue.is_complete());
        assert_eq!(queue.next(true, now), None);
    }

    #[test]
    fn a_failed_stream_goes_on_where_it_stopped() {
        let now = Instant::now();
        let mut queue = queue(100);
        let stream = queue.next(true, now).unwrap();
        queue.arrived(0);
        queue.arrived(50);
        queue.arrived(51);
        queue.ended(&stream);
        // A run of two blocks is shorter than a request is worth.
        assert_eq!(queue.next(true, now), Some(Job::Stream(1..100)));
        queue.ended(&Job::Stream(1..100));
        assert!((50..60).filter(|at| queue.arrived(*at)).eq(52..60));
        assert_eq!(queue.next(true, now), Some(Job::Stream(1..50)));
    }

    #[test]
    fn readers_jump_the_queue() {
        let now = Instant::now();
        let mut queue = queue(100);
        queue.next(true, now).unwrap();
        queue.want(50..51);
        // The request includes neighbours, and is sent once.
        let request = Job::Request(50..54);
        assert_eq!(queue.next(true, now), Some(request.clone()));
        assert_eq!(queue.next(true, now), None);
        // It is repeated if it failed.
        queue.ended(&request);
        assert_eq!(queue.next(true, now), Some(request.clone()));
        assert!((50..54).all(|at| queue.arrived(at)));
        queue.ended(&request);
        assert_eq!(queue.next(true, now), None);
        assert!(queue.are_present(&(50..54)));
        assert!(!queue.are_present(&(50..55)));
    }

    #[test]
    fn blocks_that_the_stream_reaches_soon_are_not_requested() {
        let now = Instant::now();
        let mut queue = queue(100);
        queue.next(true, now).unwrap();
        queue.streamed(10);
        queue.want(13..14);
        assert_eq!(queue.next(true, now), None);
        queue.want(14..15);
        assert_eq!(queue.next(true, now), Some(Job::Request(14..18)));
        // Once the stream has failed, they are.
        queue.ended(&Job::Stream(0..100));
        assert_eq!(queue.next(true, now), Some(Job::Request(13..14)));
    }

    #[test]
    fn a_large_file_is_fetched_by_several_requests() {
        let now = Instant::now();
        let mut queue = queue(100);
        queue.want(0..40);
        assert_eq!(queue.next(false, now), Some(Job::Request(0..16)));
        assert_eq!(queue.next(false, now), Some(Job::Request(16..32)));
        assert_eq!(queue.next(false, now), Some(Job::Request(32..43)));
        assert_eq!(queue.next(false, now), None);
    }

    #[test]
    fn a_file_without_frames_is_only_streamed() {
        let now = Instant::now();
        let mut queue = Queue::new(100, false, |at| at < 10);
        queue.want(50..51);
        let stream = Job::Stream(0..100);
        assert_eq!(queue.next(true, now), Some(stream.clone()));
        assert_eq!(queue.next(true, now), None);
        (0..100).for_each(|at| queue.damaged(at, now));
        queue.ended(&stream);
        // What arrived damaged is streamed again only for readers, and later.
        let later = now + DAMAGED_TIME;
        assert_eq!(queue.next(true, later), None);
        queue.want(50..51);
        assert_eq!(queue.next(true, now), None);
        assert_eq!(queue.next(true, later), Some(stream));
    }

    #[test]
    fn a_damaged_block_is_left_alone_for_a_time() {
        let now = Instant::now();
        let mut queue = queue(2);
        queue.want(0..1);
        queue.next(false, now).unwrap();
        queue.damaged(0, now);
        queue.arrived(1);
        queue.ended(&Job::Request(0..2));
        assert!(queue.is_damaged(&(0..2), now));
        assert!(!queue.is_damaged(&(1..2), now));
        queue.want(0..1);
        assert_eq!(queue.next(true, now), None);
        let later = now + DAMAGED_TIME;
        assert!(!queue.is_damaged(&(0..2), later));
        queue.want_none();
        assert_eq!(queue.next(true, later), None);
        queue.want(0..1);
        assert_eq!(queue.next(true, later), Some(Job::Request(0..1)));
        queue.arrived(0);
        assert!(queue.is_complete());
    }

    #[test]
    fn readers_wait_for_a_limited_time() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut outage = Outage::new(start, PATIENCE);
        // While data arrives, a reader waits for as long as it takes.
        assert!(!outage.progressed(start + second * 20));
        assert_eq!(outage.deadline(start), start + second * 20 + PATIENCE);
        // The time counts from the first failure, also for later readers.
        assert!(outage.failed(start + second * 21));
        assert!(!outage.failed(start + second * 30));
        assert!(outage.is_on());
        let deadline = start + second * 21 + PATIENCE;
        assert!(outage.deadline(start + second * 22) <= deadline);
        assert!(outage.deadline(start + second * 99) <= deadline);
        assert!(outage.progressed(start + second * 100));
        let started = start + second * 101;
        assert_eq!(outage.deadline(started), started + PATIENCE);
        // After a silent server, later readers do not wait again.
        outage.expired(started + PATIENCE);
        assert!(outage.deadline(started + PATIENCE * 2) <= started + PATIENCE);
    }
}
