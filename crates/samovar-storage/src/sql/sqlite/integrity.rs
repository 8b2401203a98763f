//! Checks the structure of the database file.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;

use crate::error::StorageError;

/// Tables without a row for each path or NAR.
const SMALL_TABLES: [&str; 6] = ["meta", "cache", "token", "pin", "removed_pin", "push"];

/// Rows that need a missing row.
// Without the table `reference`, whose rows have no number. Rows of some other tables have no
// number, either.
const DANGLING: &str = "select coalesce('row ' || rowid, 'a row') || ' of the table ' || \"table\" \
     || ' needs a missing row of ' || parent from pragma_foreign_key_check \
     where \"table\" <> 'reference' limit ?1";

/// Checks the small tables and their indexes.
pub(in crate::sql) fn check_small_tables(connection: &Connection) -> Result<(), StorageError> {
    for table in SMALL_TABLES {
        let mut statement = connection.prepare(&format!("pragma integrity_check({table})"))?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
        for fault in rows {
            match fault? {
                fault if fault == "ok" => {}
                fault => return Err(StorageError::Damaged(fault)),
            }
        }
    }
    Ok(())
}

/// Returns at most `count_max` faults of the file and as many of the references between rows. With
/// `deep`, also compares indexes with tables.
pub(in crate::sql) fn faults(
    connection: &Connection,
    deep: bool,
    count_max: u32,
) -> Result<Vec<String>, StorageError> {
    let check = if deep { "integrity" } else { "quick" };
    let mut statement = connection.prepare(&format!("pragma {check}_check({count_max})"))?;
    let rows = statement.query_map([], |row| row.get(0))?;
    let mut faults: Vec<String> = rows.collect::<Result<_, _>>()?;
    faults.retain(|fault| fault != "ok");
    let mut statement = connection.prepare(DANGLING)?;
    for fault in statement.query_map([count_max], |row| row.get(0))? {
        faults.push(fault?);
    }
    Ok(faults)
}

/// Calls a function, and interrupts its statements after this time. Returns `None` if they were
/// interrupted.
pub(in crate::sql) fn within<T>(
    connection: &Connection,
    time_max: Duration,
    statements: impl FnOnce() -> Result<T, StorageError>,
) -> Result<Option<T>, StorageError> {
    let interrupt = connection.get_interrupt_handle();
    let (done, is_done) = mpsc::channel::<()>();
    let timer = thread::spawn(move || {
        let is_over = is_done.recv_timeout(time_max) == Err(RecvTimeoutError::Timeout);
        if is_over {
            interrupt.interrupt();
        }
        is_over
    });
    let outcome = statements();
    drop(done);
    // Wait for the timer's thread, which must not interrupt a later query. It cannot panic.
    let is_interrupted = timer.join().unwrap_or_default();
    match outcome {
        Err(_) if is_interrupted => Ok(None),
        outcome => outcome.map(Some),
    }
}
