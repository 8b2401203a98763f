//! [`Connection`] and [`Transaction`]: run statements.

use std::cell::RefCell;
use std::ops::{ControlFlow, Deref};
use std::time::Duration;

use super::change::Change;
use super::postgres::Session;
use super::row::Row;
use super::sqlite;
use super::value::Value;
use crate::error::StorageError;

/// The SQL of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

/// A connection to the database that the caller has for some statements.
///
/// Statements are prepared once for each connection and text, so a text should not contain values.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Connection<'c> {
    Sqlite(&'c rusqlite::Connection),
    Postgres(&'c Session),
}

/// Called with each row of a result.
pub(super) type Visit<'v> = dyn FnMut(&Row<'_>) -> Result<ControlFlow<()>, StorageError> + 'v;

/// Runs a statement with these parameters.
type Run<'r> = dyn FnMut(&str, &[Value<'_>]) -> Result<(), StorageError> + 'r;

impl Connection<'_> {
    /// Returns the SQL that the engine understands.
    pub(crate) const fn dialect(&self) -> Dialect {
        match self {
            Self::Sqlite(_) => Dialect::Sqlite,
            Self::Postgres(_) => Dialect::Postgres,
        }
    }

    /// Runs a statement that returns no rows. Returns the number of rows that it has changed.
    pub(crate) fn execute(&self, sql: &str, params: &[Value<'_>]) -> Result<usize, StorageError> {
        match self {
            Self::Sqlite(connection) => sqlite::execute(connection, sql, params),
            Self::Postgres(session) => session.execute(sql, params),
        }
    }

    /// Runs a query, and calls a function with each row until it breaks. Has some of the rows in
    /// memory at a time, however many there are. The function may run other statements.
    pub(crate) fn each(
        &self,
        sql: &str,
        params: &[Value<'_>],
        mut visit: impl FnMut(&Row<'_>) -> Result<ControlFlow<()>, StorageError>,
    ) -> Result<(), StorageError> {
        match self {
            Self::Sqlite(connection) => sqlite::each(connection, sql, params, &mut visit),
            Self::Postgres(session) => {
                session.each(sql, params, &mut |row| visit(&Row::Postgres(row)))
            }
        }
    }

    /// Runs a query, and returns what a function has made of each row.
    pub(crate) fn rows<T>(
        &self,
        sql: &str,
        params: &[Value<'_>],
        mut row: impl FnMut(&Row<'_>) -> Result<T, StorageError>,
    ) -> Result<Vec<T>, StorageError> {
        let mut rows = Vec::new();
        self.all(sql, params, &mut |found| {
            rows.push(row(found)?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(rows)
    }

    /// Runs a query, and returns what a function has made of the first row. `None`: there is none.
    pub(crate) fn optional<T>(
        &self,
        sql: &str,
        params: &[Value<'_>],
        row: impl FnOnce(&Row<'_>) -> Result<T, StorageError>,
    ) -> Result<Option<T>, StorageError> {
        let (mut row, mut first) = (Some(row), None);
        self.all(sql, params, &mut |found| {
            first = row.take().map(|row| row(found)).transpose()?;
            Ok(ControlFlow::Break(()))
        })?;
        Ok(first)
    }

    /// Runs a query that always has a row, and returns what a function has made of the first one.
    pub(crate) fn row<T>(
        &self,
        sql: &str,
        params: &[Value<'_>],
        row: impl FnOnce(&Row<'_>) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let found = self.optional(sql, params, row)?;
        found.ok_or_else(|| StorageError::Database(format!("no row is the result of: {sql}")))
    }

    /// Runs a query for each of these keys, and calls a function with each row. The query ends with
    /// the name of the column with the key, and has the parameters `params`. The order of the rows
    /// is undefined.
    pub(crate) fn each_of(
        &self,
        query: &str,
        params: &[Value<'_>],
        keys: &[Value<'_>],
        mut visit: impl FnMut(&Row<'_>) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        self.of((query, ""), params, keys, &mut |sql, params| {
            self.all(sql, params, &mut |row| {
                visit(row)?;
                Ok(ControlFlow::Continue(()))
            })
        })
    }

    /// Runs a statement that changes rows for each of these keys, and returns what a function has
    /// made of these columns of each changed row. It is as in [`each_of`](Self::each_of). The
    /// engine may change the rows in any order.
    pub(crate) fn returning_of<T>(
        &self,
        statement: &str,
        columns: &str,
        params: &[Value<'_>],
        keys: &[Value<'_>],
        mut row: impl FnMut(&Row<'_>) -> Result<T, StorageError>,
    ) -> Result<Vec<T>, StorageError> {
        let returning = format!(" returning {columns}");
        let mut rows = Vec::new();
        self.of((statement, &returning), params, keys, &mut |sql, params| {
            rows.extend(self.rows(sql, params, &mut row)?);
            Ok(())
        })?;
        Ok(rows)
    }

    /// Runs a statement for each of these keys. It is as in [`each_of`](Self::each_of). Returns the
    /// number of rows that were changed.
    pub(crate) fn execute_of(
        &self,
        statement: &str,
        params: &[Value<'_>],
        keys: &[Value<'_>],
    ) -> Result<usize, StorageError> {
        let mut count = 0;
        self.of((statement, ""), params, keys, &mut |sql, params| {
            count += self.execute(sql, params)?;
            Ok(())
        })?;
        Ok(count)
    }

    /// Runs a statement for each of these keys: once for all of them, if the engine is on another
    /// machine, and a round trip costs more than the work. The key is compared between the two
    /// parts of the statement.
    fn of(
        &self,
        (statement, end): (&str, &str),
        params: &[Value<'_>],
        keys: &[Value<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), StorageError> {
        let number = params.len() + 1;
        let mut params = params.to_vec();
        match self.dialect() {
            Dialect::Sqlite => {
                let sql = format!("{statement} = ?{number}{end}");
                params.push(Value::Null);
                for key in keys {
                    params[number - 1] = *key;
                    run(&sql, &params)?;
                }
                Ok(())
            }
            Dialect::Postgres if keys.is_empty() => Ok(()),
            Dialect::Postgres => {
                params.push(Value::List(keys));
                run(&format!("{statement} = any(?{number}){end}"), &params)
            }
        }
    }

    /// Calls a function whose statements all see one snapshot, in which nothing is written.
    pub(crate) fn snapshot<T>(
        &self,
        statements: impl FnOnce(&Self) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        match self {
            Self::Sqlite(connection) => {
                let _rolled_back = connection.unchecked_transaction()?;
                statements(self)
            }
            Self::Postgres(session) => session.snapshot(|| statements(self)),
        }
    }

    /// Checks the tables and indexes that are small, as far as the engine does not do so itself.
    ///
    /// # Errors
    ///
    /// [`StorageError::Damaged`] if one of them is damaged. Other errors.
    pub(crate) fn check_small_tables(&self) -> Result<(), StorageError> {
        match self {
            Self::Sqlite(connection) => sqlite::check_small_tables(connection),
            Self::Postgres(_) => Ok(()),
        }
    }

    /// Returns at most `count_max` faults of the structure of the database, and as many of the
    /// references between rows, as far as the engine does not check them itself. With `deep`, also
    /// compares indexes with tables.
    pub(crate) fn structural_faults(
        &self,
        deep: bool,
        count_max: u32,
    ) -> Result<Vec<String>, StorageError> {
        match self {
            Self::Sqlite(connection) => sqlite::faults(connection, deep, count_max),
            Self::Postgres(_) => Ok(Vec::new()),
        }
    }

    /// Calls a function that runs statements on this connection, and interrupts them after this
    /// time. Returns `None` if they were interrupted.
    pub(crate) fn within<T>(
        &self,
        time_max: Duration,
        statements: impl FnOnce() -> Result<T, StorageError>,
    ) -> Result<Option<T>, StorageError> {
        match self {
            Self::Sqlite(connection) => sqlite::within(connection, time_max, statements),
            Self::Postgres(session) => session.within(time_max, statements),
        }
    }

    /// Runs a query, and calls a function with each row until it breaks. Unlike with
    /// [`each`](Self::each), an engine may have all rows in memory.
    fn all(
        &self,
        sql: &str,
        params: &[Value<'_>],
        visit: &mut Visit<'_>,
    ) -> Result<(), StorageError> {
        match self {
            Self::Sqlite(connection) => sqlite::each(connection, sql, params, visit),
            Self::Postgres(session) => {
                for row in &session.query(sql, params)? {
                    if visit(&Row::Postgres(row))?.is_break() {
                        break;
                    }
                }
                Ok(())
            }
        }
    }
}

/// A transaction that writes. No other one is in progress.
#[derive(Debug)]
pub(crate) struct Transaction<'c> {
    connection: Connection<'c>,
    changes: RefCell<Vec<Change>>,
}

impl<'c> Transaction<'c> {
    pub(super) fn new(connection: Connection<'c>) -> Self {
        Self {
            connection,
            changes: RefCell::default(),
        }
    }

    /// Returns the changes that were noted.
    pub(super) fn into_changes(self) -> Vec<Change> {
        self.changes.into_inner()
    }

    /// Notes a change that the other nodes must learn before the writer returns.
    pub(crate) fn note(&self, change: Change) {
        if self.dialect() != Dialect::Sqlite {
            self.changes.borrow_mut().push(change);
        }
    }
}

impl<'c> Deref for Transaction<'c> {
    type Target = Connection<'c>;

    fn deref(&self) -> &Connection<'c> {
        &self.connection
    }
}
