//! [`Postgres`]: the metadata of a storage in a PostgreSQL database, which several nodes share.
//!
//! # Theory of operation
//!
//! **Writers take turns**, as with SQLite: each transaction that writes takes an advisory lock
//! first, and the lock is released by the commit. So what holds with one writer holds here, and the
//! order of commits is the order of sequence numbers. A node has one connection that writes. The
//! server ends a transaction whose node hangs for 5 s.
//!
//! **A commit whose answer is lost** may have happened or not. Each transaction inserts a random
//! identifier into the table `outcome`. After such a loss, the writer takes the lock again, on any
//! server, and looks the identifier up: the lock was released, so the transaction is over. If it
//! was committed, the writer updates the row: the new commit returns only after all earlier ones
//! are as durable as the server is set to make them, on its standbys, too. If not, the transaction
//! is run again.
//!
//! **While the server is away**, writers wait as they wait for SQLite's lock: see
//! [`Waits`]. So do look-ups of uploads, whose clients must not get a transient error. All others
//! fail at once.
//!
//! **Other nodes learn changes** from the table `change`: a transaction that has noted some adds
//! them with the next sequence number, in one round trip with its commit. After the commit, a
//! function of the nodes is called, which returns once all nodes know them.

pub(crate) mod confirmation;
mod counters;
pub(crate) mod exclusive;
mod failure;
mod keys;
pub(crate) mod link;
mod outcome;
mod pool;
mod pooler;
mod schema;
pub(crate) mod server;
mod session;
mod statement;
#[cfg(test)]
mod tests;
mod values;
mod writer;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use samovar_lease::Seq;

use super::Change;
use super::engine::{Clock, Flush};
use crate::error::StorageError;
use crate::postgres::PostgresSettings;
use crate::waiting::{self, PATIENCE, Waits};

pub use counters::{DatabaseStatistics, TransactionStatistics};
pub(crate) use session::Session;
pub(super) use values::value;

use confirmation::confirm;
use counters::Counters;
use pool::Pool;
use server::{Purpose, ServerTime};
use writer::{Attempt, Writer};

/// Maximum time to wait for the server when the database is opened.
const OPEN_TIME: Duration = Duration::from_secs(20);

/// First pause before another attempt to reach the server, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// The metadata of a storage in a PostgreSQL database.
pub(crate) struct Postgres {
    settings: PostgresSettings,
    readers: Pool,
    writer: Writer,
    /// Replaces the clock of the server, for tests.
    clock: Option<Clock>,
    time: Mutex<ServerTime>,
    waits: Waits,
    counters: Arc<Counters>,
}

impl Postgres {
    /// Opens the database, and creates or upgrades its tables. Waits some time for a server that
    /// cannot be reached.
    ///
    /// # Errors
    ///
    /// [`StorageError::Unavailable`], [`StorageError::Database`], or
    /// [`StorageError::SchemaTooNew`] if a newer version has shut out this one.
    pub(crate) fn open(
        settings: &PostgresSettings,
        clock: Option<Clock>,
    ) -> Result<Self, StorageError> {
        let counters = Arc::default();
        let (session, reader, greeting) = retrying(OPEN_TIME, |_left| {
            let (session, greeting) = server::connect(settings, Purpose::Write, &counters)?;
            let (reader, _greeting) = server::connect(settings, Purpose::Read, &counters)?;
            pooler::check_apart([&session, &reader], settings.connect_time)?;
            schema::migrate(&session, settings)?;
            Ok((session, reader, greeting))
        })
        .map_err(|error| at(error, settings))?;
        Ok(Self {
            settings: settings.clone(),
            readers: Pool::with_idle(reader),
            writer: Writer::new(settings, session),
            clock,
            time: Mutex::new(greeting.time),
            waits: Waits::default(),
            counters,
        })
    }

    /// Returns how callers wait for this database.
    pub(crate) const fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Returns the connections and transactions since the start of the process. Never blocks.
    pub(crate) fn statistics(&self) -> DatabaseStatistics {
        self.counters.get(self.settings.to_string())
    }

    /// Returns the present time by the clock of the server, in seconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        match self.clock {
            Some(clock) => clock(),
            None => self
                .time
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .now(),
        }
    }

    /// Runs a query in one of the sessions that read.
    pub(crate) fn read<T>(
        &self,
        mut query: impl FnMut(&Session) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.counters.reads.count(|work| {
            let mut attempt = || {
                let connect = || self.connect(Purpose::Read);
                self.readers
                    .with(connect, |session| work.measure(|| query(session)))
            };
            match waiting::has_request() {
                true => self
                    .waits
                    .patiently(PATIENCE, |patience| retrying(patience, |_left| attempt())),
                false => attempt(),
            }
        })
    }

    /// Runs statements in one transaction, and commits it with the changes that they return. Waits
    /// at most `patience` for other writers and for the server. Runs them again if the server was
    /// lost before it committed them.
    pub(in crate::sql) fn transact<T>(
        &self,
        patience: Duration,
        flush: Flush,
        mut statements: impl FnMut(&Session) -> Result<(T, Vec<Change>), StorageError>,
    ) -> Result<T, StorageError> {
        let (value, sequence) = self.counters.writes.count(|work| {
            self.waits.patiently(patience, |patience| {
                retrying(patience, |left| {
                    let attempt = Attempt {
                        database: self,
                        patience: left,
                        flush,
                        work,
                    };
                    attempt.run(&mut statements)
                })
            })
        })?;
        if let Some(sequence) = sequence {
            let look = |look: &mut dyn FnMut(&Session) -> Result<_, _>| {
                self.readers.with(|| self.connect(Purpose::Read), look)
            };
            let confirm = || confirm(Seq(sequence), &look);
            let counter = &self.counters.confirmations;
            counter.count(|work| work.measure(confirm))?;
        }
        Ok(value)
    }

    fn connect(&self, purpose: Purpose) -> Result<Session, StorageError> {
        let (session, greeting) = server::connect(&self.settings, purpose, &self.counters)?;
        self.set_time(greeting.time);
        Ok(session)
    }

    fn set_time(&self, time: ServerTime) {
        *self.time.lock().unwrap_or_else(PoisonError::into_inner) = time;
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Calls `attempt` with the time that is left of `patience`, again as long as the server is not
/// available and there is time.
fn retrying<T>(
    patience: Duration,
    mut attempt: impl FnMut(Duration) -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    let started = Instant::now();
    let (mut pause, pause_max) = PAUSES;
    loop {
        let outcome = attempt(patience.saturating_sub(started.elapsed()));
        let left = patience.saturating_sub(started.elapsed());
        if !matches!(outcome, Err(StorageError::Unavailable(_))) || left < pause {
            return outcome;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(pause_max);
    }
}

/// Adds to an error of opening the database where it is, and the options that state that.
fn at(error: StorageError, settings: &PostgresSettings) -> StorageError {
    // Some messages already state a remedy.
    let with_place = |message: String| match message.contains("; ") {
        true => message,
        false => format!("{message} ({settings}); check database.url and database.password-file"),
    };
    match error {
        StorageError::Unavailable(message) => StorageError::Unavailable(with_place(message)),
        StorageError::Database(message) => StorageError::Database(with_place(message)),
        other => other,
    }
}
