//! The keeper thread, which obtains GC leases from the daemon.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use samovar_metrics::Event;
use samovar_nix::StorePath;
use samovar_store::{Store, StoreError, TempRoots, Unavailable};

use super::table::{LeaseRequest, Status, Table};
use super::{LeaseConfig, Shared};
use crate::sync::Locked;

/// Maximum number of requests sent before their replies are read. They take about 15 KB and fit
/// into the socket buffer, so sending never blocks.
const UNANSWERED_COUNT_MAX: usize = 128;

/// Number of attempts to lease a path that the daemon refuses. It refuses while the garbage
/// collector starts or ends.
const TRY_COUNT: usize = 5;
const TRY_INTERVAL: Duration = Duration::from_millis(5);

/// Interval between attempts to connect: the initial one, which is doubled after each failure, and
/// the maximum.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
const RETRY_INTERVAL_MAX: Duration = Duration::from_secs(30);

/// Time after which a connection counts as working. A daemon may accept a connection and then fail.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// Maximum delay in noticing the server's shutdown while waiting for a reply.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// Time without a reply after which the daemon is reported.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// The reason why no path can be leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum LeaseError {
    #[error("{0}")]
    Daemon(#[from] StoreError),
    /// The daemon does not know this store's newest path, so it serves another store.
    #[error("the daemon has another store")]
    OtherStore,
    #[error("there is no daemon")]
    Stopped,
}

pub(super) struct Keeper {
    config: LeaseConfig,
    shared: Arc<Shared>,
    store: Arc<dyn Store>,
    present: Option<TempRoots>,
    /// The connection that holds the leases of the previous generation. It is closed when the
    /// present generation ends; `None` if there is none.
    previous: Option<TempRoots>,
    /// Time at which the present connection starts to count as working; `None` once it does.
    settles_at: Option<Instant>,
    /// Time at which the present generation ends.
    ends_at: Instant,
    /// Time of the next attempt to connect.
    retries_at: Instant,
    retry_interval: Duration,
    /// Whether the present failure has been reported.
    is_reported: bool,
}

impl Keeper {
    pub(super) fn new(config: LeaseConfig, shared: Arc<Shared>, store: Arc<dyn Store>) -> Self {
        let now = Instant::now();
        Self {
            config,
            shared,
            store,
            present: None,
            previous: None,
            settles_at: None,
            ends_at: now,
            retries_at: now,
            retry_interval: RETRY_INTERVAL,
            is_reported: false,
        }
    }

    pub(super) fn run(mut self) {
        while !self.shared.table.locked().is_stopped {
            let now = Instant::now();
            if self.present.is_none() && now >= self.retries_at {
                self.connect();
            }
            if self.settles_at.is_some_and(|settles_at| now >= settles_at) {
                self.note_success();
            }
            let queue = self.shared.table.locked().take_queue();
            if !queue.is_empty() {
                self.add(queue);
            } else if self.present.is_some() && now >= self.ends_at {
                self.begin_generation();
            } else {
                self.wait();
            }
        }
    }

    /// Opens the connection to the daemon and starts leasing.
    fn connect(&mut self) {
        match self.open() {
            Ok(roots) => {
                self.present = Some(roots);
                self.ends_at = Instant::now() + self.config.time;
                self.settles_at = Some(Instant::now() + SETTLE_TIME);
                let in_progress = self.shared.change(Table::begin_leasing);
                self.add(in_progress);
            }
            Err(error) => self.note_failure(error),
        }
    }

    /// Starts a new generation, unless the present one has no leases.
    fn begin_generation(&mut self) {
        if self.shared.table.locked().present.is_empty() {
            self.ends_at = Instant::now() + self.config.time;
            self.close_previous();
            return;
        }
        match self.open() {
            Ok(roots) => {
                let oldest = self.previous.take();
                self.previous = self.present.replace(roots);
                self.ends_at = Instant::now() + self.config.time;
                let in_progress = self.shared.change(Table::begin_generation);
                self.add(in_progress);
                // The oldest connection is dropped only now: it leased the NARs in progress until
                // the new generation did.
                drop(oldest);
            }
            // Keep using the present connection until a new one is open.
            Err(_) => self.ends_at = Instant::now() + self.config.time.min(RETRY_INTERVAL_MAX),
        }
    }

    fn open(&self) -> Result<TempRoots, LeaseError> {
        let Some(daemon) = self.store.daemon() else {
            return Err(LeaseError::Stopped);
        };
        let mut roots = daemon.temp_roots()?;
        // The socket may belong to the daemon of another store, whose leases do not protect this
        // store. To find out, ask the daemon for a path of this store.
        let newest = self.store.newest(None, 1).unwrap_or_default();
        if let Some(newest) = newest.first()
            && !roots.is_valid(&newest.path)?
            && self.is_registered(&newest.path)
        {
            return Err(LeaseError::OtherStore);
        }
        Ok(roots)
    }

    fn is_registered(&self, path: &StorePath) -> bool {
        matches!(self.store.lookup(path.hash_part()), Ok(Some(info)) if info.path == *path)
    }

    /// Leases each path once in the present generation, and replies to the requests that wait.
    fn add(&mut self, mut queue: Vec<LeaseRequest>) {
        for _ in 0..TRY_COUNT {
            let mut refused = Vec::new();
            while !queue.is_empty() {
                let rest = queue.split_off(queue.len().min(UNANSWERED_COUNT_MAX));
                let batch = std::mem::replace(&mut queue, rest);
                match self.add_batch(batch) {
                    Ok(more) => refused.extend(more),
                    Err(error) => {
                        self.lose_present(error);
                        answer(queue.into_iter().chain(refused), false);
                        return;
                    }
                }
            }
            if refused.is_empty() {
                return;
            }
            queue = refused;
            std::thread::sleep(TRY_INTERVAL);
        }
        answer(queue, false);
    }

    /// Leases a batch of paths. Returns those that the daemon refused.
    fn add_batch(&mut self, batch: Vec<LeaseRequest>) -> Result<Vec<LeaseRequest>, LeaseError> {
        let Some(roots) = &mut self.present else {
            answer(batch, false);
            return Ok(Vec::new());
        };
        let mut seen = HashSet::new();
        let mut sent: Vec<LeaseRequest> = Vec::new();
        let mut repeated: Vec<LeaseRequest> = Vec::new();
        let table = self.shared.table.locked();
        let was_full = table.is_full();
        for request in batch {
            if table.is_leased(&request.path) {
                answer([request], true);
            } else if table.is_full() {
                answer([request], false);
            } else if seen.insert(request.path.hash_part()) {
                sent.push(request);
            } else {
                repeated.push(request);
            }
        }
        drop(table);
        let result = roots.ask(sent.iter().map(|request| &request.path));
        let mut refused = Vec::new();
        let mut sent = sent.into_iter();
        let mut outcome = result.map_err(LeaseError::Daemon);
        while outcome.is_ok()
            && let Some(request) = sent.next()
        {
            let answered = await_answer(roots, &self.shared, &mut self.is_reported)
                .and_then(|()| Ok(roots.answer()?));
            match answered {
                Ok(true) => {
                    self.shared.change(|table| table.note_leased(&request.path));
                    self.shared.observer.event(&Event::PathLeased);
                    answer([request], true);
                }
                Ok(false) => {
                    self.shared.change(Table::note_answer);
                    refused.push(request);
                }
                Err(error) => {
                    answer([request], false);
                    outcome = Err(error);
                }
            }
        }
        let table = self.shared.table.locked();
        for request in repeated {
            let is_leased = table.is_leased(&request.path);
            answer([request], is_leased);
        }
        let is_full = table.is_full();
        drop(table);
        if is_full && !was_full {
            self.shared.observer.event(&Event::LeaseLimitReached);
        }
        match outcome {
            Ok(()) => Ok(refused),
            Err(error) => {
                answer(sent.chain(refused), false);
                Err(error)
            }
        }
    }

    /// Waits for queued paths, a deadline, or the loss of a connection.
    fn wait(&mut self) {
        let due = match &self.present {
            Some(_) => self.settles_at.unwrap_or(self.ends_at).min(self.ends_at),
            None => self.retries_at,
        };
        let patience = due.saturating_duration_since(Instant::now());
        let lost = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        let roots = [self.present.as_ref(), self.previous.as_ref()];
        // No reply is outstanding on these connections, so any event means that one was closed.
        fds.extend(
            roots
                .iter()
                .flatten()
                .map(|roots| PollFd::new(*roots, PollFlags::IN)),
        );
        if wait_for(&mut fds, patience).is_err() {
            return;
        }
        let mut lost = fds.iter().skip(1).map(lost);
        let present_is_lost = roots[0].is_some() && lost.next() == Some(true);
        let previous_is_lost = roots[1].is_some() && lost.next() == Some(true);
        drop(fds);
        self.shared.wake.clear();
        if previous_is_lost {
            self.close_previous();
        }
        if present_is_lost {
            let error = StoreError::Unavailable(Unavailable::DaemonUnreachable);
            self.lose_present(LeaseError::Daemon(error));
        }
    }

    fn close_previous(&mut self) {
        if self.previous.take().is_some() {
            self.shared.change(Table::lose_previous);
        }
    }

    /// Handles a lost connection or an invalid reply, and schedules a new attempt to connect.
    fn lose_present(&mut self, error: LeaseError) {
        if error == LeaseError::Stopped {
            return;
        }
        self.present = None;
        self.shared.change(Table::lose_present);
        match self.settles_at.take() {
            Some(_) => self.note_failure(error),
            None => self.retries_at = Instant::now(),
        }
    }

    fn note_success(&mut self) {
        self.settles_at = None;
        self.retry_interval = RETRY_INTERVAL;
        if std::mem::take(&mut self.is_reported) {
            self.shared.observer.event(&Event::LeasesRecovered);
        }
    }

    fn note_failure(&mut self, error: LeaseError) {
        self.retries_at = Instant::now() + self.retry_interval;
        self.retry_interval = (self.retry_interval * 2).min(RETRY_INTERVAL_MAX);
        if !std::mem::replace(&mut self.is_reported, true) {
            let is_expected =
                !self.config.is_configured && self.shared.table.locked().status == Status::Off;
            self.shared.observer.event(&Event::LeasesFailed {
                error: &error,
                is_expected,
            });
        }
    }
}

/// Replies to the requests that wait for these paths: reports whether the paths are leased.
fn answer(requests: impl IntoIterator<Item = LeaseRequest>, is_leased: bool) {
    let waiters = requests.into_iter().filter_map(|request| request.waiter);
    waiters.for_each(|waiter| waiter.answer(is_leased));
}

/// Waits for the next reply, however long the daemon takes: giving up would drop all leases of the
/// connection.
fn await_answer(
    roots: &TempRoots,
    shared: &Shared,
    is_reported: &mut bool,
) -> Result<(), LeaseError> {
    let started = Instant::now();
    while !roots.has_answer() {
        let mut fds = [PollFd::from_borrowed_fd(roots.as_fd(), PollFlags::IN)];
        if wait_for(&mut fds, STOP_INTERVAL) == Ok(1) {
            break;
        }
        if shared.table.locked().is_stopped {
            return Err(LeaseError::Stopped);
        }
        if started.elapsed() > SILENCE_MAX && !std::mem::replace(is_reported, true) {
            let error = StoreError::Unavailable(Unavailable::DaemonTimeout);
            shared.observer.event(&Event::LeasesFailed {
                error: &LeaseError::Daemon(error),
                is_expected: false,
            });
        }
    }
    if started.elapsed() > SILENCE_MAX && std::mem::take(is_reported) {
        shared.observer.event(&Event::LeasesRecovered);
    }
    Ok(())
}

fn wait_for(fds: &mut [PollFd<'_>], patience: Duration) -> Result<usize, rustix::io::Errno> {
    // A duration that overflows `Timespec` means no timeout.
    let patience = Timespec::try_from(patience).ok();
    poll(fds, patience.as_ref())
}
