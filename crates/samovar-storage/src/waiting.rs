//! [`Waits`]: how requests wait for the database.
//!
//! The database has one writer at a time. In normal operation, a request waits some milliseconds
//! for the writer, and keeps its worker slot meanwhile, which limits the number of waiting
//! requests. If another process has locked the database, a request may wait until its patience
//! ends. A request that waits longer than [`PROMPT_TIME`] therefore lends its slot to other
//! requests. All requests that come while it waits lend their slots at once. So uploads that wait
//! do not delay downloads.
//!
//! All waits of one request together take at most its patience: see [`Patience`].

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::disk::Disk;
use crate::error::StorageError;

/// Maximum time that a request waits for a slot, for memory and for the database together. It is
/// below 60 s, the usual timeout of proxies.
pub const PATIENCE: Duration = Duration::from_secs(50);

/// Time that a request waits for the database before it lends its slot. Commits of normal size take
/// less.
const PROMPT_TIME: Duration = Duration::from_millis(500);

/// Maximum number of requests that wait for the database with a lent slot. Further ones fail at
/// once. It must be below the number of slots that the server lends.
const LONG_COUNT_MAX: usize = 512;

/// Function that calls its argument, which blocks, while the worker slot of the calling thread is
/// lent to other requests.
pub type LendSlot = fn(&mut dyn FnMut());

thread_local! {
    static REQUEST: Cell<Option<Remaining>> = const { Cell::new(None) };
    /// Whether a caller of this thread waits for the database: then it measures the time and lends
    /// the slot, not the calls inside it.
    static IS_WAITING: Cell<bool> = const { Cell::new(false) };
}

/// The remaining time for which the thread's request may wait.
#[derive(Debug, Clone, Copy)]
struct Remaining(Duration);

/// Limits the total time that a request waits for the storage: for a slot, for memory, and for the
/// database. It applies to the calling thread until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Patience(());

impl Patience {
    pub(crate) fn start(total: Duration) -> Self {
        REQUEST.set(Some(Remaining(total)));
        Self(())
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        REQUEST.set(None);
    }
}

/// Calls `wait` with the maximum time for which it may wait: `patience`, or what is left for the
/// thread's request if that is less. Deducts the time that the call took.
pub(crate) fn within<T>(patience: Duration, wait: impl FnOnce(Duration) -> T) -> T {
    let patience = match REQUEST.get() {
        Some(Remaining(left)) => patience.min(left),
        None => patience,
    };
    let started = Instant::now();
    let outcome = wait(patience);
    if let Some(Remaining(left)) = REQUEST.get() {
        let left = left.saturating_sub(started.elapsed());
        REQUEST.set(Some(Remaining(left)));
    }
    outcome
}

/// Returns whether the thread handles a request that waits for the storage: see [`Patience`].
pub(crate) fn has_request() -> bool {
    REQUEST.get().is_some()
}

/// The waits of all requests for one database.
#[derive(Debug, Default)]
pub struct Waits {
    lend_slot: OnceLock<LendSlot>,
    patience: OnceLock<Duration>,
    /// Number of requests that wait with a lent slot.
    long_count: AtomicUsize,
    /// The disk of the database and of the files.
    pub(crate) disk: Arc<Disk>,
}

impl Waits {
    /// Sets the function that lends the worker slot of a waiting thread. It can be set once.
    pub(crate) fn set_lend_slot(&self, lend_slot: LendSlot) {
        // Caches of one server set the same function.
        self.lend_slot.set(lend_slot).ok();
    }

    /// Sets the total time that a request may wait. It can be set once.
    pub(crate) fn set_patience(&self, patience: Duration) {
        self.patience.set(patience).ok();
    }

    /// Starts the patience of a request that the calling thread handles.
    pub(crate) fn start(&self) -> Patience {
        Patience::start(self.patience.get().copied().unwrap_or(PATIENCE))
    }

    /// Calls `attempt` with the maximum time for which it may wait. `attempt` may be called a
    /// second time after [`StorageError::Busy`] or [`StorageError::Unavailable`].
    pub(crate) fn patiently<T>(
        &self,
        patience: Duration,
        mut attempt: impl FnMut(Duration) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        if IS_WAITING.get() {
            return attempt(patience);
        }
        let _waiting = Waiting::begin();
        within(patience, |patience| {
            let started = Instant::now();
            if self.long_count.load(Ordering::Relaxed) == 0 {
                match attempt(patience.min(PROMPT_TIME)) {
                    Err(error) if error.is_passing() && patience > PROMPT_TIME => {}
                    outcome => return outcome,
                }
            }
            self.lending(|| attempt(patience.saturating_sub(started.elapsed())))
        })
    }

    /// Calls `wait`, which blocks until the disk has flushed its caches, while the thread's slot is
    /// lent. So requests whose commits can be combined wait together, however few slots there are.
    pub(crate) fn lend<T>(
        &self,
        wait: impl FnOnce() -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let Some(lend_slot) = self.lend_slot.get() else {
            return wait();
        };
        let (mut wait, mut outcome) = (Some(wait), Err(StorageError::Busy));
        lend_slot(&mut || {
            if let Some(wait) = wait.take() {
                outcome = wait();
            }
        });
        outcome
    }

    /// Calls `wait` while the thread's slot is lent.
    fn lending<T>(
        &self,
        mut wait: impl FnMut() -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let _long = Long::begin(&self.long_count)?;
        let Some(lend_slot) = self.lend_slot.get() else {
            return wait();
        };
        let mut outcome = Err(StorageError::Busy);
        lend_slot(&mut || outcome = wait());
        outcome
    }
}

/// Marks the calling thread as waiting, until it is dropped.
struct Waiting;

impl Waiting {
    fn begin() -> Self {
        IS_WAITING.set(true);
        Self
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        IS_WAITING.set(false);
    }
}

/// One of the requests that wait with a lent slot.
struct Long<'a>(&'a AtomicUsize);

impl<'a> Long<'a> {
    fn begin(count: &'a AtomicUsize) -> Result<Self, StorageError> {
        let long = Self(count);
        match count.fetch_add(1, Ordering::Relaxed) {
            LONG_COUNT_MAX.. => Err(StorageError::Busy),
            _ => Ok(long),
        }
    }
}

impl Drop for Long<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn the_waits_of_a_request_are_limited_in_sum() {
        let pause = Duration::from_millis(2);
        let _patience = Patience::start(LONG);
        within(LONG, |left| {
            assert_eq!(left, LONG);
            std::thread::sleep(pause);
        });
        within(LONG, |left| assert!(left <= LONG - pause));
        within(pause, |left| assert_eq!(left, pause));
        let _short = Patience::start(Duration::ZERO);
        within(LONG, |left| assert_eq!(left, Duration::ZERO));
    }

    #[test]
    fn threads_without_a_request_have_the_patience_of_each_wait() {
        drop(Patience::start(Duration::ZERO));
        within(LONG, |left| assert_eq!(left, LONG));
    }

    #[test]
    fn only_long_waits_lend_the_slot() {
        thread_local! { static LENT_COUNT: Cell<u32> = const { Cell::new(0) } }
        let lend: LendSlot = |wait| {
            LENT_COUNT.set(LENT_COUNT.get() + 1);
            wait();
        };
        let waits = Waits::default();
        waits.set_lend_slot(lend);
        waits.patiently(LONG, |_| Ok(())).unwrap();
        let busy = waits.patiently(PROMPT_TIME, |_| Err::<(), _>(StorageError::Busy));
        assert!(matches!(busy, Err(StorageError::Busy)));
        assert_eq!(LENT_COUNT.get(), 0);
        let mut times = Vec::new();
        let outcome = waits.patiently(LONG, |left| {
            times.push(left);
            match times.len() {
                1 => Err(StorageError::Busy),
                // A wait inside a wait lends no second slot.
                _ => waits.patiently(left, |left| Ok(left > PROMPT_TIME)),
            }
        });
        assert!(outcome.unwrap());
        assert_eq!(times[0], PROMPT_TIME);
        assert_eq!(LENT_COUNT.get(), 1);
        // While a request waits for long, others lend their slots at once.
        waits.long_count.store(1, Ordering::Relaxed);
        waits.patiently(LONG, |_| Ok(())).unwrap();
        assert_eq!(LENT_COUNT.get(), 2);
    }

    #[test]
    fn the_number_of_waiting_requests_is_limited() {
        let waits = Waits::default();
        for (count, is_admitted) in [(LONG_COUNT_MAX - 1, true), (LONG_COUNT_MAX, false)] {
            waits.long_count.store(count, Ordering::Relaxed);
            assert_eq!(waits.patiently(LONG, |_| Ok(())).is_ok(), is_admitted);
            assert_eq!(waits.long_count.load(Ordering::Relaxed), count);
        }
    }
}
