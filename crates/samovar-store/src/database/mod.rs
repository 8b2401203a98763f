//! Nix's database, read-only.
//!
//! [`Database`] opens `db.sqlite`, notices when the file is replaced, and opens the new one. Every
//! result comes from one consistent snapshot of the file that is current at that moment.
//!
//! # Source
//!
//! Nix 2.8.0 and 2.36, `src/libstore/schema.sql` and `local-store.cc`: schema 10, unchanged since
//! Nix 2.0.

mod circuit_breaker;
mod closure;
mod connection;
mod file_state;
mod history;
mod realisation;
mod row;
mod scan;
mod schema;
mod session;
mod shared_file;
mod stale_wal;
mod token;

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use samovar_nix::StoreDir;

use crate::error::{Corruption, StoreError, Unavailable};
use crate::location::Location;
use crate::sync::Locked;
use file_state::FileState;
use history::History;
use schema::Schema;
use session::RetiredSession;
use shared_file::SharedFile;

use circuit_breaker::{CircuitBreaker, FAILURE_LIFE};
pub(crate) use closure::closure;
pub(crate) use realisation::{outputs, realisation};
pub(crate) use row::{newest, path_info, path_infos};
pub use scan::Scanned;
pub(crate) use scan::{referrers, scan};
pub use schema::SchemaWarning;
pub(crate) use schema::{SCHEMA_KNOWN, read_schema};
pub(crate) use session::Session;
use stale_wal::StaleWal;
pub(crate) use token::{Token, TokenSource};

/// Maximum number of attempts of a query on a database that is being replaced or unreadable.
const ATTEMPT_COUNT_MAX: u32 = 3;

/// Maximum number of attempts to open a file that is replaced while it is being opened.
const REPLACED_COUNT_MAX: u32 = 5;

/// Maximum time to wait for queries on the old file before opening the new one.
const RETIRED_WAIT_MAX: Duration = Duration::from_millis(500);

/// The database of one store.
#[derive(Debug)]
pub(crate) struct Database {
    path: PathBuf,
    schema_path: PathBuf,
    read_only: bool,
    dotfile_locks: bool,
    slot: Mutex<SessionSlot>,
    /// Retired sessions with queries in progress.
    retired: Mutex<Vec<RetiredSession>>,
    history: Mutex<History>,
    store_dir: StoreDir,
    schema_state: Mutex<SchemaState>,
    /// Whether this process has ever read the database.
    was_read: AtomicBool,
    breaker: Mutex<CircuitBreaker>,
    /// The WAL left by a database that was replaced; `None` if there is none.
    stale_wal: Mutex<Option<StaleWal>>,
}

/// Results of checking the schema.
#[derive(Debug, Default)]
struct SchemaState {
    /// The last schema that passed the check; `None` before the first.
    checked: Option<SchemaKey>,
    reported: Option<SchemaWarning>,
    pending: Option<SchemaWarning>,
}

/// File id, SQLite's schema version and Nix's schema: equal keys mean equal tables.
type SchemaKey = ((u64, u64), i64, Schema);

#[derive(Debug)]
enum SessionSlot {
    Closed,
    Open(Arc<Session>),
    Failed { error: StoreError, at: Instant },
}

impl Database {
    /// Creates the database of a store without opening it.
    pub(crate) fn new(location: &Location) -> Self {
        Self {
            path: location.database(),
            schema_path: location.schema(),
            read_only: location.read_only,
            dotfile_locks: location.dotfile_locks,
            slot: Mutex::new(SessionSlot::Closed),
            retired: Mutex::default(),
            history: Mutex::new(History::default()),
            store_dir: location.store_dir.clone(),
            schema_state: Mutex::default(),
            was_read: AtomicBool::new(false),
            breaker: Mutex::default(),
            stale_wal: Mutex::default(),
        }
    }

    /// Returns whether the header of the database file states WAL mode: the numbers at offset 18,
    /// the versions for writing and reading, are 2 then (SQLite file format, 1.3.3).
    pub(crate) fn is_wal_file(&self) -> bool {
        let mut versions = [0; 2];
        let Ok(file) = SharedFile::open(&self.path) else {
            return false;
        };
        let read = file.get().map(|file| file.read_exact_at(&mut versions, 18));
        matches!(read, Some(Ok(()))) && versions == [2, 2]
    }

    /// Runs a query, which sees one state of the database. Runs it several times if the session is
    /// broken or the file was overwritten.
    pub(crate) fn query<T>(
        &self,
        query: impl Fn(&Connection, &StoreDir) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let run = || {
            let mut attempt = 1;
            loop {
                let session = self.session()?;
                let result = session
                    .connection()
                    .and_then(|connection| query(&connection, &self.store_dir));
                let error = match result {
                    Err(error) if may_be_stale_session(error) => error,
                    // The file was overwritten during the query: the result may mix both databases.
                    Ok(_) if !session.is_intact() => {
                        StoreError::Unavailable(Unavailable::BeingReplaced)
                    }
                    other => return other,
                };
                session.source().retire();
                if attempt == ATTEMPT_COUNT_MAX {
                    return Err(error);
                }
                attempt += 1;
            }
        };
        self.guard_unless(run, |_| false)
    }

    /// Runs a query through the circuit breaker. If `is_known` returns true for the result, the
    /// breaker learns nothing from it: the query may not have reached the database.
    pub(crate) fn guard_unless<T>(
        &self,
        run: impl FnOnce() -> Result<T, StoreError>,
        is_known: impl FnOnce(&T) -> bool,
    ) -> Result<T, StoreError> {
        let number = self.breaker.locked().begin(Instant::now())?;
        let result = run();
        let mut breaker = self.breaker.locked();
        match &result {
            Ok(answer) if is_known(answer) => breaker.withdraw(number, Instant::now()),
            _ => breaker.end(number, result.as_ref().err().copied(), Instant::now()),
        }
        drop(breaker);
        result
    }

    /// Returns the error with which a query would fail at once, or `None` if that is uncertain.
    /// Never blocks. During an outage some calls return `None`, so that their callers retry.
    pub(crate) fn down(&self) -> Option<StoreError> {
        self.breaker.try_lock().ok()?.down(Instant::now())
    }

    /// Returns whether a query has just timed out on a lock.
    pub(crate) fn is_busy(&self) -> bool {
        self.breaker.locked().is_busy(Instant::now())
    }

    /// Returns the session of the current file, which is opened if necessary.
    pub(crate) fn session(&self) -> Result<Arc<Session>, StoreError> {
        let mut slot = self.slot.locked();
        match &*slot {
            SessionSlot::Open(session) if session.is_current() => return Ok(Arc::clone(session)),
            SessionSlot::Open(session) => self.retire(session),
            SessionSlot::Failed { error, at } if at.elapsed() < FAILURE_LIFE => return Err(*error),
            SessionSlot::Failed { .. } | SessionSlot::Closed => {}
        }
        self.open_into(&mut slot)
    }

    fn open_into(&self, slot: &mut SessionSlot) -> Result<Arc<Session>, StoreError> {
        // Close connections to an overwritten file before opening others: as long as one is open,
        // SQLite trusts the WAL index, which describes the old contents.
        *slot = SessionSlot::Closed;
        let opened = self.open();
        *slot = match &opened {
            Ok(session) => SessionSlot::Open(Arc::clone(session)),
            Err(error) => SessionSlot::Failed {
                error: *error,
                at: Instant::now(),
            },
        };
        opened
    }

    /// Checks the files, and opens them again if they were replaced. Called periodically, because
    /// callers that only read tokens never check the path.
    pub(crate) fn recheck(&self) {
        // Skip the check while another thread opens the database: it checks the files itself.
        let Ok(mut slot) = self.slot.try_lock() else {
            return;
        };
        if let SessionSlot::Open(session) = &*slot
            && !(session.check_current()
                && session.has_its_wal_index()
                && session.schema_file == FileState::of(&self.schema_path).ok())
        {
            // Record the file's state before the session is retired, while its change counter can
            // still be read: the counter shows whether commits or an overwrite have changed the
            // file. An error means that the file is gone.
            let _number = self.history(session);
            self.retire(session);
            // Open the new file at once, for two reasons. The old connections are useless, and they
            // keep the WAL index of an overwritten file alive, for writers too. And once no process
            // has the database open, the next writer to exit removes the WAL, which a user without
            // write permission cannot create.
            let _reported_by_next_query = self.open_into(&mut slot);
        }
    }

    /// Waits until no queries run on another file or with another WAL index, then returns the state
    /// of the current file.
    ///
    /// SQLite finds the WAL index by the database's path. If this process had connections to an old
    /// and a new file at the path, SQLite would map one index twice. The second connection would
    /// not see the locks of the first, because POSIX locks belong to the process: it would truncate
    /// the index as if it were the first user, and a concurrent reader would get SIGBUS. Closing
    /// either connection would drop the locks of both, and Nix might then truncate the index.
    ///
    /// If the WAL index was deleted, SQLite would share the deleted one between old and new
    /// connections to a file, so the new ones would not see the commits of other processes.
    fn wait_for_retired(&self) -> Result<FileState, StoreError> {
        let start = Instant::now();
        loop {
            let identity = FileState::of(&self.path)?;
            let index = FileState::of(&connection::beside(&self.path, "-shm")).ok();
            let index = index.map(|state| state.file);
            let mut retired = self.retired.locked();
            retired.retain(|session| !session.is_closed());
            let is_same_file = retired
                .iter()
                .all(|session| session.has_file(identity.file));
            let is_same_index = retired.iter().all(|session| session.agrees_with(index));
            drop(retired);
            if is_same_file && is_same_index {
                return Ok(identity);
            }
            if start.elapsed() > RETIRED_WAIT_MAX {
                return Err(StoreError::Unavailable(match is_same_file {
                    true => Unavailable::WalIndexMissing,
                    false => Unavailable::BeingReplaced,
                }));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the number of the file's history, which is constant as long as only commits change
    /// the file.
    pub(crate) fn history(&self, session: &Session) -> Result<u64, StoreError> {
        let mut history = self.history.locked();
        // Hold the lock on the history during the observation, so that observations are recorded in
        // order.
        Ok(history.observe(session.observe()?))
    }

    /// Returns whether this process has ever read the database.
    pub(crate) fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Relaxed)
    }

    /// Takes the warning about the schema; `None` if there is no new one. Each warning is returned
    /// once.
    pub(crate) fn take_schema_warning(&self) -> Option<SchemaWarning> {
        self.schema_state.locked().pending.take()
    }

    /// Retires a session after its file was replaced.
    fn retire(&self, session: &Arc<Session>) {
        self.retired.locked().push(session.retire());
        if let Some(stale) = StaleWal::of(session, &self.path) {
            *self.stale_wal.locked() = Some(stale);
        }
    }

    fn open(&self) -> Result<Arc<Session>, StoreError> {
        let replaced = StoreError::Unavailable(Unavailable::BeingReplaced);
        for _ in 0..REPLACED_COUNT_MAX {
            let identity = self.wait_for_retired()?;
            match self.open_file(identity) {
                Err(error) if error == replaced => {}
                other => return other,
            }
        }
        Err(replaced)
    }

    fn open_file(&self, identity: FileState) -> Result<Arc<Session>, StoreError> {
        if let Some(stale) = *self.stale_wal.locked()
            && stale.applies_to(&self.path, identity.file)
        {
            return Err(StoreError::Unavailable(Unavailable::ForeignWal));
        }
        // Read `db/schema` before the tables, because Nix updates this file after them.
        let schema_file = FileState::of(&self.schema_path).ok();
        let schema = read_schema(&self.schema_path)?;
        let mut session = Session::open(&self.path, identity, self.read_only, self.dotfile_locks)?;
        session.schema_file = schema_file;
        let session = Arc::new(session);
        let connection = session.connection()?;
        self.check_schema(&session, &connection, schema)?;
        connection::settle(&connection)?;
        drop(connection);
        self.was_read.store(true, Ordering::Relaxed);
        Ok(session)
    }

    fn check_schema(
        &self,
        session: &Session,
        connection: &Connection,
        schema: Schema,
    ) -> Result<(), StoreError> {
        let version = connection.query_row("pragma schema_version", [], |row| row.get(0))?;
        let key = (session.file(), version, schema);
        if self.schema_state.locked().checked == Some(key) {
            return Ok(());
        }
        schema.check(connection, &self.store_dir)?;
        let mut state = self.schema_state.locked();
        state.checked = Some(key);
        let warning = schema.warning();
        if warning != state.reported {
            (state.reported, state.pending) = (warning, warning);
        }
        Ok(())
    }
}

/// Returns whether the error may disappear if the database is opened again.
fn may_be_stale_session(error: StoreError) -> bool {
    match error {
        StoreError::Corrupt(kind) => {
            matches!(kind, Corruption::Malformed | Corruption::Schema)
        }
        StoreError::Unavailable(_) | StoreError::Io { .. } => true,
        _ => false,
    }
}
