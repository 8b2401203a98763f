//! Errors of PostgreSQL as errors of the storage.

use std::error::Error as _;
use std::io;

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::error::StorageError;

/// States that end by themselves or after a failover: the server starts, stops or was promoted, has
/// too many connections, or broke a transaction off.
const PASSING: [SqlState; 12] = [
    SqlState::ADMIN_SHUTDOWN,
    SqlState::CRASH_SHUTDOWN,
    SqlState::CANNOT_CONNECT_NOW,
    SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
    SqlState::READ_ONLY_SQL_TRANSACTION,
    SqlState::TOO_MANY_CONNECTIONS,
    SqlState::OUT_OF_MEMORY,
    SqlState::T_R_SERIALIZATION_FAILURE,
    SqlState::T_R_DEADLOCK_DETECTED,
    SqlState::QUERY_CANCELED,
    SqlState::CONNECTION_FAILURE,
    SqlState::CONNECTION_DOES_NOT_EXIST,
];

/// Translates an error of the client library.
pub(super) fn storage_error(error: &Error) -> StorageError {
    match error.as_db_error() {
        Some(error) => of_server(error),
        None if is_of_connection(error) => StorageError::Unavailable(text(error)),
        None => StorageError::Database(text(error)),
    }
}

/// Returns whether the session cannot be used after this error: it has ended, or the server accepts
/// no writes any more, while another host may.
pub(super) fn is_final(error: &Error) -> bool {
    error.as_db_error().is_none_or(|error| {
        let is_fatal = matches!(
            error.parsed_severity(),
            Some(Severity::Fatal | Severity::Panic)
        );
        is_fatal || *error.code() == SqlState::READ_ONLY_SQL_TRANSACTION
    })
}

fn of_server(error: &DbError) -> StorageError {
    let code = error.code();
    if *code == SqlState::LOCK_NOT_AVAILABLE {
        return StorageError::Busy;
    }
    if *code == SqlState::DISK_FULL {
        let full = io::ErrorKind::StorageFull.into();
        return StorageError::file("cannot write", "the database", full);
    }
    let message = format!("PostgreSQL: {}", error.message());
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        return StorageError::Database(format!(
            "{message}; the role in the URL must own the schema of the tables: as an \
             administrator, run create schema samovar authorization ROLE"
        ));
    }
    match PASSING.contains(code) {
        true => StorageError::Unavailable(message),
        false => StorageError::Database(message),
    }
}

/// Returns whether the connection was refused or lost. A certificate that is not trusted is none of
/// these: it stays.
fn is_of_connection(error: &Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    error.is_closed() || cause.is_some_and(|cause: &io::Error| !is_of_tls(cause))
}

fn is_of_tls(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|inner| inner.downcast_ref::<rustls::Error>().is_some())
}

/// The innermost cause, which says what happened.
fn text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    format!("PostgreSQL: {text}")
}
