//! What is asked of a server when a connection is made: whether it can be used, and which one it
//! is.

use std::sync::Arc;
use std::time::Instant;

use super::counters::Counters;
use super::session::{ANSWER_TIME, LOOK_UP_TIME, STATEMENT_SECONDS, Session};
use crate::error::StorageError;
use crate::postgres::PostgresSettings;

/// Oldest version of PostgreSQL that is supported, and the form in which servers state it.
const VERSION_MIN: (u32, u32) = (15, 150_000);

/// Maximum time that a transaction of a reader may be idle: a reader of millions of rows may write
/// each of them to a slow disk.
const READER_IDLE: &str = "10min";

/// Maximum time that a transaction of the writer may be idle. All other writers wait for it, also
/// if its program hangs.
const WRITER_IDLE: &str = "5s";

/// What a connection is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Read,
    Write,
}

/// The server of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerIdentity {
    /// Identifier of the cluster, which a standby shares with its primary.
    pub(crate) system: String,
    /// The timeline, which changes when a standby is promoted.
    pub(crate) timeline: String,
    /// Time at which the server was started.
    pub(crate) started_at: String,
    /// Random identifier that is lost exactly when the unlogged tables are emptied: after a crash,
    /// also of a single process of the server, and on a promoted standby. `None`: nobody has set
    /// it.
    pub(crate) incarnation: Option<String>,
}

/// What a server said when a connection was made.
#[derive(Debug)]
pub(super) struct Greeting {
    pub(super) identity: ServerIdentity,
    pub(super) time: ServerTime,
}

/// A time of the server's clock, and the time of this machine at which it was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerTime {
    /// Unix time in seconds.
    pub(super) seconds: i64,
    pub(super) read_at: Instant,
}

impl ServerTime {
    /// Parses a time that was just received.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(Self {
            seconds: text.parse().ok()?,
            read_at: Instant::now(),
        })
    }

    /// Returns the present time of the server's clock.
    pub(super) fn now(self) -> i64 {
        let elapsed = i64::try_from(self.read_at.elapsed().as_secs()).unwrap_or(0);
        self.seconds.saturating_add(elapsed)
    }
}

/// Connects to the first host that accepts writes, and prepares the session.
///
/// # Errors
///
/// Those of the last host. A host that refuses the login, or is too old, ends the search.
pub(super) fn connect(
    settings: &PostgresSettings,
    purpose: Purpose,
    counters: &Arc<Counters>,
) -> Result<(Session, Greeting), StorageError> {
    let answer_time = match purpose {
        Purpose::Read => LOOK_UP_TIME,
        Purpose::Write => ANSWER_TIME,
    };
    let mut outcome = Err(StorageError::Unavailable("no host is stated".to_owned()));
    for config in &settings.hosts {
        let connected = Session::connect(config, settings, answer_time, Arc::clone(counters));
        outcome = connected.and_then(|session| {
            let greeting = greet(&session, settings, purpose)?;
            Ok((session, greeting))
        });
        if !matches!(outcome, Err(StorageError::Unavailable(_))) {
            break;
        }
    }
    // A standby answers, too, and cannot be used.
    outcome.inspect_err(|error| counters.failed(error))
}

fn greet(
    session: &Session,
    settings: &PostgresSettings,
    purpose: Purpose,
) -> Result<Greeting, StorageError> {
    let answers = session.batch(&questions(&settings.schema, purpose), settings.connect_time)?;
    let answer = |index: usize| answers.get(index).cloned().flatten().unwrap_or_default();
    check_version(&answer(0))?;
    if answer(1) == "on" {
        let reason = "PostgreSQL: the server accepts no writes: it is a standby or read-only";
        return Err(StorageError::Unavailable(reason.to_owned()));
    }
    let time = ServerTime::parse(&answer(2));
    let unreadable = || StorageError::Database("PostgreSQL: unreadable time".to_owned());
    Ok(Greeting {
        time: time.ok_or_else(unreadable)?,
        identity: ServerIdentity {
            system: answer(3),
            timeline: answer(4),
            started_at: answer(5),
            incarnation: None,
        },
    })
}

/// Returns the statements that prepare a session, and the questions, in the order of the answers.
fn questions(schema: &str, purpose: Purpose) -> String {
    let idle = match purpose {
        Purpose::Read => READER_IDLE,
        Purpose::Write => WRITER_IDLE,
    };
    // The plan of a prepared statement is kept while tables grow from nothing. Plans that use the
    // indexes are right at any size, and each statement that reads few rows has its index.
    //
    // With `synchronous_commit = off`, acknowledged uploads would be lost in a crash. The other
    // values are the operator's choice.
    format!(
        "set search_path to \"{schema}\"; \
         set client_min_messages to warning; \
         set default_transaction_isolation to 'read committed'; \
         set jit to off; \
         set enable_seqscan to off; \
         set statement_timeout to '{STATEMENT_SECONDS}s'; \
         set idle_in_transaction_session_timeout to '{idle}'; \
         do $$ begin \
             if current_setting('synchronous_commit') = 'off' then \
                 set synchronous_commit to on; \
             end if; \
         end $$; \
         select current_setting('server_version_num'); \
         select current_setting('transaction_read_only'); \
         select extract(epoch from clock_timestamp())::bigint; \
         select system_identifier from pg_control_system(); \
         select case when pg_is_in_recovery() then '' \
             else left(pg_walfile_name(pg_current_wal_lsn()), 8) end; \
         select pg_postmaster_start_time()"
    )
}

/// Refuses a server that is too old. `number`: its `server_version_num`.
fn check_version(number: &str) -> Result<(), StorageError> {
    let (major, oldest) = VERSION_MIN;
    match number.parse::<u32>() {
        Ok(found) if found >= oldest => Ok(()),
        Ok(found) => Err(StorageError::Database(format!(
            "the server is PostgreSQL {}, Samovar needs {major} or newer: upgrade it",
            found / 10_000
        ))),
        Err(_) => Err(StorageError::Database(format!(
            "the server states the version {number:?}, which is none of PostgreSQL"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_refused() {
        check_version("150000").unwrap();
        check_version("180001").unwrap();
        let refused = check_version("140012").unwrap_err().to_string();
        assert!(
            refused.contains("PostgreSQL 14, Samovar needs 15"),
            "{refused}"
        );
        assert!(check_version("x").is_err());
    }

    #[test]
    fn the_time_of_the_server_goes_on() {
        let time = ServerTime::parse("1000").unwrap();
        assert!((1000..1060).contains(&time.now()));
        assert!(ServerTime::parse("now").is_none());
    }
}
