//! Publishes paths: what may be published is decided in memory, between few statements.
//!
//! A transaction publishes many paths. It first reads all rows that they and their references may
//! have, then decides path by path in the [`Plan`], and then writes. So the number of round trips
//! to a database on another machine does not grow with the number of paths. Between reading and
//! writing nothing changes, because no other transaction writes.

mod plan;
mod stored;
mod write;

use std::time::Duration;

use self::plan::Plan;
use self::stored::Stored;
use super::{Database, NewPath, Published};
use crate::error::StorageError;

/// Publishes groups of paths in one transaction, in the given order: a path may refer to an
/// earlier one. If the outcome of one path [is not a success](Published::is_success), none of
/// its group is published.
///
/// Waits at most `patience` for other writers.
///
/// # Errors
///
/// Any [`StorageError`]. Nothing is published then.
pub(crate) fn publish(
    database: &Database,
    batch: &[&[NewPath]],
    patience: Duration,
) -> Result<Vec<Vec<Published>>, StorageError> {
    database.write_within(patience, |transaction| {
        let now = database.now();
        let mut plan = Plan::new(Stored::read(transaction, batch, now)?);
        let outcomes = batch.iter().map(|group| plan.decide(group));
        let outcomes = outcomes.collect::<Result<_, _>>()?;
        write::write(transaction, &plan, now)?;
        Ok(outcomes)
    })
}
