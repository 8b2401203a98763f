//! The tables in PostgreSQL, and their migrations.
//!
//! Each version is an SQL file that changes the tables of the version before it, and only adds to
//! them: during an upgrade, programs of two versions use the tables together. If a version must
//! shut out older programs, it raises `least-program` in the table `meta`.

use std::time::Duration;

use super::keys::Key;
use super::session::Session;
use crate::error::StorageError;
use crate::postgres::PostgresSettings;

/// The schema version that this program makes.
const SCHEMA: i64 = 2;

/// The statements that upgrade each version to the next. The first ones create version 1.
const STEPS: [&str; 2] = [include_str!("schema_1.sql"), include_str!("schema_2.sql")];

/// Maximum time of a migration.
const MIGRATION_TIME: Duration = Duration::from_secs(3600);

/// Creates or upgrades the tables if necessary. Programs that do so at once wait for each other.
///
/// # Errors
///
/// [`StorageError::SchemaTooNew`], and [`StorageError::Database`] if the role may not create them.
pub(super) fn migrate(session: &Session, settings: &PostgresSettings) -> Result<(), StorageError> {
    // The usual start takes no lock.
    if needed_steps(session, settings)?.is_empty() {
        return Ok(());
    }
    let lock = Key::writer(settings).number();
    let begin =
        format!("begin; set local statement_timeout = 0; select pg_advisory_xact_lock({lock})");
    let migrated = session
        .begin(&begin, MIGRATION_TIME)
        .and_then(|_| run_steps(session, settings));
    if migrated.is_err() {
        session.roll_back();
    }
    migrated
}

/// Runs the steps that the tables lack in a transaction that has begun, and commits it.
pub(super) fn run_steps(
    session: &Session,
    settings: &PostgresSettings,
) -> Result<(), StorageError> {
    let schema = &settings.schema;
    // Another program may have done it meanwhile.
    let steps = needed_steps(session, settings)?;
    if steps.is_empty() {
        // Its version stays, which may be newer.
        session.end("commit", MIGRATION_TIME)?;
        return Ok(());
    }
    if steps.len() == STEPS.len() && !has_schema(session, schema)? {
        session.batch(&format!("create schema \"{schema}\""), MIGRATION_TIME)?;
    }
    for step in steps {
        session.batch(step, MIGRATION_TIME)?;
    }
    let record = format!(
        "insert into meta values ('schema', '{SCHEMA}') \
             on conflict (key) do update set value = excluded.value; \
         insert into meta values ('least-program', '1'), \
             ('store-id', replace(gen_random_uuid()::text, '-', '')) on conflict (key) do nothing; \
         commit"
    );
    session.end(&record, MIGRATION_TIME)?;
    Ok(())
}

/// Returns the steps that the tables lack.
fn needed_steps(
    session: &Session,
    settings: &PostgresSettings,
) -> Result<&'static [&'static str], StorageError> {
    // Not `to_regclass`: its cache may be older than what another program has just committed.
    let has_meta = format!(
        "select exists (select 1 from pg_catalog.pg_class as its \
             join pg_catalog.pg_namespace on pg_namespace.oid = its.relnamespace \
             where nspname = '{}' and relname = 'meta')",
        settings.schema
    );
    if first(session, &has_meta)?.as_deref() != Some("t") {
        return Ok(&STEPS);
    }
    let value = |key: &str| -> Result<i64, StorageError> {
        let text = first(
            session,
            &format!("select value from meta where key = '{key}'"),
        )?;
        let number = text.and_then(|text| text.parse().ok());
        number.ok_or_else(|| StorageError::Database(format!("the table meta has no {key}")))
    };
    let (found, least) = (value("schema")?, value("least-program")?);
    if least > SCHEMA {
        return Err(StorageError::SchemaTooNew {
            found,
            supported: SCHEMA,
        });
    }
    let done = usize::try_from(found).unwrap_or(0).min(STEPS.len());
    Ok(&STEPS[done..])
}

fn has_schema(session: &Session, schema: &str) -> Result<bool, StorageError> {
    let query =
        format!("select exists (select 1 from pg_catalog.pg_namespace where nspname = '{schema}')");
    Ok(first(session, &query)?.as_deref() == Some("t"))
}

fn first(session: &Session, query: &str) -> Result<Option<String>, StorageError> {
    let mut answers = session.batch(query, MIGRATION_TIME)?;
    Ok(answers.pop().flatten())
}
