//! Where measurements are kept.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::command::Command;
use crate::device::{DeviceId, Measurement};
use crate::stats::Totals;
use crate::time::Time;

mod postgres;
mod sqlite;

pub use postgres::PostgresStore;
pub(crate) use postgres::client as postgres_client;
pub use sqlite::SqliteStore;

/// What stores return.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Why a store has not done what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// SQLite could not.
    #[error("SQLite")]
    Sqlite(#[from] rusqlite::Error),
    /// PostgreSQL could not.
    #[error("PostgreSQL")]
    Postgres(#[from] ::postgres::Error),
    /// A file could not be opened.
    #[error("cannot open the store")]
    Io(#[from] std::io::Error),
    /// Another process has it: each would overwrite the totals of the other.
    #[error("another process writes to this store")]
    InUse,
    /// What is stored was not written by this program.
    #[error("the store holds something else: {0}")]
    Malformed(&'static str),
}

/// Opens the store that `name` names: a URL of PostgreSQL, or else a file of SQLite.
///
/// # Errors
///
/// If it cannot be had; passwords in URLs are not told.
pub fn open(name: &Path) -> anyhow::Result<Box<dyn Store>> {
    Ok(match url(name)? {
        Some(url) => Box::new(PostgresStore::open(url).context("cannot open the database")?),
        None => Box::new(SqliteStore::open(name).with_context(|| name.display().to_string())?),
    })
}

/// The same to look at it, while others may write.
///
/// # Errors
///
/// As [`open`].
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

/// Whether several processes may write to the store that `name` names.
pub fn is_shared(name: &Path) -> bool {
    url(name).is_ok_and(|url| url.is_some())
}

/// The URL of a PostgreSQL, if `name` is one.
///
/// # Errors
///
/// If it is the URL of something else.
fn url(name: &Path) -> anyhow::Result<Option<&str>> {
    let Some((name, (scheme, _))) = name
        .to_str()
        .and_then(|it| Some((it, it.split_once("://")?)))
    else {
        return Ok(None);
    };
    // As `tokio_postgres` reads them.
    match scheme {
        "postgres" | "postgresql" => Ok(Some(name)),
        _ if scheme.contains('/') => Ok(None),
        _ => bail!("no store is at a {scheme}:// URL: give a file, or a postgresql:// URL"),
    }
}

/// What becomes durable at once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// Sorted by time and device, so that they go to one place and two writers lock their devices
    /// in the same order. Some may be there already; those count for nothing.
    pub measurements: Vec<Measurement>,
    /// Devices that logged in.
    pub devices: Vec<DeviceId>,
    /// Commands given.
    pub commands: Vec<Command>,
    /// Commands that were done, by device and time; older ones are done with.
    pub confirmed: Vec<(DeviceId, Time)>,
}

/// What a store knows when it is opened.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// All that `GET /statistics` is made of.
    pub totals: Totals,
    /// Commands that wait to be done.
    pub commands: Vec<Command>,
}

/// What a transaction has done.
#[derive(Debug, Clone, PartialEq)]
pub struct Committed {
    /// The totals behind it.
    pub totals: Totals,
    /// Measurements that were there already.
    pub duplicate_count: usize,
    /// What of its time was the disk's: from the last statement until all of it was there.
    pub sync_time: Duration,
}

/// What was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pruned {
    /// Measurements.
    pub row_count: usize,
    /// Whether nothing that old is left.
    pub is_done: bool,
}

/// A store, owned by the one thread that writes to it.
///
/// Rows and totals change in one transaction: after a crash, each acknowledged measurement is there
/// once, and totals are those of the rows.
pub trait Store: Send {
    /// Reads what is known. To be called first, and once.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the store is of no use then.
    fn load(&mut self) -> Result<Loaded>;

    /// What is known now, if others may have written since; `None` if nobody else does.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; it may be known later.
    fn look(&mut self) -> Result<Option<Loaded>> {
        Ok(None)
    }

    /// Makes a batch durable: when this returns it is on disk.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; nothing of the batch was stored, and the next may be.
    fn commit(&mut self, batch: &Batch) -> Result<Committed>;

    /// Adds up all rows, and what was pruned, as if there were no totals.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    fn recount(&mut self) -> Result<Totals>;

    /// Deletes some of the measurements before `before`; called again until all are gone, with
    /// commits in between.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; nothing was deleted.
    fn prune(&mut self, before: Time) -> Result<Pruned>;
}
