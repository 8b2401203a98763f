//! Who reads hash parts from the database, and when: see the state machine in the parent module.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use samovar_nix::StoreDir;

use super::base::{Advance, Base, Origin, Reader};
use super::set::Set;
use super::{Shared, Snapshot};
use crate::database::{Database, Session, Token, store_error};
use crate::error::{Operation, StoreError, Unavailable};

/// Attempts to read a database between two commits, in rollback mode, or two checkpoints.
const ATTEMPT_COUNT_MAX: u32 = 4;

/// Large loads in a row, each of which found the database replaced under it.
const LOAD_COUNT_MAX: u32 = 4;

/// How long nothing large is loaded after an attempt that failed, perhaps after seconds of work.
const FAILURE_LIFE: Duration = Duration::from_secs(1);

/// SQLite's own frames are small; sorting and parsing need next to nothing.
const STACK_LEN: usize = 512 * 1024;

/// The state of reading, behind the catalog's lock.
#[derive(Debug)]
pub(super) struct Loader {
    reader: Reader,
    /// `None` until something was read, and when that turned out to be of another database.
    base: Option<Base>,
    large: Large,
}

/// The thread that reads everything.
#[derive(Debug)]
enum Large {
    Idle,
    Running(JoinHandle<()>),
    Failed { error: StoreError, at: Instant },
}

/// What the thread begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    Everything,
    /// What is new, in many small parts.
    New,
}

/// What bringing the base up to date has come to.
enum Step<T> {
    Done(T),
    /// There is more to read than somebody may wait for.
    Left(Extent),
}

impl Loader {
    pub(super) fn new(store_dir: &StoreDir) -> Self {
        Self {
            reader: Reader::new(store_dir),
            base: None,
            large: Large::Idle,
        }
    }

    /// Publishes what is new. `None` when that is much: then a thread is at it.
    pub(super) fn refresh(
        &mut self,
        shared: &Arc<Shared>,
    ) -> Result<Option<Arc<Snapshot>>, StoreError> {
        let mut attempt = 1;
        loop {
            match self.refresh_once(shared) {
                // Most often a checkpoint wrote to the file.
                Err(StoreError::Unavailable(Unavailable::BeingReplaced))
                    if attempt < ATTEMPT_COUNT_MAX =>
                {
                    attempt += 1;
                }
                other => return other,
            }
        }
    }

    fn refresh_once(&mut self, shared: &Arc<Shared>) -> Result<Option<Arc<Snapshot>>, StoreError> {
        let session = shared.database.session()?;
        let current = shared.current();
        if current.is_truth_of(session.source()) {
            return Ok(Some(current));
        }
        if self.base.is_none() && self.is_large_running() {
            return Ok(None);
        }
        match self.publish(shared, &session) {
            Ok(Step::Done(snapshot)) => {
                if self.base.as_ref().is_some_and(Base::is_worn) {
                    self.start_large(shared, Extent::Everything)?;
                }
                Ok(Some(snapshot))
            }
            Ok(Step::Left(extent)) => {
                self.start_large(shared, extent)?;
                Ok(None)
            }
            Err(error) => {
                session.source().retire();
                Err(error)
            }
        }
    }

    /// Whether everything is being read, and why that failed if it did a moment ago.
    pub(super) fn large(&self) -> Result<bool, StoreError> {
        match &self.large {
            Large::Failed { error, at } if at.elapsed() < FAILURE_LIFE => Err(*error),
            _ => Ok(self.is_large_running()),
        }
    }

    /// The thread that reads everything, to be waited for by somebody who does not hold the lock.
    pub(super) fn take_thread(&mut self) -> Option<JoinHandle<()>> {
        match std::mem::replace(&mut self.large, Large::Idle) {
            Large::Running(thread) => Some(thread),
            Large::Idle | Large::Failed { .. } => None,
        }
    }

    fn publish(
        &mut self,
        shared: &Shared,
        session: &Arc<Session>,
    ) -> Result<Step<Arc<Snapshot>>, StoreError> {
        let (started, is_first) = (Instant::now(), self.base.is_none());
        Ok(match self.step(&shared.database, session)? {
            Step::Done((token, set)) => {
                if is_first {
                    shared.took(started);
                }
                Step::Done(shared.publish(session, token, set))
            }
            Step::Left(extent) => Step::Left(extent),
        })
    }

    /// The set as of now, with a token that is as old or older, if one could be had.
    fn step(
        &mut self,
        database: &Database,
        session: &Arc<Session>,
    ) -> Result<Step<(Option<Token>, Set)>, StoreError> {
        let lease = session.lease()?;
        let source = session.source();
        let mut attempt = 1;
        loop {
            let token = source.read();
            // Also ends the transaction when an error returns early.
            let transaction = lease
                .unchecked_transaction()
                .map_err(|error| store_error(&error))?;
            let origin = Origin::of(database, session, &transaction)?;
            let set = match self.advance(origin, &transaction)? {
                Step::Done(set) => set,
                Step::Left(extent) => return Ok(Step::Left(extent)),
            };
            // Written over while it was read, it may be half of one and half of the other.
            let is_whole = session.is_whole();
            transaction.finish().map_err(|error| store_error(&error))?;
            if !is_whole {
                return Err(StoreError::Unavailable(Unavailable::BeingReplaced));
            }
            if !source.needs_confirmation() || source.read() == token {
                return Ok(Step::Done((token, set)));
            }
            if attempt == ATTEMPT_COUNT_MAX {
                return Ok(Step::Done((None, set)));
            }
            attempt += 1;
        }
    }

    fn advance(
        &mut self,
        origin: Origin,
        connection: &Connection,
    ) -> Result<Step<Set>, StoreError> {
        if let Some(base) = &mut self.base {
            match base.advance(&self.reader, origin, connection)? {
                Advance::Done => return Ok(Step::Done(base.set.clone())),
                Advance::More => return Ok(Step::Left(Extent::New)),
                Advance::Foreign => self.base = None,
            }
        }
        let Some(base) = self.reader.read_small(origin, connection)? else {
            return Ok(Step::Left(Extent::Everything));
        };
        Ok(Step::Done(self.base.insert(base).set.clone()))
    }

    fn is_large_running(&self) -> bool {
        matches!(&self.large, Large::Running(thread) if !thread.is_finished())
    }

    fn start_large(&mut self, shared: &Arc<Shared>, extent: Extent) -> Result<(), StoreError> {
        // Its error is for whoever waits; the others ask the database.
        if self.large() != Ok(false) {
            return Ok(());
        }
        let (shared, reader) = (Arc::clone(shared), self.reader.clone());
        let thread = std::thread::Builder::new()
            .name("store-loader".into())
            .stack_size(STACK_LEN)
            .spawn(move || {
                let outcome = load_large(&shared, &reader, extent);
                shared.loader().large = match outcome {
                    Ok(()) => Large::Idle,
                    Err(error) => Large::Failed {
                        error,
                        at: Instant::now(),
                    },
                };
                shared.loaded.notify_all();
            })
            .map_err(|error| StoreError::io(Operation::StartThread, &error))?;
        self.large = Large::Running(thread);
        Ok(())
    }
}

/// The thread's work: without the lock while everything is read, with it for each small part.
fn load_large(shared: &Arc<Shared>, reader: &Reader, begin: Extent) -> Result<(), StoreError> {
    let mut extent = begin;
    let mut load_count = 0;
    while !shared.is_dropped() {
        let session = shared.database.session()?;
        let outcome = match extent {
            Extent::Everything if load_count == LOAD_COUNT_MAX => {
                Err(StoreError::Unavailable(Unavailable::BeingReplaced))
            }
            Extent::Everything => {
                load_count += 1;
                let started = Instant::now();
                let is_cancelled = || shared.is_dropped();
                let base = reader.read_large(&shared.database, &session, is_cancelled);
                match base {
                    Ok(Some(base)) => {
                        let mut loader = shared.loader();
                        loader.base = Some(base);
                        shared.took(started);
                        loader.publish(shared, &session)
                    }
                    Ok(None) => Ok(Step::Left(Extent::Everything)),
                    Err(error) => Err(error),
                }
            }
            Extent::New => shared.loader().publish(shared, &session),
        };
        match outcome {
            Ok(Step::Done(_)) => return Ok(()),
            Ok(Step::Left(left)) => extent = left,
            Err(_) if load_count < LOAD_COUNT_MAX && !session.is_current() => {
                session.source().retire();
                extent = Extent::Everything;
            }
            Err(error) => {
                session.source().retire();
                return Err(error);
            }
        }
    }
    Ok(())
}
