//! [`Writer`]: the only connection that writes, used by one caller at a time.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::error::StorageError;
use crate::sql::turns::{Turn, Turns};

/// The connection that writes. A panic of a caller leaves no open transaction: dropping the guard
/// of a transaction rolls it back.
#[derive(Debug)]
pub(super) struct Writer(Turns<Connection>);

impl Writer {
    pub(super) const fn new(connection: Connection) -> Self {
        Self(Turns::new(connection))
    }

    /// Takes the connection. Waits at most `patience`, first for other callers, then for locks of
    /// other processes.
    pub(super) fn take(&self, patience: Duration) -> Result<Taken<'_>, StorageError> {
        let start = Instant::now();
        let connection = self.0.take(patience)?;
        connection.busy_timeout(patience.saturating_sub(start.elapsed()))?;
        Ok(Taken {
            connection,
            flushes: true,
        })
    }
}

/// The connection that writes. Dropping it returns the connection.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    connection: Turn<'a, Connection>,
    /// Whether commits flush the disk.
    flushes: bool,
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
