//! [`Session`]: one connection, used by one thread at a time.
//!
//! Each session has a runtime of its own, which runs only while the thread waits for an answer. So
//! all waits have a limit: a server that hangs, or a network that drops packets, delays a caller,
//! but does not keep it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, Error, Row, SimpleQueryMessage, Statement,
};

use super::counters::Counters;
use super::failure::{is_final, storage_error};
use super::statement::numbered;
use crate::error::StorageError;
use crate::postgres::{PostgresSettings, Tls};
use crate::sql::Value;

/// Maximum time that the server works on a statement, in seconds.
pub(super) const STATEMENT_SECONDS: u32 = 60;

/// Maximum time until the answer to a statement. It is above [`STATEMENT_SECONDS`]: this limit is
/// for a server that hangs.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(65);

/// Maximum time until the answer to a look-up, for which a client waits.
pub(super) const LOOK_UP_TIME: Duration = Duration::from_secs(15);

/// Number of rows that are fetched at a time from a result of any length.
const FETCH_COUNT: usize = 2000;

/// Maximum time to tell the server that the connection ends.
const GOODBYE_TIME: Duration = Duration::from_millis(100);

/// Maximum number of prepared statements. There are about two hundred texts.
const STATEMENT_COUNT_MAX: usize = 500;

/// A connection to the server.
pub(crate) struct Session {
    /// `None` only while the session is dropped.
    client: Option<Client>,
    /// `None` only while the session is dropped.
    runtime: Option<Runtime>,
    driver: Option<JoinHandle<()>>,
    notifications: RefCell<UnboundedReceiver<String>>,
    statements: RefCell<HashMap<Box<str>, Statement>>,
    /// Maximum time until the answer to a statement.
    answer_time: Duration,
    is_broken: Cell<bool>,
    is_in_transaction: Cell<bool>,
    /// Whether a statement has failed since the transaction began. The server then ignores all
    /// others, and makes a commit a rollback without an error.
    has_failed: Cell<bool>,
    /// Number of open cursors.
    cursor_count: Cell<u32>,
    counters: Arc<Counters>,
}

impl Session {
    /// Connects to one host.
    ///
    /// # Errors
    ///
    /// [`StorageError::Unavailable`] if the host cannot be reached, does not answer in time or does
    /// not take connections now. [`StorageError::Database`] if it refuses the login, or if a
    /// certificate is wrong.
    pub(super) fn connect(
        config: &Config,
        settings: &PostgresSettings,
        answer_time: Duration,
        counters: Arc<Counters>,
    ) -> Result<Self, StorageError> {
        let failed = |error: io::Error| StorageError::Database(format!("PostgreSQL: {error}"));
        let tls = settings.certificates.connector().map_err(failed)?;
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(failed)?;
        let (sender, receiver) = unbounded_channel();
        let connected = runtime.block_on(async {
            let connecting = connect(config, tls, sender);
            timeout(settings.connect_time, connecting).await
        });
        let Ok(connected) = connected else {
            // A look-up of the name may still run: do not wait for it.
            runtime.shutdown_background();
            let seconds = settings.connect_time.as_secs();
            return Err(StorageError::Unavailable(format!(
                "PostgreSQL does not answer within {seconds} s"
            )));
        };
        let (client, driver) = connected.map_err(|error| storage_error(&error))?;
        counters.connected();
        Ok(Self {
            client: Some(client),
            runtime: Some(runtime),
            driver: Some(driver),
            notifications: RefCell::new(receiver),
            statements: RefCell::default(),
            answer_time,
            is_broken: Cell::new(false),
            is_in_transaction: Cell::new(false),
            has_failed: Cell::new(false),
            cursor_count: Cell::new(0),
            counters,
        })
    }

    /// Returns whether the connection is lost, or in an unknown state.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.get() || self.client.as_ref().is_none_or(Client::is_closed)
    }

    /// Returns whether the connection can be used, after reading what the server has sent
    /// meanwhile, such as the end of the connection.
    pub(super) fn is_usable(&self) -> bool {
        self.runtime().block_on(tokio::task::yield_now());
        !self.is_broken() && !self.is_in_transaction.get()
    }

    /// Returns whether a statement has failed in the present transaction.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    /// Lets no other caller use the session.
    pub(super) fn set_broken(&self) {
        self.is_broken.set(true);
    }

    /// Runs statements without parameters, separated by semicolons, in one round trip. Returns the
    /// first column of each row.
    ///
    /// # Errors
    ///
    /// The error of the first statement that fails. Later ones are not run.
    pub(super) fn batch(
        &self,
        sql: &str,
        limit: Duration,
    ) -> Result<Vec<Option<String>>, StorageError> {
        let messages = self.run(limit, self.client().simple_query(sql))?;
        let first = |message| match message {
            SimpleQueryMessage::Row(row) => Some(row.try_get(0).ok()?.map(str::to_owned)),
            _ => None,
        };
        Ok(messages.into_iter().filter_map(first).collect())
    }

    /// Runs the statements that begin a transaction, as [`batch`](Self::batch).
    pub(super) fn begin(
        &self,
        sql: &str,
        limit: Duration,
    ) -> Result<Vec<Option<String>>, StorageError> {
        self.has_failed.set(false);
        self.is_in_transaction.set(true);
        self.batch(sql, limit)
    }

    /// Runs the statements that end a transaction, as [`batch`](Self::batch).
    pub(super) fn end(
        &self,
        sql: &str,
        limit: Duration,
    ) -> Result<Vec<Option<String>>, StorageError> {
        let answers = self.batch(sql, limit)?;
        self.is_in_transaction.set(false);
        Ok(answers)
    }

    /// Ends a transaction without effect. If that fails, the session is broken.
    pub(super) fn roll_back(&self) {
        if self.is_broken() || self.end("rollback", self.answer_time).is_err() {
            self.set_broken();
        }
    }

    /// Runs a statement. Returns the number of rows that it changed.
    pub(crate) fn execute(&self, sql: &str, params: &[Value<'_>]) -> Result<usize, StorageError> {
        let count = self.run(self.answer_time, async {
            let statement = self.prepared(sql).await?;
            self.client().execute(&statement, &references(params)).await
        })?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// Runs a query. Returns all rows.
    pub(crate) fn query(&self, sql: &str, params: &[Value<'_>]) -> Result<Vec<Row>, StorageError> {
        self.run(self.answer_time, async {
            let statement = self.prepared(sql).await?;
            self.client().query(&statement, &references(params)).await
        })
    }

    /// Runs a query, and calls a function with each row until it breaks. Has [`FETCH_COUNT`] rows
    /// in memory at a time. The function may run other statements.
    pub(crate) fn each(
        &self,
        sql: &str,
        params: &[Value<'_>],
        visit: &mut dyn FnMut(&Row) -> Result<ControlFlow<()>, StorageError>,
    ) -> Result<(), StorageError> {
        self.snapshot(|| {
            let cursor = format!("cursor_{}", self.cursor_count.get());
            let declare = format!("declare {cursor} no scroll cursor for {sql}");
            self.execute(&declare, params)?;
            self.cursor_count.set(self.cursor_count.get() + 1);
            let outcome = self.fetch_all(&cursor, visit);
            self.cursor_count.set(self.cursor_count.get() - 1);
            // After an error, the end of the transaction closes the cursor.
            if outcome.is_ok() {
                self.batch(&format!("close {cursor}"), self.answer_time)?;
            }
            outcome
        })
    }

    fn fetch_all(
        &self,
        cursor: &str,
        visit: &mut dyn FnMut(&Row) -> Result<ControlFlow<()>, StorageError>,
    ) -> Result<(), StorageError> {
        let fetch = format!("fetch {FETCH_COUNT} from {cursor}");
        loop {
            // Not a prepared statement: cursors of this name have other columns.
            let rows = self.run(ANSWER_TIME, self.client().query(&fetch, &[]))?;
            for row in &rows {
                if visit(row)?.is_break() {
                    return Ok(());
                }
            }
            if rows.len() < FETCH_COUNT {
                return Ok(());
            }
        }
    }

    /// Calls a function whose statements all see one snapshot: that of the present transaction, or
    /// of one that reads.
    pub(crate) fn snapshot<T>(
        &self,
        statements: impl FnOnce() -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        if self.is_in_transaction.get() {
            return statements();
        }
        let begin = "begin isolation level repeatable read read only";
        if let Err(error) = self.begin(begin, self.answer_time) {
            self.set_broken();
            return Err(error);
        }
        let outcome = statements();
        self.roll_back();
        outcome
    }

    /// Calls a function that runs statements in this session, each of which the server breaks off
    /// after this time. Returns `None` if it did.
    pub(crate) fn within<T>(
        &self,
        time_max: Duration,
        statements: impl FnOnce() -> Result<T, StorageError>,
    ) -> Result<Option<T>, StorageError> {
        let set = |limit_ms: u128| {
            self.batch(
                &format!("set statement_timeout to {limit_ms}"),
                self.answer_time,
            )
        };
        // 0 would mean without limit.
        set(time_max.as_millis().max(1))?;
        let started = Instant::now();
        let outcome = statements();
        set(u128::from(STATEMENT_SECONDS) * 1000)?;
        match outcome {
            Err(StorageError::Unavailable(_)) if started.elapsed() >= time_max => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// Waits at most `limit` for a notification. Returns the payloads that have arrived.
    pub(super) fn notifications(&self, limit: Duration) -> Result<Vec<String>, StorageError> {
        let mut queue = self.notifications.borrow_mut();
        let first = self
            .runtime()
            .block_on(async { timeout(limit, queue.recv()).await });
        match first {
            // The driver has ended.
            Ok(None) => {
                self.set_broken();
                let lost = "PostgreSQL: the connection was closed".to_owned();
                Err(StorageError::Unavailable(lost))
            }
            Ok(Some(first)) => {
                let mut found = vec![first];
                while let Ok(next) = queue.try_recv() {
                    found.push(next);
                }
                Ok(found)
            }
            Err(_elapsed) => Ok(Vec::new()),
        }
    }

    /// Drives the connection until `future` is complete, at most for `limit`.
    fn run<T>(
        &self,
        limit: Duration,
        future: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, StorageError> {
        let outcome = self
            .runtime()
            .block_on(async { timeout(limit, future).await });
        let Ok(outcome) = outcome else {
            self.set_broken();
            let seconds = limit.as_secs_f32();
            let reason = format!("PostgreSQL has not answered for {seconds:.1} s");
            let error = StorageError::Unavailable(reason);
            self.counters.failed(&error);
            return Err(error);
        };
        let outcome = outcome.map_err(|error| {
            self.has_failed.set(true);
            let is_final = is_final(&error);
            if is_final {
                self.set_broken();
            }
            (storage_error(&error), is_final)
        });
        match &outcome {
            Err((error @ StorageError::Unavailable(_), true)) => self.counters.failed(error),
            _ => self.counters.answered(),
        }
        outcome.map_err(|(error, _)| error)
    }

    async fn prepared(&self, sql: &str) -> Result<Statement, Error> {
        let known = self.statements.borrow().get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client().prepare(&numbered(sql)).await?;
        let mut statements = self.statements.borrow_mut();
        if statements.len() >= STATEMENT_COUNT_MAX {
            statements.clear();
        }
        statements.insert(sql.into(), statement.clone());
        Ok(statement)
    }

    #[expect(clippy::expect_used, reason = "states the invariant")]
    fn client(&self) -> &Client {
        self.client.as_ref().expect("the session is not dropped")
    }

    #[expect(clippy::expect_used, reason = "states the invariant")]
    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("the session is not dropped")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.counters.disconnected();
        let is_broken = self.is_broken();
        // Lets the driver say goodbye, without which the server logs an error.
        self.client = None;
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        if let (false, Some(driver)) = (is_broken, self.driver.take()) {
            // Ignore errors: the connection is closed in any case.
            runtime
                .block_on(async { timeout(GOODBYE_TIME, driver).await })
                .ok();
        }
        runtime.shutdown_background();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("is_broken", &self.is_broken())
            .finish_non_exhaustive()
    }
}

/// Connects, and starts the task that receives answers and notifications.
async fn connect(
    config: &Config,
    tls: Tls,
    notifications: UnboundedSender<String>,
) -> Result<(Client, JoinHandle<()>), Error> {
    let (client, connection) = config.connect(tls).await?;
    Ok((client, tokio::spawn(drive(connection, notifications))))
}

async fn drive<S, T>(mut connection: Connection<S, T>, notifications: UnboundedSender<String>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    // Errors reach those who wait for an answer.
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notification(notification) = message {
            // Nobody waits for them while the session is dropped.
            notifications.send(notification.payload().to_owned()).ok();
        }
    }
}

fn references<'a>(params: &'a [Value<'_>]) -> Vec<&'a (dyn ToSql + Sync)> {
    params.iter().map(|value| value as _).collect()
}
