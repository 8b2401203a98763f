//! Nix's database, read-only.
//!
//! [`Database`] opens `db.sqlite`, notices when it is replaced, and opens it again. What it says
//! always comes from one consistent snapshot of the file that the path leads to at that moment.
//!
//! # Source
//!
//! Nix 2.8.0 and 2.36, `src/libstore/schema.sql` and `local-store.cc`: schema 10, unchanged since
//! Nix 2.0.

mod closure;
mod connection;
mod held_file;
mod lineage;
mod realisation;
mod row;
mod schema;
mod session;
mod token;
mod wal_mark;
mod watch;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use samovar_nix::StoreDir;

use crate::error::{Corruption, StoreError, Unavailable};
use crate::location::Location;
use lineage::Lineage;
use schema::Schema;
use session::{Identity, Retired};

pub(crate) use connection::store_error;
pub use schema::SchemaRemark;
pub(crate) use schema::read_schema;
pub(crate) use session::Session;
pub(crate) use token::{Token, TokenSource};
use wal_mark::WalMark;
use watch::Watch;

/// How often a question is asked of a database that is written over or cannot be read.
const ATTEMPT_COUNT_MAX: u32 = 3;

/// How long a failure stands before the next attempt. Without this every question asked
/// while the database is away would open it once more.
const FAILURE_LIFE: Duration = Duration::from_millis(50);

/// How often another file may be found than the one that was to be opened.
const REPLACED_COUNT_MAX: u32 = 5;

/// How long a new file is not opened because of questions that are under way on the old one.
const RETIRED_PATIENCE: Duration = Duration::from_millis(500);

/// The database of one store.
#[derive(Debug)]
pub(crate) struct Database {
    path: PathBuf,
    schema_path: PathBuf,
    read_only: bool,
    dotfile_locks: bool,
    state: Mutex<State>,
    /// Sessions that are not used for new questions any more, as long as a question is under way in
    /// one.
    retired: Mutex<Vec<Retired>>,
    lineage: Mutex<Lineage>,
    store_dir: StoreDir,
    form: Mutex<Form>,
    /// Whether this process has ever read it.
    was_read: AtomicBool,
    watch: Mutex<Watch>,
    /// The WAL of a database that was replaced.
    left_over: Mutex<Option<WalMark>>,
}

/// What is known of the tables.
#[derive(Debug, Default)]
struct Form {
    /// The last one that was found to be good.
    checked: Option<FormKey>,
    said: Option<SchemaRemark>,
    to_say: Option<SchemaRemark>,
}

/// The form is the same as long as all of these are: the file, how often SQLite changed its
/// tables, what Nix calls it.
type FormKey = ((u64, u64), i64, Schema);

#[derive(Debug)]
enum State {
    Closed,
    Open(Arc<Session>),
    Failed { error: StoreError, at: Instant },
}

impl Database {
    /// The database of a store; nothing is opened yet.
    pub(crate) fn new(location: &Location) -> Self {
        Self {
            path: location.database(),
            schema_path: location.schema(),
            read_only: location.read_only,
            dotfile_locks: location.dotfile_locks,
            state: Mutex::new(State::Closed),
            retired: Mutex::default(),
            lineage: Mutex::new(Lineage::default()),
            store_dir: location.store_dir.clone(),
            form: Mutex::default(),
            was_read: AtomicBool::new(false),
            watch: Mutex::default(),
            left_over: Mutex::default(),
        }
    }

    /// Asks one question. `ask` may be called again: on a session that turns out to be broken, or
    /// after the file was written over under it.
    pub(crate) fn ask<T>(
        &self,
        ask: impl Fn(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.unless_busy(|| {
            let mut attempt = 1;
            loop {
                let session = self.session()?;
                let result = session.lease().and_then(|lease| ask(&lease));
                let error = match result {
                    Err(error) if is_fault_of_session(error) => error,
                    // Somebody wrote over the file meanwhile: it may be half of one and half of
                    // the other.
                    Ok(_) if !session.is_whole() => {
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
        })
    }

    /// Asks, unless somebody has just waited for a lock in vain. Of those who come later one waits
    /// at a time: a held lock must not cost every thread its timeout.
    fn unless_busy<T>(&self, ask: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.unless_busy_or_known(ask, |_| false)
    }

    /// The same for who may find the answer without asking: `is_known` tells.
    pub(crate) fn unless_busy_or_known<T>(
        &self,
        ask: impl FnOnce() -> Result<T, StoreError>,
        is_known: impl FnOnce(&T) -> bool,
    ) -> Result<T, StoreError> {
        let number = self.watch().begin(Instant::now())?;
        let result = ask();
        let mut watch = self.watch();
        match &result {
            Ok(answer) if is_known(answer) => watch.withdraw(number, Instant::now()),
            _ => watch.end(number, result.as_ref().err().copied(), Instant::now()),
        }
        drop(watch);
        result
    }

    /// Why a question would fail at once. Never blocks: if it is not certain, it says `None`. Of
    /// those who ask while the database fails one at a time is told `None`, to try again.
    pub(crate) fn down(&self) -> Option<StoreError> {
        self.watch.try_lock().ok()?.down(Instant::now())
    }

    /// Whether somebody has just waited for a lock in vain.
    pub(crate) fn is_busy(&self) -> bool {
        self.watch().is_busy(Instant::now())
    }

    /// The session with the file that the path leads to now; opens it when necessary.
    pub(crate) fn session(&self) -> Result<Arc<Session>, StoreError> {
        let mut state = self.state();
        match &*state {
            State::Open(session) if session.is_current() => return Ok(Arc::clone(session)),
            State::Open(session) => self.part_with(session),
            State::Failed { error, at } if at.elapsed() < FAILURE_LIFE => return Err(*error),
            State::Failed { .. } | State::Closed => {}
        }
        self.open_into(&mut state)
    }

    fn open_into(&self, state: &mut State) -> Result<Arc<Session>, StoreError> {
        // Connections to a file that somebody wrote over are closed before others are opened: as
        // long as one is open SQLite believes the WAL index, which describes the file of before.
        *state = State::Closed;
        let opened = self.open();
        *state = match &opened {
            Ok(session) => State::Open(Arc::clone(session)),
            Err(error) => State::Failed {
                error: *error,
                at: Instant::now(),
            },
        };
        opened
    }

    /// Looks at the files, and opens them anew when they are not those of the session any more. For
    /// a thread that does this every so often, on behalf of those who only read tokens.
    pub(crate) fn inspect(&self) {
        // Somebody who opens the database at this moment looks at the files himself.
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        if let State::Open(session) = &*state
            && !(session.is_current_and_noted()
                && session.has_its_wal_index()
                && session.schema_file == Identity::of(&self.schema_path).ok())
        {
            // While the count of commits still tells; a file that is gone tells nothing.
            let _look = self.lineage(session);
            self.part_with(session);
            // Its connections are of no use any more, and keep the WAL index of a file that
            // somebody wrote over alive, for writers too. At once: where nobody has it open, the
            // next writer to leave takes the WAL along, and who may not write cannot begin anew.
            let _shown_by_the_next_question = self.open_into(&mut state);
        }
    }

    /// The file that the path leads to now, when no questions are under way on another one.
    ///
    /// SQLite finds the WAL index by the database's path. Of two files that had this path it would
    /// map the same index twice, and the second opening would not see the locks of the first, which
    /// are this process's own: it takes itself for the first one there and truncates the index.
    /// Whoever reads in it at that moment gets SIGBUS. Closing either drops the locks of both, and
    /// then it is Nix that truncates.
    fn wait_for_retired(&self) -> Result<Identity, StoreError> {
        let start = Instant::now();
        loop {
            let identity = Identity::of(&self.path)?;
            let mut retired = self.retired();
            retired.retain(|session| !session.is_gone());
            let is_clear = retired
                .iter()
                .all(|session| session.file == identity.file());
            drop(retired);
            if is_clear {
                return Ok(identity);
            }
            if start.elapsed() > RETIRED_PATIENCE {
                return Err(StoreError::Unavailable(Unavailable::BeingReplaced));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn retired(&self) -> MutexGuard<'_, Vec<Retired>> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that stays the same as long as nothing but commits happens to the file.
    pub(crate) fn lineage(&self, session: &Session) -> Result<u64, StoreError> {
        let mut lineage = self.lineage.lock().unwrap_or_else(PoisonError::into_inner);
        // With the lock held, so that looks come in the order of time.
        Ok(lineage.look(session.look()?))
    }

    /// Whether this process has ever read the database.
    pub(crate) fn was_read(&self) -> bool {
        self.was_read.load(Ordering::Relaxed)
    }

    /// What the operator should know of the schema, once.
    pub(crate) fn take_remark(&self) -> Option<SchemaRemark> {
        self.form().to_say.take()
    }

    /// The file of this session is not what it was.
    fn part_with(&self, session: &Arc<Session>) {
        self.retired().push(session.retire());
        if let Some(mark) = WalMark::of(session, &self.path) {
            *self.left_over() = Some(mark);
        }
    }

    fn left_over(&self) -> MutexGuard<'_, Option<WalMark>> {
        self.left_over
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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

    fn open_file(&self, identity: Identity) -> Result<Arc<Session>, StoreError> {
        if let Some(mark) = *self.left_over()
            && mark.forbids(&self.path, identity.file())
        {
            return Err(StoreError::Unavailable(Unavailable::ForeignWal));
        }
        // Before its content: Nix changes the file after the tables.
        let schema_file = Identity::of(&self.schema_path).ok();
        let schema = read_schema(&self.schema_path)?;
        let mut session = Session::open(&self.path, identity, self.read_only, self.dotfile_locks)?;
        session.schema_file = schema_file;
        let session = Arc::new(session);
        let connection = session.lease()?;
        self.check_form(&session, &connection, schema)?;
        connection::settle(&connection)?;
        drop(connection);
        self.was_read.store(true, Ordering::Relaxed);
        Ok(session)
    }

    fn check_form(
        &self,
        session: &Session,
        connection: &Connection,
        schema: Schema,
    ) -> Result<(), StoreError> {
        let version = connection
            .query_row("pragma schema_version", [], |row| row.get(0))
            .map_err(|error| store_error(&error))?;
        let key = (session.file(), version, schema);
        if self.form().checked == Some(key) {
            return Ok(());
        }
        schema.check(connection, &self.store_dir)?;
        let mut form = self.form();
        form.checked = Some(key);
        let remark = schema.remark();
        if remark != form.said {
            (form.said, form.to_say) = (remark, remark);
        }
        Ok(())
    }

    fn form(&self) -> MutexGuard<'_, Form> {
        self.form.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole at every moment: it is replaced by one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether opening everything again may help.
fn is_fault_of_session(error: StoreError) -> bool {
    match error {
        StoreError::Corrupt(kind) => {
            matches!(kind, Corruption::Malformed | Corruption::Schema)
        }
        StoreError::Unavailable(_) | StoreError::Io { .. } => true,
        _ => false,
    }
}
