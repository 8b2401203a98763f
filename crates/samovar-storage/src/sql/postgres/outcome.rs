//! The outcome of a commit whose answer was lost.

use std::time::{Duration, Instant};

use super::keys::Key;
use super::server::Purpose;
use super::session::Session;
use super::writer::take_lock;
use super::{Postgres, retrying};
use crate::error::StorageError;

/// Adds the row of a transaction, and returns its identifier.
pub(super) const INSERT: &str = "insert into outcome \
    values (gen_random_uuid(), extract(epoch from clock_timestamp())::bigint) returning id";

/// Time for which a row is kept, in seconds, and interval at which a program deletes old ones. A
/// program looks for its row within a minute.
const KEPT_SECONDS: u32 = 3600;
pub(super) const REMOVAL_INTERVAL: Duration = Duration::from_secs(60);

/// Returns the statement that deletes old rows.
pub(super) fn remove_old() -> String {
    let now = "extract(epoch from clock_timestamp())::bigint";
    format!("delete from outcome where at < {now} - {KEPT_SECONDS}")
}

/// Maximum time to learn an outcome: a server that has crashed, or a standby that replaces it, is
/// usually back by then.
const PATIENCE: Duration = Duration::from_secs(30);

/// The identifier of a transaction in the table `outcome`.
#[derive(Debug)]
pub(super) struct TransactionId(pub(super) String);

/// What has happened to a transaction.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It was committed. With the highest sequence number of all commits until now.
    Committed(i64),
    RolledBack,
    /// The server could not be asked in time. With the reason.
    Unknown(String),
}

/// Looks up a transaction whose commit was not answered.
pub(super) fn find(database: &Postgres, lock: Key, id: &TransactionId) -> Outcome {
    let started = Instant::now();
    let found = retrying(PATIENCE, |_left| {
        let session = database.connect(Purpose::Write)?;
        // The server may not have noticed yet that the lost session has ended.
        let left = PATIENCE.saturating_sub(started.elapsed());
        look_up(&session, lock, id, left)
    });
    match found {
        Ok(Some(sequence)) => Outcome::Committed(sequence),
        Ok(None) => Outcome::RolledBack,
        Err(error) => Outcome::Unknown(error.to_string()),
    }
}

fn look_up(
    session: &Session,
    lock: Key,
    id: &TransactionId,
    patience: Duration,
) -> Result<Option<i64>, StorageError> {
    // The update makes the commit wait until the earlier one is as durable as it must be.
    let statements = format!(
        "begin; {}; \
         update outcome set at = at where id = '{}' returning (select seq from clock where id = 1)",
        take_lock(lock, patience),
        id.0
    );
    let answers = session.begin(&statements, patience + Duration::from_secs(1))?;
    session.end("commit", patience)?;
    // The first answer is that of the lock.
    let sequence = answers.into_iter().nth(1).flatten();
    Ok(sequence.and_then(|text| text.parse().ok()))
}
