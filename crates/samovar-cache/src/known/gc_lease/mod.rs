//! GC leases: temporary roots held through the daemon.
//!
//! # Theory of operation
//!
//! A daemon protects a path and its closure from garbage collection while the connection lives on
//! which that was requested. One thread, the *keeper*, owns such a connection, that of the present
//! *generation*, and adds paths to it. After the lease time a new generation begins with a new
//! connection, and the one before the last is closed. So a lease lasts for the lease time at least
//! and twice that at most, and costs two processes of the daemon.
//!
//! A path is leased
//!
//! * before its narinfo is *announced*. A narinfo in memory remembers the generation of its last
//!   lease, so an I/O thread compares two numbers; where they differ, a worker answers, and waits
//!   for the daemon. A lease of the previous generation is renewed without waiting;
//! * before the first byte of a NAR is sent from files, and until it is sent: these leases are
//!   renewed in each generation.
//!
//! A request that waited checks once more that the path is registered: it may have been collected
//! before the daemon's reply, and cannot be after it. Checking before the lease would leave a gap.
//!
//! Clients are answered whether or not the daemon replies. No request waits longer than
//! [`WAIT_MAX`], nor at all while another has waited that long in vain; responses without a lease
//! are counted. While there is no daemon, or the generation is full, no generation is published, so
//! that I/O threads do not dispatch requests for leases. Narinfos from memory are not counted then.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | leases of a generation | 100,000 | 3 MB here; 8 MB that the collector reads |
//! | paths waiting for a lease | 8,192 | about what a daemon leases within one wait |
//! | requests to the daemon without a reply | 128 | enough that not each costs a wake-up |
//! | wait for the daemon | 200 ms | ten times what it takes on a busy machine |
//! | interval of attempts to connect | 250 ms, doubled up to 30 s | a daemon forks for each |

mod keeper;
mod table;

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use samovar_nix::StorePath;
use samovar_store::Store;

use keeper::Keeper;
use samovar_metrics::{Event, Observer, Unleased};
use table::{Found, Status, Table};

use crate::sync::{Locked, unpoisoned};

/// The longest that a request waits for the daemon.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// The configuration of GC leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseConfig {
    /// The minimum duration of a lease; the maximum is twice that.
    pub time: Duration,
    /// Whether leases were configured, so that a missing daemon is reported.
    pub is_configured: bool,
}

/// The GC leases; always empty if leasing is off.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    /// The present generation; zero while no lease can be had.
    published: AtomicU32,
    table: Mutex<Table>,
    /// Wakes the keeper.
    wake: OwnedFd,
    observer: Arc<dyn Observer>,
}

/// The outcome of a request for leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The generation of the leases; zero if not all paths have one.
    pub(crate) generation: u32,
    /// Whether the request waited, so that the paths may have been collected meanwhile.
    pub(crate) has_waited: bool,
}

impl Asked {
    /// No leases granted, and no wait.
    const NOTHING: Self = Self {
        generation: 0,
        has_waited: false,
    };
}

/// The lease of a path whose files are being sent, until it is dropped.
#[derive(Debug)]
pub(crate) struct SendingLease {
    /// The lease table and the path; `None` if leasing is off.
    of: Option<(Arc<Shared>, StorePath)>,
    /// Whether the request waited for the lease.
    pub(crate) has_waited: bool,
}

impl Leases {
    /// Starts the keeper.
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
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
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

    /// The present generation; zero while no lease can be had. Never blocks.
    pub(crate) fn generation(&self) -> u32 {
        match &self.shared {
            Some(shared) => shared.published.load(Ordering::Relaxed),
            None => 0,
        }
    }

    /// Whether leases are requested, or at least missing ones counted.
    pub(crate) fn is_on(&self) -> bool {
        let status = self
            .shared
            .as_ref()
            .map(|shared| shared.table.locked().status);
        status.is_some_and(|status| status != Status::Off)
    }

    /// Leases paths whose narinfos are about to be sent.
    pub(crate) fn announce(&self, paths: &[StorePath]) -> Asked {
        match &self.shared {
            Some(shared) if !paths.is_empty() => shared.ask(paths, Unleased::Narinfo),
            _ => Asked::NOTHING,
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
        let asked = shared.ask(std::slice::from_ref(path), Unleased::Nar);
        SendingLease {
            of: Some((Arc::clone(shared), path.clone())),
            has_waited: asked.has_waited,
        }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        // The keeper may be waiting for a daemon, so it is not joined.
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
    fn ask(&self, paths: &[StorePath], what: Unleased) -> Asked {
        let mut table = self.table.locked();
        let waiter = Arc::new(Waiter::default());
        let found = table.want(paths, &waiter);
        let generation = table.generation;
        let is_news = table.take_news();
        let is_off = table.status == Status::Off;
        drop(table);
        if is_news {
            self.wake();
        }
        let asked = |is_leased: bool, has_waited| Asked {
            generation: if is_leased { generation } else { 0 },
            has_waited,
        };
        match found {
            Found::Leased => asked(true, false),
            Found::LeasedYet => Asked::NOTHING,
            Found::Requested(count) => {
                let outcome = waiter.wait(count);
                if outcome == Outcome::TooLate {
                    self.change(Table::note_stalled);
                }
                if outcome != Outcome::Leased {
                    self.observer.event(&Event::Unleased(what));
                }
                asked(outcome == Outcome::Leased, true)
            }
            Found::Unleased => {
                if !is_off {
                    self.observer.event(&Event::Unleased(what));
                }
                Asked::NOTHING
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
        // Any value wakes the keeper. A failed write means that the counter is full, which wakes it
        // too.
        let _written = rustix::io::write(&self.wake, &1_u64.to_le_bytes());
    }
}

/// Waits for the daemon's replies to some requests.
#[derive(Debug, Default)]
struct Waiter {
    answers: Mutex<Answers>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Answers {
    count: usize,
    has_refusal: bool,
    /// The number of replies to wait for; zero before that is known.
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
        // A wake-up for each reply would cost more than the daemon.
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
