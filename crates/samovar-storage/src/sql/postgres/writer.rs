//! [`Writer`]: the session that writes, and [`Attempt`]: one attempt to run a transaction.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::counters::Work;
use super::keys::Key;
use super::outcome::{Outcome, TransactionId};
use super::server::{Purpose, ServerTime};
use super::session::Session;
use super::{Change, Flush, Postgres, outcome};
use crate::error::StorageError;
use crate::postgres::PostgresSettings;
use crate::sql::turns::{Turn, Turns};

/// Time for the network and the server in addition to that for other writers.
const GRACE: Duration = Duration::from_secs(1);

/// Maximum time until the answer to a commit. Then its outcome is looked up.
const COMMIT_TIME: Duration = Duration::from_secs(20);

/// The session that writes, used by one caller at a time.
#[derive(Debug)]
pub(super) struct Writer {
    lock: Key,
    /// `None`: there is no connection.
    session: Turns<Option<Session>>,
    /// When this program has deleted old outcomes.
    outcomes_removed_at: Mutex<Instant>,
}

impl Writer {
    pub(super) fn new(settings: &PostgresSettings, session: Session) -> Self {
        Self {
            lock: Key::writer(settings),
            session: Turns::new(Some(session)),
            outcomes_removed_at: Mutex::new(Instant::now()),
        }
    }

    /// Returns whether old outcomes are to be deleted now.
    fn must_remove_outcomes(&self) -> bool {
        let removed_at = self.outcomes_removed_at.lock();
        let mut removed_at = removed_at.unwrap_or_else(PoisonError::into_inner);
        let is_due = removed_at.elapsed() >= outcome::REMOVAL_INTERVAL;
        if is_due {
            *removed_at = Instant::now();
        }
        is_due
    }

    /// Waits at most `patience` for other callers.
    fn take(&self, patience: Duration) -> Result<Taken<'_>, StorageError> {
        self.session.take(patience).map(Taken)
    }
}

/// The right to use the session. Dropping it returns the session, unless that cannot be used again.
struct Taken<'w>(Turn<'w, Option<Session>>);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let session = self.0.as_ref();
        if session.is_some_and(|session| !session.is_usable()) {
            // A panic may have left a transaction open. The server rolls it back.
            *self.0 = None;
        }
    }
}

/// One attempt to run a transaction.
pub(super) struct Attempt<'d> {
    pub(super) database: &'d Postgres,
    /// Maximum time to wait for other writers.
    pub(super) patience: Duration,
    pub(super) flush: Flush,
    pub(super) work: &'d Work,
}

impl Attempt<'_> {
    /// Runs the statements and commits them. Returns their result, and the sequence number if there
    /// were changes.
    ///
    /// # Errors
    ///
    /// [`StorageError::Unavailable`] if nothing was committed and another attempt may succeed;
    /// [`StorageError::Unknown`] if it is unknown whether it was committed.
    pub(super) fn run<T>(
        &self,
        statements: &mut impl FnMut(&Session) -> Result<(T, Vec<Change>), StorageError>,
    ) -> Result<(T, Option<i64>), StorageError> {
        let started = Instant::now();
        let mut taken = self.database.writer.take(self.patience)?;
        let session = match taken.0.take().filter(Session::is_usable) {
            Some(session) => session,
            None => self.database.connect(Purpose::Write)?,
        };
        let session = &*taken.0.insert(session);
        let left = self.patience.saturating_sub(started.elapsed());
        let id = self.begin(session, left)?;
        let (value, changes) = self
            .work
            .measure(|| statements(session))
            .and_then(|outcome| match session.has_failed() {
                false => Ok(outcome),
                true => Err(StorageError::Database(
                    "a statement of a transaction failed, and it was to be committed".to_owned(),
                )),
            })
            .inspect_err(|_| session.roll_back())?;
        let now = self.database.now();
        match self.work.measure(|| commit(session, &changes, now)) {
            Ok(sequence) => Ok((value, sequence)),
            Err(error @ StorageError::Unavailable(_)) => {
                session.set_broken();
                // The lock of the lost session is released by the server.
                *taken.0 = None;
                match outcome::find(self.database, self.database.writer.lock, &id) {
                    Outcome::Committed(sequence) => {
                        Ok((value, (!changes.is_empty()).then_some(sequence)))
                    }
                    Outcome::RolledBack => Err(error),
                    Outcome::Unknown(reason) => Err(StorageError::Unknown(reason)),
                }
            }
            Err(error) => {
                session.roll_back();
                Err(error)
            }
        }
    }

    /// Begins the transaction, and takes the lock of all writers.
    fn begin(&self, session: &Session, patience: Duration) -> Result<TransactionId, StorageError> {
        let commit = match self.flush {
            Flush::AtCommit => "",
            Flush::Later => "set local synchronous_commit to off; ",
        };
        let remove_old = match self.database.writer.must_remove_outcomes() {
            true => format!("; {}", outcome::remove_old()),
            false => String::new(),
        };
        let statements = format!(
            "begin; {commit}{}; {}; \
             select extract(epoch from clock_timestamp())::bigint{remove_old}",
            take_lock(self.database.writer.lock, patience),
            outcome::INSERT
        );
        let answers = session.begin(&statements, patience + GRACE);
        let answers = answers.inspect_err(|_| session.roll_back())?;
        let answer = |index: usize| answers.get(index).cloned().flatten().unwrap_or_default();
        if let Some(time) = ServerTime::parse(&answer(2)) {
            self.database.set_time(time);
        }
        Ok(TransactionId(answer(1)))
    }
}

/// Returns the statements that take the lock of all writers until the end of the transaction. They
/// wait at most `patience`.
pub(super) fn take_lock(lock: Key, patience: Duration) -> String {
    // 0 would mean without limit.
    let limit_ms = patience.as_millis().max(1);
    format!(
        "set local lock_timeout to {limit_ms}; select pg_advisory_xact_lock({}); \
         set local lock_timeout to 0",
        lock.number()
    )
}

/// Adds the changes and commits, in one round trip. Returns the sequence number of the changes.
fn commit(session: &Session, changes: &[Change], now: i64) -> Result<Option<i64>, StorageError> {
    if changes.is_empty() {
        session.end("commit", COMMIT_TIME)?;
        return Ok(None);
    }
    let mut rows = String::new();
    for (number, change) in changes.iter().enumerate() {
        let (kind, cache, hash_part) = change.columns();
        let cache = cache.map_or("null".to_owned(), |cache| cache.0.to_string());
        let hash_part = hash_part.map_or("null".to_owned(), |part| hex(part.as_bytes()));
        let comma = if number == 0 { "" } else { ", " };
        rows += &format!("{comma}({number}, {kind}, {cache}::bigint, {hash_part}::bytea)");
    }
    let statements = format!(
        "with next as (update clock set seq = seq + 1 where id = 1 returning seq), added as ( \
             insert into change (seq, number, at, op, cache_id, hash_part) \
             select next.seq, its.number, {now}, its.op, its.cache_id, its.hash_part \
             from next, (values {rows}) as its (number, op, cache_id, hash_part)) \
         select seq from next; commit"
    );
    let answers = session.end(&statements, COMMIT_TIME)?;
    let sequence = answers.into_iter().flatten().next();
    let sequence = sequence.and_then(|text| text.parse().ok());
    let missing = || StorageError::Damaged("the table clock is empty".to_owned());
    sequence.ok_or_else(missing).map(Some)
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("'\\x{digits}'")
}
