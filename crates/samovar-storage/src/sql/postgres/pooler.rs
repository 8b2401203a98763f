//! Notices a pooler that gives the sessions of several clients to one process of the server, such
//! as `PgBouncer` in transaction mode. Locks, notifications, settings and prepared statements of a
//! session would be those of other clients, or lost, without any error.

use std::time::Duration;

use super::session::Session;
use crate::error::StorageError;

/// Number of times that each session is asked: a busy pooler may give the two sessions different
/// processes once.
const ROUND_COUNT: usize = 3;

/// Checks that two sessions, which exist at the same time, have a process of the server each.
///
/// # Errors
///
/// [`StorageError::Database`] if they share one, or if one changes. The error of a session.
pub(super) fn check_apart(sessions: [&Session; 2], limit: Duration) -> Result<(), StorageError> {
    let process = |session: &Session| session.batch("select pg_backend_pid()", limit);
    let first = [process(sessions[0])?, process(sessions[1])?];
    for _ in 0..ROUND_COUNT {
        let found = [process(sessions[0])?, process(sessions[1])?];
        if found != first || found[0] == found[1] {
            return Err(StorageError::Database(
                "the connections go through a pooler in transaction mode, such as PgBouncer's, \
                 where nodes would lose locks and notifications: let database.url lead to \
                 PostgreSQL itself, or to a pooler in session mode"
                    .to_owned(),
            ));
        }
    }
    Ok(())
}
