//! The database of `/item`, as the rivals read it.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, OpenFlags};
use serde::Serialize;

/// Object in the response to `/item`.
#[derive(Debug, Serialize)]
pub(crate) struct Item {
    /// Key of the row.
    pub id: i64,
    /// Name, of about ten bytes.
    pub name: String,
    /// Price, in cents.
    pub price_cents: i64,
}

/// The database of `/item`, with a pool of connections: a query takes a free one or opens one.
#[derive(Debug)]
pub(crate) struct Items {
    file: PathBuf,
    free: Mutex<Vec<Connection>>,
}

impl Items {
    /// Names the database. Queries open it.
    pub(crate) fn new(file: PathBuf) -> Self {
        Self {
            file,
            free: Mutex::default(),
        }
    }

    /// Returns a row.
    ///
    /// # Errors
    ///
    /// If there is no such row, or the database cannot be read.
    pub(crate) fn find(&self, id: i64) -> rusqlite::Result<Item> {
        let free = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = match free {
            Some(connection) => connection,
            None => Connection::open_with_flags(&self.file, flags)?,
        };
        let item = connection
            .prepare_cached("SELECT id, name, price_cents FROM items WHERE id = ?")?
            .query_row([id], |row| {
                Ok(Item {
                    id: row.get(0)?,
                    name: row.get(1)?,
                    price_cents: row.get(2)?,
                })
            });
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(connection);
        item
    }
}
