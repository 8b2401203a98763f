//! Loads hash parts from the database: see the state machine in the parent module.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use samovar_nix::StoreDir;

use super::base::{Advance, Base, History, Reader};
use super::set::Set;
use super::{Shared, Snapshot};
use crate::database::Session;
use crate::error::{StoreError, Unavailable};
use crate::sync::Locked;

/// Maximum number of attempts to read without a concurrent commit (in rollback mode) or checkpoint.
const ATTEMPT_COUNT_MAX: u32 = 4;

/// Number of consecutive full loads that may find the database replaced before the load fails.
const LOAD_COUNT_MAX: u32 = 4;

/// Minimum time between a failed full load, which may have taken seconds, and the next one.
const FAILURE_LIFE: Duration = Duration::from_secs(1);

/// Number of requests from which on a large database is loaded. To answer so many by queries costs
/// less than to load some ten thousand paths.
const REQUEST_COUNT_MIN: u32 = 100;

/// Stack size in bytes: SQLite's stack frames are small, and sorting and parsing need little.
const STACK_LEN: usize = 512 * 1024;

/// The state of loading, guarded by the mutex in the catalog's `Shared`.
#[derive(Debug)]
pub(super) struct Loader {
    reader: Reader,
    /// The loaded set; `None` before the first load, and after the database was replaced.
    base: Option<Base>,
    background: Background,
    /// Number of calls for a request, at most [`REQUEST_COUNT_MIN`].
    request_count: u32,
    /// Whether the database was too large to be read at once when it was last looked at.
    is_large: bool,
}

/// The purpose of a call of [`Loader::refresh`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Background work, which can do without the set.
    Background,
    /// A request, which can also be answered by a query.
    Request,
    /// A caller that cannot proceed without the set.
    Set,
}

/// The state of the background load.
#[derive(Debug)]
enum Background {
    Idle,
    Running(JoinHandle<()>),
    Failed { error: StoreError, at: Instant },
}

/// The part of the database that the background load reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    Everything,
    /// New rows, in many small transactions.
    New,
}

/// The result of an attempt to update the set.
enum Step<T> {
    Done(T),
    /// More rows must be read than a caller should wait for.
    TooMuch(Extent),
}

impl Loader {
    pub(super) fn new(store_dir: &StoreDir) -> Self {
        Self {
            reader: Reader::new(store_dir),
            base: None,
            background: Background::Idle,
            request_count: 0,
            is_large: false,
        }
    }

    /// Publishes a snapshot with all new rows and returns it. If more rows must be read than a
    /// caller should wait for, returns `None`; after enough requests, a background load is then
    /// running.
    pub(super) fn refresh(
        &mut self,
        shared: &Arc<Shared>,
        purpose: Purpose,
    ) -> Result<Option<Arc<Snapshot>>, StoreError> {
        self.request_count = match purpose {
            Purpose::Background => self.request_count,
            Purpose::Request => REQUEST_COUNT_MIN.min(self.request_count + 1),
            Purpose::Set => REQUEST_COUNT_MIN,
        };
        if self.base.is_none()
            && (self.request_count == 0 || self.is_large && !self.has_enough_requests())
        {
            return Ok(None);
        }
        let mut attempt = 1;
        loop {
            match self.refresh_once(shared) {
                // A checkpoint is the usual cause of this error: it changes the file, too.
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
        if self.base.is_none() && self.is_running() {
            return Ok(None);
        }
        match self.publish(shared, &session) {
            Ok(Step::Done(snapshot)) => {
                if self.base.as_ref().is_some_and(Base::is_mostly_deleted) {
                    self.start(shared, Extent::Everything)?;
                }
                Ok(Some(snapshot))
            }
            Ok(Step::TooMuch(extent)) => {
                self.is_large = true;
                if self.has_enough_requests() || extent == Extent::New {
                    self.start(shared, extent)?;
                }
                Ok(None)
            }
            Err(error) => {
                session.source().retire();
                Err(error)
            }
        }
    }

    /// Returns whether the number of requests justifies loading a large database.
    fn has_enough_requests(&self) -> bool {
        self.request_count == REQUEST_COUNT_MIN
    }

    /// Returns whether a background load is running. If the last one failed within
    /// [`FAILURE_LIFE`], returns its error.
    pub(super) fn is_loading(&self) -> Result<bool, StoreError> {
        match &self.background {
            Background::Failed { error, at } if at.elapsed() < FAILURE_LIFE => Err(*error),
            _ => Ok(self.is_running()),
        }
    }

    /// Takes the handle of the background thread out, so that the caller can join the thread
    /// without holding the loader's mutex. Returns `None` if no load is running.
    pub(super) fn take_thread(&mut self) -> Option<JoinHandle<()>> {
        match std::mem::replace(&mut self.background, Background::Idle) {
            Background::Running(thread) => Some(thread),
            Background::Idle | Background::Failed { .. } => None,
        }
    }

    /// Publishes the current set, together with the freshness token that was read before its rows,
    /// if one was available.
    fn publish(
        &mut self,
        shared: &Shared,
        session: &Arc<Session>,
    ) -> Result<Step<Arc<Snapshot>>, StoreError> {
        let (started, is_first) = (Instant::now(), self.base.is_none());
        let connection = session.connection()?;
        let source = session.source();
        let mut attempt = 1;
        let (token, set) = loop {
            let token = source.read();
            // Dropping the transaction ends it, also when an error returns early.
            let transaction = connection.unchecked_transaction()?;
            let history = History::of(&shared.database, session, &transaction)?;
            let set = match self.advance(history, &transaction)? {
                Step::Done(set) => set,
                Step::TooMuch(extent) => return Ok(Step::TooMuch(extent)),
            };
            // If the file was overwritten during the read, the set may mix both databases.
            let is_intact = session.is_intact();
            transaction.finish()?;
            if !is_intact {
                return Err(StoreError::Unavailable(Unavailable::BeingReplaced));
            }
            if !source.needs_confirmation() || source.read() == token {
                break (token, set);
            }
            if attempt == ATTEMPT_COUNT_MAX {
                break (None, set);
            }
            attempt += 1;
        };
        if is_first {
            shared.record_load_time(started);
        }
        Ok(Step::Done(shared.publish(session, token, set)))
    }

    fn advance(
        &mut self,
        history: History,
        connection: &Connection,
    ) -> Result<Step<Set>, StoreError> {
        if let Some(base) = &mut self.base {
            match base.advance(&self.reader, history, connection)? {
                Advance::Done => return Ok(Step::Done(base.set.clone())),
                Advance::More => return Ok(Step::TooMuch(Extent::New)),
                Advance::Foreign => self.base = None,
            }
        }
        let Some(base) = self.reader.read_small(history, connection)? else {
            return Ok(Step::TooMuch(Extent::Everything));
        };
        Ok(Step::Done(self.base.insert(base).set.clone()))
    }

    fn is_running(&self) -> bool {
        matches!(&self.background, Background::Running(thread) if !thread.is_finished())
    }

    fn start(&mut self, shared: &Arc<Shared>, extent: Extent) -> Result<(), StoreError> {
        // After a recent failure, start no other load. Only callers that wait for a load get its
        // error; the others query the database.
        if self.is_loading() != Ok(false) {
            return Ok(());
        }
        let (shared, reader) = (Arc::clone(shared), self.reader.clone());
        let thread = std::thread::Builder::new()
            .name("store-loader".into())
            .stack_size(STACK_LEN)
            .spawn(move || {
                let outcome = run(&shared, &reader, extent);
                shared.loader.locked().background = match outcome {
                    Ok(()) => Background::Idle,
                    Err(error) => Background::Failed {
                        error,
                        at: Instant::now(),
                    },
                };
                shared.loaded.notify_all();
            })
            .map_err(|error| StoreError::io("starting a thread", &error))?;
        self.background = Background::Running(thread);
        Ok(())
    }
}

/// Runs the background load: reads large parts without holding the loader's mutex, and small
/// updates while holding it.
fn run(shared: &Arc<Shared>, reader: &Reader, begin: Extent) -> Result<(), StoreError> {
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
                let base = reader.read_all(&shared.database, &session, is_cancelled);
                match base {
                    Ok(Some(base)) => {
                        let mut loader = shared.loader.locked();
                        loader.base = Some(base);
                        shared.record_load_time(started);
                        loader.publish(shared, &session)
                    }
                    Ok(None) => Ok(Step::TooMuch(Extent::Everything)),
                    Err(error) => Err(error),
                }
            }
            Extent::New => shared.loader.locked().publish(shared, &session),
        };
        match outcome {
            Ok(Step::Done(_)) => return Ok(()),
            Ok(Step::TooMuch(left)) => extent = left,
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
