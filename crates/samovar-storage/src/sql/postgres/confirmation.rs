//! The wait for all nodes after a commit with changes, and what it reads of their rows.
//!
//! The crate `samovar-lease` has the theory of operation.

use std::thread;
use std::time::{Duration, Instant};

use samovar_lease::{
    Findings, Generation, Moment, Publisher, Renewals, RowId, Rows, Seq, Times, Verdict, Watch,
};

use super::session::Session;
use crate::error::StorageError;
use crate::sql::params;
use crate::sys::boot_time;
use crate::waiting::PATIENCE;

/// Channel on which nodes are notified of commits.
pub(crate) const CHANNEL: &str = "samovar";

/// First and longest pause between two looks at the rows. Nodes confirm after about 2 ms.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// What is read of all nodes.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) generation: Generation,
    pub(crate) is_aged: bool,
    /// The rows that are not lapsed: identifier, renewals, number of the last change seen.
    pub(crate) rows: Vec<(RowId, Renewals, Seq)>,
}

/// Runs a function in a session that reads.
type WithSession<'w> =
    dyn Fn(&mut dyn FnMut(&Session) -> Result<Observed, StorageError>) -> Looked + 'w;

type Looked = Result<Observed, StorageError>;

/// Waits until all nodes know the changes of a commit.
///
/// # Errors
///
/// [`StorageError::Unavailable`] if the server was away for long. The commit has happened.
pub(super) fn confirm(seq: Seq, with_session: &WithSession<'_>) -> Result<(), StorageError> {
    let started = Instant::now();
    let mut publisher: Option<Publisher> = None;
    let mut watch = Watch::new(Times::default());
    let mut is_notified = false;
    let mut pause = PAUSES.0;
    loop {
        let looked = with_session(&mut |session| {
            if !is_notified {
                let notify = "select pg_notify(?1, ?2)";
                session.query(notify, params![CHANNEL, &seq.0.to_string()])?;
                is_notified = true;
            }
            look(session, &mut watch)
        });
        let observed = match looked {
            Ok(observed) => observed,
            Err(StorageError::Unavailable(_)) if started.elapsed() < PATIENCE => {
                pause = pause_before_retry(pause);
                continue;
            }
            Err(error) => return Err(error),
        };
        let rows = Rows {
            generation: observed.generation,
            is_aged: observed.is_aged,
            least_seen: observed.rows.iter().map(|(_, _, seen)| *seen).min(),
        };
        let new = || Publisher::new(Times::default(), seq, rows.generation);
        match publisher.get_or_insert_with(new).check(now(), &rows) {
            Verdict::Acknowledge => return Ok(()),
            Verdict::Wait(_) => pause = pause_before_retry(pause),
            // The commit is on the new server if the old one was set to wait for it.
            Verdict::Replaced => publisher = None,
        }
    }
}

/// Reads the rows, and marks nodes that have ended.
fn look(session: &Session, watch: &mut Watch) -> Looked {
    let observed = observe(session)?;
    let rows = observed.rows.iter();
    let rows = rows.map(|(row, renewals, _)| (*row, *renewals));
    let found = watch.observe(now(), observed.generation, rows);
    mark(session, &found, observed.is_aged)?;
    Ok(observed)
}

/// Reads the generation and the rows of all nodes. Inserts the generation if it is missing.
pub(crate) fn observe(session: &Session) -> Result<Observed, StorageError> {
    let query = "select generation.id, generation.is_aged, node.id, node.renewals, node.seen \
        from generation left join node on node.is_lapsed = 0";
    loop {
        let mut observed: Option<Observed> = None;
        for row in &session.query(query, &[])? {
            let number = |index: usize| row.get::<_, Option<i64>>(index);
            let observed = observed.get_or_insert_with(|| Observed {
                generation: Generation(number(0).unwrap_or_default()),
                is_aged: number(1) == Some(1),
                rows: Vec::new(),
            });
            if let (Some(id), Some(renewals), Some(seen)) = (number(2), number(3), number(4)) {
                observed
                    .rows
                    .push((RowId(id), Renewals(renewals), Seq(seen)));
            }
        }
        if let Some(observed) = observed {
            return Ok(observed);
        }
        insert_generation(session)?;
    }
}

/// Inserts a generation if the server has lost the row.
pub(crate) fn insert_generation(session: &Session) -> Result<(), StorageError> {
    // Programs that restore a dump create keys and triggers after all rows.
    let insert = "insert into generation (one) select 1 where exists ( \
                      select from pg_trigger \
                      where tgrelid = 'path'::regclass and tgname = 'path_added') \
                  on conflict do nothing";
    session.execute(insert, &[])?;
    Ok(())
}

/// Marks what a watch has found.
pub(crate) fn mark(session: &Session, found: &Findings, is_aged: bool) -> Result<(), StorageError> {
    for (row, renewals) in &found.lapsed {
        let update = "update node set is_lapsed = 1 where id = ?1 and renewals = ?2";
        session.execute(update, params![row.0, renewals.0])?;
    }
    if let Some(generation) = found.aged
        && !is_aged
    {
        let update = "update generation set is_aged = 1 where id = ?1";
        session.execute(update, params![generation.0])?;
    }
    Ok(())
}

fn pause_before_retry(pause: Duration) -> Duration {
    thread::sleep(pause);
    (pause * 2).min(PAUSES.1)
}

fn now() -> Moment {
    Moment(boot_time())
}
