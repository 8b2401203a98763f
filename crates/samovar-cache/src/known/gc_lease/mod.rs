//! GC leases: temporary roots held through the daemon.
//!
//! # Theory of operation
//!
//! The daemon protects a path and its closure from garbage collection as long as the connection
//! that requested the protection is open. One thread, the *keeper*, owns such a connection for the
//! present *generation*, and adds paths to it. After the lease time it starts a new generation with
//! a new connection, and closes the connection of the generation before the previous one. So a
//! lease lasts for at least the lease time and at most twice that, and costs two processes of the
//! daemon.
//!
//! A path is leased
//!
//! * before its narinfo is *announced*. A narinfo in memory records the generation of its last
//!   lease, so an I/O thread only compares two numbers. If they differ, a worker requests the lease
//!   and waits for the daemon. A lease of the previous generation is renewed without waiting;
//! * before the first byte of a NAR is sent from files, until its last byte is sent. These leases
//!   are renewed in each generation.
//!
//! A request that waited checks again that the path is registered: the path may have been
//! garbage-collected before the daemon's reply, but cannot be garbage-collected after it. A check
//! before the lease would leave a gap.
//!
//! Clients get their responses even if the daemon does not reply. A request waits for at most
//! [`WAIT_MAX`]; after one request has waited that long in vain, others do not wait until the
//! daemon replies again. Responses without a lease are counted. While there is no daemon, or the
//! generation is full, the published generation is zero, so that I/O threads do not dispatch
//! requests to workers for leases. Narinfos sent from memory are not counted then.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | leases of a generation | 100,000 | 3 MB in this process; 8 MB for the collector to read |
//! | paths waiting for a lease | 8,192 | about as many as a daemon leases within 200 ms |
//! | requests without a reply | 128 | few wake-ups; fits into the socket buffer |
//! | time that a request waits | 200 ms | ten times the usual reply time on a busy machine |
//! | pause between attempts to connect | 250 ms, doubled up to 30 s | each makes the daemon fork |

mod keeper;
mod table;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use samovar_nix::StorePath;
use samovar_store::Store;

use keeper::Keeper;
use samovar_metrics::{Event, Observer, Unleased};
use table::{LeaseState, Status, Table};

use crate::sync::{Locked, unpoisoned};
use crate::sys::WakeUp;

/// Maximum time for which a request waits for the daemon.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// The configuration of GC leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseConfig {
    /// The minimum duration of a lease; the maximum is twice that.
    pub time: Duration,
    /// Whether the operator configured leases, so that a missing daemon must be reported.
    pub is_configured: bool,
}

/// The GC leases of a store. It is empty if leasing is off.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    /// The present generation; zero while no lease can be obtained.
    published: AtomicU32,
    table: Mutex<Table>,
    /// Wakes the keeper thread, for example because paths are queued.
    wake: WakeUp,
    observer: Arc<dyn Observer>,
}

/// The result of a request for leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseResult {
    /// The generation of the leases; zero if some path has no lease.
    pub(crate) generation: u32,
    /// Whether the request waited. If so, the paths may have been garbage-collected before they
    /// were leased.
    pub(crate) has_waited: bool,
}

impl LeaseResult {
    /// The result without a lease and without a wait.
    const NONE: Self = Self {
        generation: 0,
        has_waited: false,
    };
}

/// The lease of a path whose files are being sent. Dropping it ends the lease's renewal.
#[derive(Debug)]
pub(crate) struct SendingLease {
    /// The lease table and the path; `None` if leasing is off.
    of: Option<(Arc<Shared>, StorePath)>,
    /// Whether the request waited for the lease.
    pub(crate) has_waited: bool,
}

impl Leases {
    /// Starts the keeper thread, which obtains the leases from the daemon.
    ///
    /// # Errors
    ///
    /// If there is no thread or descriptor for it.
    pub(crate) fn start(
        config: LeaseConfig,
        store: Arc<dyn Store>,
        observer: Arc<dyn Observer>,
    ) -> io::Result<Self> {
        if store.daemon().is_none() {
            return Ok(Self::default());
        }
        let shared = Arc::new(Shared {
            published: AtomicU32::new(0),
            table: Mutex::default(),
            wake: WakeUp::new()?,
            observer,
        });
        let keeper = Keeper::new(config, Arc::clone(&shared), store);
        std::thread::Builder::new()
            .name("hold".into())
            .spawn(move || keeper.run())?;
        Ok(Self {
            shared: Some(shared),
        })
    }

    /// Returns the present generation; zero while no lease can be obtained. Never blocks.
    pub(crate) fn generation(&self) -> u32 {
        match &self.shared {
            Some(shared) => shared.published.load(Ordering::Relaxed),
            None => 0,
        }
    }

    /// Whether a daemon has ever replied. If not, leases are neither requested nor counted as
    /// missing.
    pub(crate) fn is_on(&self) -> bool {
        let status = self
            .shared
            .as_ref()
            .map(|shared| shared.table.locked().status);
        status.is_some_and(|status| status != Status::Off)
    }

    /// Leases paths whose narinfos are about to be sent.
    pub(crate) fn announce(&self, paths: &[StorePath]) -> LeaseResult {
        match &self.shared {
            Some(shared) if !paths.is_empty() => shared.request(paths, Unleased::Narinfo),
            _ => LeaseResult::NONE,
        }
    }

    /// Leases a path whose files are about to be sent.
    pub(crate) fn send(&self, path: &StorePath) -> SendingLease {
        let Some(shared) = &self.shared else {
            return SendingLease {
                of: None,
                has_waited: false,
            };
        };
        shared.table.locked().begin(path);
        let result = shared.request(std::slice::from_ref(path), Unleased::Nar);
        SendingLease {
            of: Some((Arc::clone(shared), path.clone())),
            has_waited: result.has_waited,
        }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        // Do not join the keeper thread, because it may be waiting for the daemon.
        if let Some(shared) = &self.shared {
            shared.table.locked().is_stopped = true;
            shared.wake();
        }
    }
}

impl Drop for SendingLease {
    fn drop(&mut self) {
        if let Some((shared, path)) = &self.of {
            shared.table.locked().end(path);
        }
    }
}

impl Shared {
    fn request(&self, paths: &[StorePath], what: Unleased) -> LeaseResult {
        let mut table = self.table.locked();
        let waiter = Arc::new(Waiter::default());
        let state = table.request(paths, &waiter);
        let generation = table.generation;
        let needs_wake = table.take_wake();
        let is_off = table.status == Status::Off;
        drop(table);
        if needs_wake {
            self.wake();
        }
        let result = |is_leased: bool, has_waited| LeaseResult {
            generation: if is_leased { generation } else { 0 },
            has_waited,
        };
        match state {
            LeaseState::Leased => result(true, false),
            LeaseState::Expiring => LeaseResult::NONE,
            LeaseState::Requested(count) => {
                let outcome = waiter.wait(count);
                if outcome == Outcome::TooLate {
                    self.change(Table::note_stalled);
                }
                if outcome != Outcome::Leased {
                    self.observer.event(&Event::Unleased(what));
                }
                result(outcome == Outcome::Leased, true)
            }
            LeaseState::Unleased => {
                if !is_off {
                    self.observer.event(&Event::Unleased(what));
                }
                LeaseResult::NONE
            }
        }
    }

    /// Changes the table and publishes the resulting generation.
    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.locked();
        let result = change(&mut table);
        self.published.store(table.published(), Ordering::Relaxed);
        result
    }

    fn wake(&self) {
        self.wake.wake();
    }
}

/// Lets a request wait for the daemon's replies about several paths.
#[derive(Debug, Default)]
struct Waiter {
    answers: Mutex<Answers>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Answers {
    count: usize,
    has_refusal: bool,
    /// Number of replies to wait for; zero until it is known.
    awaited_count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Leased,
    Refused,
    TooLate,
}

impl Waiter {
    fn answer(&self, is_leased: bool) {
        let mut answers = self.answers.locked();
        answers.count += 1;
        answers.has_refusal |= !is_leased;
        // Wake the request only once: a wake-up per reply would cost more than the daemon's work.
        let is_last = answers.count == answers.awaited_count;
        drop(answers);
        if is_last {
            self.changed.notify_one();
        }
    }

    fn wait(&self, count: usize) -> Outcome {
        let mut answers = self.answers.locked();
        answers.awaited_count = count;
        let is_open = |answers: &mut Answers| answers.count < count;
        let waited = self.changed.wait_timeout_while(answers, WAIT_MAX, is_open);
        let (answers, _) = unpoisoned(waited);
        match (answers.count < count, answers.has_refusal) {
            (true, _) => Outcome::TooLate,
            (false, true) => Outcome::Refused,
            (false, false) => Outcome::Leased,
        }
    }
}
