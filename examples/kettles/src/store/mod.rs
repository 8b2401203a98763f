//! Storage of measurements.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::command::Command;
use crate::device::{DeviceId, Measurement};
use crate::habit::Habit;
use crate::stats::Totals;
use crate::time::Time;

mod postgres;
mod sqlite;

pub use postgres::PostgresStore;
pub(crate) use postgres::client as postgres_client;
pub use sqlite::SqliteStore;

/// Result of store operations.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Errors of a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// SQLite failed.
    #[error("SQLite")]
    Sqlite(#[from] rusqlite::Error),
    /// PostgreSQL failed.
    #[error("PostgreSQL")]
    Postgres(#[from] ::postgres::Error),
    /// A file could not be opened.
    #[error("cannot open the store")]
    Io(#[from] std::io::Error),
    /// Another process has the store open. Two writers would overwrite each other's totals.
    #[error("another process writes to this store")]
    InUse,
    /// The store was not written by this program.
    #[error("the store was not written by this program: {0}")]
    Malformed(&'static str),
}

/// Opens the store `name`: a PostgreSQL URL, or a SQLite file.
///
/// # Errors
///
/// If it cannot be opened; errors never contain the URL's password.
pub fn open(name: &Path) -> anyhow::Result<Box<dyn Store>> {
    Ok(match url(name)? {
        Some(url) => Box::new(PostgresStore::open(url).context("cannot open the database")?),
        None => Box::new(SqliteStore::open(name).with_context(|| name.display().to_string())?),
    })
}

/// Opens the store for reading, even while others write to it.
///
/// # Errors
///
/// The same as for [`open`].
pub fn open_to_read(name: &Path) -> anyhow::Result<Box<dyn Store>> {
    Ok(match url(name)? {
        Some(url) => {
            Box::new(PostgresStore::open_to_read(url).context("cannot open the database")?)
        }
        None => {
            let store = SqliteStore::open_to_read(name);
            Box::new(store.with_context(|| name.display().to_string())?)
        }
    })
}

/// Returns whether several processes may write to the store `name`.
pub fn is_shared(name: &Path) -> bool {
    url(name).is_ok_and(|url| url.is_some())
}

/// Returns the PostgreSQL URL in `name`, if it is one.
///
/// # Errors
///
/// If it is a URL of another scheme.
fn url(name: &Path) -> anyhow::Result<Option<&str>> {
    let Some((name, (scheme, _))) = name
        .to_str()
        .and_then(|it| Some((it, it.split_once("://")?)))
    else {
        return Ok(None);
    };
    // The schemes that `tokio_postgres` accepts.
    match scheme {
        "postgres" | "postgresql" => Ok(Some(name)),
        _ if scheme.contains('/') => Ok(None),
        _ => bail!("unknown store scheme {scheme}://: give a file or a postgresql:// URL"),
    }
}

/// Rows and commands to commit as one transaction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Sorted by time and device, so that writes are local, and two writers lock devices in the
    /// same order. Duplicates are allowed; they are not counted.
    pub measurements: Vec<Measurement>,
    /// Devices that logged in.
    pub devices: Vec<DeviceId>,
    /// New commands.
    pub commands: Vec<Command>,
    /// Confirmed commands, by device and time; they confirm older commands of the device too.
    pub confirmed: Vec<(DeviceId, Time)>,
}

/// The contents of a store at start.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// Totals of the statistics.
    pub totals: Totals,
    /// Commands not confirmed yet.
    pub commands: Vec<Command>,
}

/// Result of a committed transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct Committed {
    /// Totals after the transaction.
    pub totals: Totals,
    /// Number of duplicates.
    pub duplicate_count: usize,
    /// Time from the last statement until the commit was durable.
    pub sync_time: Duration,
}

/// Result of one call of [`Store::prune`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruned {
    /// Number of deleted measurements.
    pub row_count: usize,
    /// Whether all expired measurements are deleted.
    pub is_done: bool,
}

/// A store, owned by its only writer thread.
///
/// Rows and totals change in one transaction: after a crash each acknowledged measurement is stored
/// once, and the totals match the rows.
pub trait Store: Send {
    /// Reads the stored totals and commands. Must be called first, and only once.
    ///
    /// # Errors
    ///
    /// If the store cannot be read; it cannot be used then.
    fn load(&mut self) -> Result<Loaded>;

    /// Reads the current state if other processes may have written; `None` if none can.
    ///
    /// # Errors
    ///
    /// If the store cannot be read; a later call may succeed.
    fn look(&mut self) -> Result<Option<Loaded>> {
        Ok(None)
    }

    /// Reads the habits of all kettles.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn habits(&mut self) -> Result<Vec<(DeviceId, Habit)>>;

    /// Adds habits, sorted by device, to the stored ones.
    ///
    /// # Errors
    ///
    /// If the transaction fails. Then nothing is stored, and the store can still be used.
    fn save_habits(&mut self, habits: &[(DeviceId, Habit)]) -> Result<()>;

    /// Commits a batch, which is on disk when this returns.
    ///
    /// # Errors
    ///
    /// If the transaction fails. Then nothing of the batch is stored, and the store can still be
    /// used.
    fn commit(&mut self, batch: &Batch) -> Result<Committed>;

    /// Recomputes the totals from all rows and the pruned history.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn recount(&mut self) -> Result<Totals>;

    /// Deletes some measurements older than `before`. The caller repeats this until all are
    /// deleted, with commits in between.
    ///
    /// # Errors
    ///
    /// If the transaction fails. Then nothing is deleted.
    fn prune(&mut self, before: Time) -> Result<Pruned>;
}
