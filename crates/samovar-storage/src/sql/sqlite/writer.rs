//! [`Writer`]: the only connection that writes, used by one caller at a time.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::error::StorageError;

/// The connection that writes. Callers wait for it with a time limit, which a [`Mutex`] does not
/// support.
#[derive(Debug)]
pub(super) struct Writer {
    connection: Mutex<Connection>,
    is_taken: Mutex<bool>,
    /// Notified when a caller returns the connection.
    returned: Condvar,
}

impl Writer {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection: Mutex::new(connection),
            is_taken: Mutex::default(),
            returned: Condvar::new(),
        }
    }

    /// Takes the connection. Waits at most `patience`, first for other callers, then for locks of
    /// other processes.
    pub(super) fn take(&self, patience: Duration) -> Result<Taken<'_>, StorageError> {
        let start = Instant::now();
        let is_taken = self.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut is_taken, _timeout) = self
            .returned
            .wait_timeout_while(is_taken, patience, |is_taken| *is_taken)
            .unwrap_or_else(PoisonError::into_inner);
        if *is_taken {
            return Err(StorageError::Busy);
        }
        *is_taken = true;
        drop(is_taken);
        let turn = Turn(self);
        // Ignore poisoning. A panic leaves no open transaction: dropping the transaction's guard
        // rolls it back.
        let connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        connection.busy_timeout(patience.saturating_sub(start.elapsed()))?;
        Ok(Taken {
            connection,
            flushes: true,
            _turn: turn,
        })
    }
}

/// The connection that writes. Dropping it returns the connection.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    connection: MutexGuard<'a, Connection>,
    /// Whether commits flush the disk.
    flushes: bool,
    _turn: Turn<'a>,
}

impl Taken<'_> {
    /// Lets commits return before they are on the disk, until the connection is returned.
    pub(super) fn defer_flush(&mut self) -> Result<(), StorageError> {
        self.flushes = false;
        Ok(self
            .connection
            .pragma_update(None, "synchronous", "normal")?)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.flushes {
            // Changes only a variable of the connection, which fails only in a transaction.
            let restored = self.connection.pragma_update(None, "synchronous", "full");
            debug_assert!(restored.is_ok(), "{restored:?}");
        }
    }
}

impl Deref for Taken<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

#[derive(Debug)]
struct Turn<'a>(&'a Writer);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let is_taken = self.0.is_taken.lock();
        *is_taken.unwrap_or_else(PoisonError::into_inner) = false;
        self.0.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_another_caller_ends() {
        let writer = Writer::new(Connection::open_in_memory().unwrap());
        let taken = writer.take(Duration::ZERO).unwrap();
        let busy = writer.take(Duration::from_millis(1));
        assert!(matches!(busy, Err(StorageError::Busy)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| writer.take(Duration::from_secs(600)).is_ok());
            drop(taken);
            assert!(waiting.join().unwrap());
        });
        writer.take(Duration::ZERO).unwrap();
    }

    #[test]
    fn waiting_for_another_process_ends() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Connection::open(dir.path().join("db")).unwrap();
        let (other, writer) = (open(), Writer::new(open()));
        other
            .execute_batch("create table a (b); begin immediate")
            .unwrap();
        let insert = |patience| -> Result<(), StorageError> {
            writer
                .take(patience)?
                .execute("insert into a values (1)", [])?;
            Ok(())
        };
        let busy = insert(Duration::from_millis(1));
        assert!(matches!(busy, Err(StorageError::Busy)), "{busy:?}");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| insert(Duration::from_secs(600)).is_ok());
            other.execute_batch("commit").unwrap();
            assert!(waiting.join().unwrap());
        });
    }
}
