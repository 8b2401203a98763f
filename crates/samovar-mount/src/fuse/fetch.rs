//! [`Fetcher`]: fetches the blocks of a NAR with a few threads, and answers waiting readers.
//!
//! One worker streams missing blocks; the others fetch those that readers wait for. A separate
//! thread answers readers, so a reader that waits for the server blocks no other one.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use samovar_client::notice::notice;
use sha2::{Digest as _, Sha256};

use super::arrivals::Arrivals;
use super::local::Local;
use super::queue::{DAMAGED_TIME, Job, Outage, Queue};
use super::transfer::{Origin, Piece, Stopped};
use super::view::bytes_of;

/// Number of requests at the same time.
const WORKER_COUNT: usize = 3;

/// Interval in which blocks that other mounts have fetched are noticed.
const POLL: Duration = Duration::from_millis(200);

/// Pause after a failed request. It doubles after each further one.
const PAUSE: Duration = Duration::from_millis(250);

/// Maximum pause between failed requests.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The answer to a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrived {
    /// The contents are on this machine.
    Here,
    /// The server has only damaged contents.
    Damaged,
    /// The server cannot be reached.
    Unreachable,
}

/// Called once with the answer to a reader.
pub(super) type Answer = Box<dyn FnOnce(Arrived) + Send>;

/// Fetches the blocks of a NAR. Its threads run until [`stop`](Self::stop).
#[derive(Clone)]
pub(super) struct Fetcher(Arc<Shared>);

struct Shared {
    local: Arc<Local>,
    /// `None`: nothing is fetched.
    origin: Option<Origin>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    queue: Queue,
    outage: Outage,
    waiting: Vec<Waiting>,
    /// Readers that wait for the repair of a file, by entry.
    repairs: HashMap<usize, Vec<Answer>>,
    /// Entries whose repair is in progress.
    repairing: HashSet<usize>,
    /// Entries that the server has only damaged, and when this was found.
    damaged: HashMap<usize, Instant>,
    /// The lock of the mount that streams, once this mount has it.
    stream_lock: Option<File>,
    /// Whether the last attempt to store fetched data has failed. Then an outage is not the fault
    /// of the server.
    is_cache_failing: bool,
    pause: Duration,
    /// Time of the next request after a failed one.
    retry_at: Option<Instant>,
    /// Time of the last check for blocks that other mounts have fetched.
    polled: Instant,
    is_verified: bool,
    stops: bool,
}

struct Waiting {
    blocks: Range<usize>,
    started: Instant,
    answer: Answer,
}

/// The work of a worker.
enum Task {
    Fetch(Job),
    Repair(usize),
    Verify,
}

impl Fetcher {
    /// Starts the threads. Without an origin, missing blocks count as unreachable. `patience`: time
    /// after which readers get an error, from when the server became unreachable.
    ///
    /// # Errors
    ///
    /// A thread cannot be started.
    pub(super) fn start(
        local: Arc<Local>,
        origin: Option<Origin>,
        patience: Duration,
    ) -> io::Result<Self> {
        local.refresh();
        let now = Instant::now();
        let can_seek = origin.as_ref().is_some_and(Origin::can_seek);
        let queue = Queue::new(local.block_count(), can_seek, |at| local.has(at));
        let fetcher = Self(Arc::new(Shared {
            state: Mutex::new(State {
                queue,
                outage: Outage::new(now, patience),
                waiting: Vec::new(),
                repairs: HashMap::new(),
                repairing: HashSet::new(),
                damaged: HashMap::new(),
                stream_lock: None,
                is_cache_failing: false,
                pause: PAUSE,
                retry_at: None,
                polled: now,
                is_verified: local.is_whole(),
                stops: false,
            }),
            local,
            origin,
            changed: Condvar::new(),
        }));
        let worker_count = match &fetcher.0.origin {
            Some(_) => WORKER_COUNT,
            // Verifies the NAR, and notices what other mounts fetch.
            None => 1,
        };
        for _ in 0..worker_count {
            let worker = fetcher.clone();
            thread::Builder::new()
                .name("fetch".to_owned())
                .spawn(move || worker.work())?;
        }
        let answers = fetcher.clone();
        thread::Builder::new()
            .name("answer".to_owned())
            .spawn(move || answers.answer())?;
        Ok(fetcher)
    }

    /// Calls `answer` when these blocks are on this machine, or cannot be fetched.
    pub(super) fn wait(&self, blocks: Range<usize>, answer: Answer) {
        let mut state = self.state();
        state.queue.want(blocks.clone());
        state.waiting.push(Waiting {
            blocks,
            started: Instant::now(),
            answer,
        });
        self.0.changed.notify_all();
    }

    /// Fetches a file whose contents on this machine are damaged. Calls `answer` when it is
    /// verified, or cannot be fetched.
    pub(super) fn repair(&self, entry: usize, answer: Answer) {
        let mut state = self.state();
        let found = state.damaged.get(&entry);
        if found.is_some_and(|found| found.elapsed() < DAMAGED_TIME) || self.0.origin.is_none() {
            drop(state);
            return answer(Arrived::Damaged);
        }
        state.repairs.entry(entry).or_default().push(answer);
        self.0.changed.notify_all();
    }

    /// Ends the threads soon. Readers that wait get [`Arrived::Unreachable`].
    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.stops = true;
        let waiting = std::mem::take(&mut state.waiting);
        let repairs = std::mem::take(&mut state.repairs);
        drop(state);
        self.0.changed.notify_all();
        let repairs = repairs.into_values().flatten();
        for answer in waiting
            .into_iter()
            .map(|reader| reader.answer)
            .chain(repairs)
        {
            answer(Arrived::Unreachable);
        }
    }

    /// Returns the number of requests for parts of the NAR so far.
    pub(super) fn request_count(&self) -> u64 {
        self.0.origin.as_ref().map_or(0, Origin::request_count)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        let waited = self.0.changed.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn work(&self) {
        while let Some(task) = self.next() {
            match task {
                Task::Fetch(job) => self.fetch(&job),
                Task::Repair(entry) => self.repair_now(entry),
                Task::Verify => self.verify(),
            }
        }
    }

    /// Waits for the next task. Returns `None` when the threads end.
    fn next(&self) -> Option<Task> {
        let mut state = self.state();
        loop {
            if state.stops {
                return None;
            }
            let is_pending = |entry: &&usize| !state.repairing.contains(entry);
            if let Some(entry) = state.repairs.keys().find(is_pending).copied() {
                state.repairing.insert(entry);
                return Some(Task::Repair(entry));
            }
            if state.queue.is_complete() {
                if !std::mem::replace(&mut state.is_verified, true) {
                    return Some(Task::Verify);
                }
                let waited = self.0.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let now = Instant::now();
            let is_pausing = state.retry_at.is_some_and(|time| now < time);
            if self.0.origin.is_some() && !is_pausing {
                let may_stream = self.may_stream(&mut state);
                if let Some(job) = state.queue.next(may_stream, now) {
                    return Some(Task::Fetch(job));
                }
            }
            state = self.pause(state, POLL);
            self.poll(&mut state);
        }
    }

    /// Notes what another mount has fetched, if that one streams.
    fn poll(&self, state: &mut State) {
        if state.stream_lock.is_some() || state.polled.elapsed() < POLL {
            return;
        }
        state.polled = Instant::now();
        self.0.local.refresh();
        let mut is_new = false;
        for at in 0..self.0.local.block_count() {
            if self.0.local.has_noted(at) {
                is_new |= state.queue.arrived(at);
            }
        }
        if is_new {
            // The other mount reaches the server.
            state.outage.progressed(Instant::now());
            self.0.changed.notify_all();
        }
    }

    /// Returns whether this is the mount that streams. The lock passes to another mount when this
    /// process ends.
    fn may_stream(&self, state: &mut State) -> bool {
        if state.stream_lock.is_none()
            && let Ok(lock) = self.0.local.stream_lock()
            && lock.try_lock().is_ok()
        {
            state.stream_lock = Some(lock);
        }
        state.stream_lock.is_some()
    }

    fn fetch(&self, job: &Job) {
        let (Job::Request(blocks) | Job::Stream(blocks)) = job;
        let bytes = bytes_of(blocks, self.0.local.nar_size());
        let mut arrivals = Arrivals::default();
        let mut failure = None;
        let is_stream = matches!(job, Job::Stream(_));
        let ended = self.transfer(&bytes, &mut |piece| {
            match piece {
                Piece::Progress => {}
                Piece::Damaged(bytes) => self.is_damaged(&bytes),
                Piece::Data(at, data) => {
                    let stored = arrivals.push(&self.0.local, at, data, &mut |block| {
                        self.is_stored();
                        let mut state = self.state();
                        state.queue.arrived(block);
                        if is_stream {
                            state.queue.streamed(block + 1);
                        }
                        self.0.changed.notify_all();
                    });
                    failure = stored.err();
                }
            }
            failure.is_none()
        });
        self.state().queue.ended(job);
        if let Some(error) = failure {
            self.cache_has_failed(&error);
        } else if let Err(Stopped::Unreachable(reason)) = ended {
            self.has_failed(&reason);
        }
        self.0.changed.notify_all();
    }

    /// Transfers bytes of the NAR, and notes that the server sends data.
    fn transfer(
        &self,
        bytes: &Range<u64>,
        receive: &mut dyn FnMut(Piece<'_>) -> bool,
    ) -> Result<(), Stopped> {
        let Some(origin) = &self.0.origin else {
            return Err(Stopped::ByCaller);
        };
        origin.transfer(bytes, &mut |piece| {
            let mut state = self.state();
            let stops = state.stops;
            let mut ended = false;
            // Data that cannot be stored does not end the outage of the readers.
            if !state.is_cache_failing {
                state.pause = PAUSE;
                state.retry_at = None;
                ended = state.outage.progressed(Instant::now());
            }
            drop(state);
            if ended {
                notice(&format!("{} is reachable again", origin.url()));
            }
            !stops && receive(piece)
        })
    }

    fn has_failed(&self, reason: &str) {
        let mut state = self.state();
        let now = Instant::now();
        let began = state.outage.failed(now) && !state.stops;
        state.retry_at = Some(now + state.pause);
        state.pause = (state.pause * 2).min(PAUSE_MAX);
        let patience = state.outage.patience().as_secs();
        drop(state);
        if began {
            let url = self.0.origin.as_ref().map(Origin::url).unwrap_or_default();
            notice(&format!(
                "cannot read {url} ({reason}); files that are not on this machine give I/O errors \
                 after {patience} seconds, until the URL can be read again"
            ));
        }
    }

    /// Notes that fetched data could not be stored on this machine.
    fn cache_has_failed(&self, error: &io::Error) {
        let mut state = self.state();
        let now = Instant::now();
        let began = !std::mem::replace(&mut state.is_cache_failing, true) && !state.stops;
        state.outage.failed(now);
        state.retry_at = Some(now + state.pause);
        state.pause = (state.pause * 2).min(PAUSE_MAX);
        drop(state);
        if began {
            notice(&format!(
                "cannot write downloaded files to the cache directory of mounts ({error}): free \
                 space there; until then, files that are not on this machine give I/O errors"
            ));
        }
    }

    /// Notes that fetched data was stored on this machine.
    fn is_stored(&self) {
        let mut state = self.state();
        if std::mem::take(&mut state.is_cache_failing) {
            state.pause = PAUSE;
            state.retry_at = None;
            state.outage.progressed(Instant::now());
            drop(state);
            notice("the cache directory of mounts can be written again");
        }
    }

    /// Notes that the server sent damaged data for these bytes.
    fn is_damaged(&self, bytes: &Range<u64>) {
        let now = Instant::now();
        let blocks = super::view::blocks_of(bytes);
        let mut state = self.state();
        let mut is_new = false;
        for block in blocks {
            is_new |= !state.queue.is_damaged(&(block..block + 1), now);
            state.queue.damaged(block, now);
        }
        drop(state);
        if is_new {
            let url = self.0.origin.as_ref().map(Origin::url).unwrap_or_default();
            let (start, end) = (bytes.start, bytes.end);
            notice(&format!(
                "{url} is damaged: bytes {start} to {end} of the NAR cannot be decompressed"
            ));
        }
        self.0.changed.notify_all();
    }

    fn repair_now(&self, entry: usize) {
        let fetched = self.fetch_file(entry);
        let mut state = self.state();
        state.repairing.remove(&entry);
        let arrived = match fetched {
            Ok(true) => Arrived::Here,
            Ok(false) => {
                state.damaged.insert(entry, Instant::now());
                Arrived::Damaged
            }
            Err(_) => Arrived::Unreachable,
        };
        let answers = state.repairs.remove(&entry).unwrap_or_default();
        drop(state);
        if let Err(reason) = fetched {
            self.has_failed(&reason);
        }
        for answer in answers {
            answer(arrived);
        }
    }

    /// Fetches a file apart from its blocks, and replaces its contents if they are right. Returns
    /// whether they are.
    fn fetch_file(&self, entry: usize) -> Result<bool, String> {
        let Some((start, size, digest)) = self.0.local.file(entry) else {
            return Ok(false);
        };
        let file = self
            .0
            .local
            .temporary()
            .map_err(|error| error.to_string())?;
        let mut hasher = Sha256::new();
        let mut failure = None;
        let mut end = start;
        let fetched = self.transfer(&(start..start + size), &mut |piece| {
            if let Piece::Data(at, data) = piece {
                let from = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
                let to = usize::try_from((start + size).saturating_sub(at)).unwrap_or(usize::MAX);
                let wanted = data.get(from..to.min(data.len())).unwrap_or_default();
                // Data after damaged data does not follow `end`.
                if !wanted.is_empty() && at <= end {
                    hasher.update(wanted);
                    failure = file.write_all_at(wanted, end - start).err();
                    end += wanted.len() as u64;
                }
            }
            failure.is_none() && end < start + size
        });
        if let Some(error) = failure {
            return Err(error.to_string());
        }
        match fetched {
            Ok(()) | Err(Stopped::ByCaller) => {}
            Err(Stopped::Unreachable(reason)) => return Err(reason),
        }
        if end < start + size || digest != Some(hasher.finalize().into()) {
            return Ok(false);
        }
        let repaired = self.0.local.repair(entry, &file);
        repaired.map(|()| true).map_err(|error| error.to_string())
    }

    /// Verifies the files that were not verified when they arrived.
    fn verify(&self) {
        match self.0.local.verify_all() {
            Ok(true) => {}
            Ok(false) => notice(
                "some files do not match their digests in the manifest; they are fetched again \
                 when they are read",
            ),
            Err(error) => notice(&format!("cannot verify the snapshot: {error}")),
        }
    }

    /// Answers the readers.
    fn answer(&self) {
        let mut state = self.state();
        while !state.stops {
            let now = Instant::now();
            let mut ready = Vec::new();
            let mut next = None;
            for reader in std::mem::take(&mut state.waiting) {
                let arrived = self.arrived(&mut state, &reader, now);
                match arrived {
                    Ok(arrived) => ready.push((reader.answer, arrived)),
                    Err(deadline) => {
                        next = next.min(Some(deadline)).or(Some(deadline));
                        state.waiting.push(reader);
                    }
                }
            }
            // During an outage, the requests for readers that gave up probe the server.
            if state.waiting.is_empty() && !state.outage.is_on() {
                state.queue.want_none();
            }
            if ready.is_empty() {
                state = match next {
                    Some(deadline) => {
                        let time = deadline.saturating_duration_since(now);
                        self.pause(state, time.max(Duration::from_millis(1)))
                    }
                    None => {
                        let waited = self.0.changed.wait(state);
                        waited.unwrap_or_else(PoisonError::into_inner)
                    }
                };
                continue;
            }
            drop(state);
            for (answer, arrived) in ready {
                answer(arrived);
            }
            state = self.state();
        }
    }

    /// Returns the answer to a reader, or the time at which it gives up.
    fn arrived(
        &self,
        state: &mut State,
        reader: &Waiting,
        now: Instant,
    ) -> Result<Arrived, Instant> {
        if state.queue.are_present(&reader.blocks) {
            return Ok(Arrived::Here);
        }
        if state.queue.is_damaged(&reader.blocks, now) {
            return Ok(Arrived::Damaged);
        }
        let deadline = match self.0.origin {
            Some(_) => state.outage.deadline(reader.started),
            None => reader.started,
        };
        if now < deadline {
            return Err(deadline);
        }
        if self.0.origin.is_some() {
            state.outage.expired(now);
        }
        Ok(Arrived::Unreachable)
    }
}
