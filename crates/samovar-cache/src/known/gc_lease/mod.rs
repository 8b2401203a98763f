//! Paths held against garbage collection, by way of the daemon.
//!
//! # Theory of operation
//!
//! A daemon keeps a path, and all that it needs, from being collected as long as the connection
//! lives on which it was asked to. One thread, the *keeper*, owns such a connection, that of the
//! present *generation*, and adds to it what is wanted. After the hold time a new generation begins
//! with a new connection, and the one before the last is closed: so a path is held for the hold
//! time at least and for twice that at most, at the price of two processes of the daemon.
//!
//! A path is held
//!
//! * before its narinfo is *announced*. A narinfo in memory remembers the generation in which its
//!   path was last asked for, so an I/O thread compares two numbers; where they differ, a worker
//!   answers, and waits for the daemon. A path that the generation before holds is asked for again
//!   without waiting;
//! * before the first byte of a NAR is sent from files, and as long as that goes on: paths *under
//!   way* are asked for again in each generation.
//!
//! After somebody waited he has to look once more whether the path is registered: it may have been
//! collected until the daemon's answer, and cannot be after it. Looking before would leave a gap.
//!
//! Whatever the daemon does, clients are answered. Nobody waits longer than [`WAIT_MAX`], nor at
//! all while somebody else has waited that long in vain; what is answered without being held is
//! counted. No generation is published, so that no I/O thread asks for anything, while there is
//! nothing to be had: no daemon, or a full generation. Narinfos from memory are not counted then.
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | paths of a generation | 100,000 | 3 MB here; 8 MB that the collector reads |
//! | paths that wait to be asked for | 8,192 | what a daemon takes in the time of one wait, about |
//! | questions without an answer | 128 | enough that asking costs no wake-up each |
//! | a wait for the daemon | 200 ms | ten times what it takes on a busy machine |
//! | time between tries to connect | 250 ms, doubled up to 30 s | a daemon forks for each |

mod keeper;
mod table;

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use samovar_nix::StorePath;
use samovar_store::Store;

use keeper::Keeper;
use samovar_metrics::{Event, Observer, Unleased};
use table::{Found, Status, Table};

/// The longest that a request waits for the daemon.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// Holding paths against garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// How long a path is held at least after it was announced; twice that at most.
    pub time: Duration,
    /// Whether somebody asked for it, and so should hear that there is no daemon.
    pub is_asked_for: bool,
}

/// The paths that are held. Without a keeper nothing is.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    /// The present generation; zero while nothing can be asked for.
    published: AtomicU32,
    table: Mutex<Table>,
    /// Wakes the keeper.
    wake: OwnedFd,
    observer: Arc<dyn Observer>,
}

/// What came of asking for a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The generation that holds it; zero if none does.
    pub(crate) generation: u32,
    /// Whether time went by: what was known of the path may no longer be so.
    pub(crate) has_waited: bool,
}

impl Asked {
    /// Nothing is known to be held for another hold time, and no time went by.
    const NOTHING: Self = Self {
        generation: 0,
        has_waited: false,
    };
}

/// A path whose files are being sent; it is held until this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay {
    /// The path, and in whose table it stands.
    of: Option<(Arc<Shared>, StorePath)>,
    /// Whether time went by until it began.
    pub(crate) has_waited: bool,
}

impl Holds {
    /// Starts the keeper.
    ///
    /// # Errors
    ///
    /// If there is no thread or descriptor for it.
    pub(crate) fn start(
        hold: Hold,
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
        let keeper = Keeper::new(hold, Arc::clone(&shared), store);
        std::thread::Builder::new()
            .name("hold".into())
            .spawn(move || keeper.run())?;
        Ok(Self {
            shared: Some(shared),
        })
    }

    /// The present generation. Zero when there is nothing to be asked for, now or ever. Never
    /// blocks.
    pub(crate) fn generation(&self) -> u32 {
        match &self.shared {
            Some(shared) => shared.published.load(Ordering::Relaxed),
            None => 0,
        }
    }

    /// Whether somebody should ask for paths, or at least count those that are not held.
    pub(crate) fn is_on(&self) -> bool {
        let status = self.shared.as_ref().map(|shared| shared.table().status());
        status.is_some_and(|status| status != Status::Off)
    }

    /// Has these paths held, whose narinfos are about to be sent.
    pub(crate) fn announce(&self, paths: &[StorePath]) -> Asked {
        match &self.shared {
            Some(shared) if !paths.is_empty() => shared.ask(paths, Unleased::Narinfo),
            _ => Asked::NOTHING,
        }
    }

    /// Has a path held whose files are about to be sent.
    pub(crate) fn send(&self, path: &StorePath) -> UnderWay {
        let Some(shared) = &self.shared else {
            return UnderWay {
                of: None,
                has_waited: false,
            };
        };
        shared.table().begin(path);
        let asked = shared.ask(std::slice::from_ref(path), Unleased::Nar);
        UnderWay {
            of: Some((Arc::clone(shared), path.clone())),
            has_waited: asked.has_waited,
        }
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        // The keeper may wait for a daemon, so nobody waits for the keeper.
        if let Some(shared) = &self.shared {
            shared.table().stop();
            shared.wake();
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some((shared, path)) = &self.of {
            shared.table().end(path);
        }
    }
}

impl Shared {
    fn ask(&self, paths: &[StorePath], what: Unleased) -> Asked {
        let mut table = self.table();
        let waiter = Arc::new(Waiter::default());
        let found = table.want(paths, &waiter);
        let generation = table.generation();
        let is_news = table.take_news();
        let is_off = table.status() == Status::Off;
        drop(table);
        if is_news {
            self.wake();
        }
        let asked = |is_held: bool, has_waited| Asked {
            generation: if is_held { generation } else { 0 },
            has_waited,
        };
        match found {
            Found::Held => asked(true, false),
            Found::HeldYet => Asked::NOTHING,
            Found::Asked(count) => {
                let outcome = waiter.wait(count);
                if outcome == Outcome::TooLate {
                    self.change(Table::note_stalled);
                }
                if outcome != Outcome::Held {
                    self.observer.event(&Event::Unleased(what));
                }
                asked(outcome == Outcome::Held, true)
            }
            Found::Unheld => {
                if !is_off {
                    self.observer.event(&Event::Unleased(what));
                }
                Asked::NOTHING
            }
        }
    }

    /// Changes the table, and publishes what is so after it.
    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table();
        let result = change(&mut table);
        self.published.store(table.published(), Ordering::Relaxed);
        result
    }

    fn wake(&self) {
        // Any number wakes, and so does one that is full.
        let _written = rustix::io::write(&self.wake, &1_u64.to_le_bytes());
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the answers to some questions.
#[derive(Debug, Default)]
struct Waiter {
    answers: Mutex<Answers>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Answers {
    count: usize,
    has_refusal: bool,
    /// How many somebody waits for; zero before he does.
    awaited_count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Held,
    Refused,
    TooLate,
}

impl Waiter {
    fn answer(&self, is_held: bool) {
        let mut answers = self.answers();
        answers.count += 1;
        answers.has_refusal |= !is_held;
        // Woken for each he would cost more than the daemon.
        let is_last = answers.count == answers.awaited_count;
        drop(answers);
        if is_last {
            self.changed.notify_one();
        }
    }

    fn wait(&self, count: usize) -> Outcome {
        let mut answers = self.answers();
        answers.awaited_count = count;
        let (answers, _) = self
            .changed
            .wait_timeout_while(answers, WAIT_MAX, |answers| answers.count < count)
            .unwrap_or_else(PoisonError::into_inner);
        match (answers.count < count, answers.has_refusal) {
            (true, _) => Outcome::TooLate,
            (false, true) => Outcome::Refused,
            (false, false) => Outcome::Held,
        }
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
