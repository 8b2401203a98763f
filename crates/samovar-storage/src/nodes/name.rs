//! [`NameClaim`]: the check that no other node has the name of a node that starts.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use samovar_lease::{Findings, Renewals, RowId, Times};

use crate::error::StorageError;
use crate::metadata::nodes::{NodeState, with_name};
use crate::sql::{Connection, Database, Exclusive, mark};
use crate::storage::Storage;

/// Pause between two looks at the rows with the name.
const PAUSE: Duration = Duration::from_millis(50);

/// The right of a node that starts to have a name. It is kept until the row of the node is there,
/// so that of two nodes which start together, one has the name.
#[derive(Debug)]
pub struct NameClaim {
    _exclusive: Box<Exclusive>,
}

/// The outcome of [`claim_name`].
#[derive(Debug)]
pub enum ClaimedName {
    /// No node has the name. `None`: the database is a file, and there are no nodes.
    Free(Option<NameClaim>),
    /// A node that works has the name.
    Taken(NodeState),
    /// Another node with the name is starting.
    Starting,
}

/// Claims a name for a node that starts. If a node with this name has ended without leaving, waits
/// until its lease is over, at most 3 s from now; a node that works is noticed when it renews its
/// lease, after at most 0.5 s.
///
/// # Errors
///
/// Any [`StorageError`] of the database.
pub fn claim_name(storage: &Storage, name: &str) -> Result<ClaimedName, StorageError> {
    let database = &storage.metadata;
    let Some(postgres) = database.postgres() else {
        return Ok(ClaimedName::Free(None));
    };
    let (started, wait) = (Instant::now(), Times::default().wait);
    let exclusive = loop {
        match postgres.exclusive(&format!("name of node/{name}"))? {
            Some(exclusive) => break exclusive,
            None if started.elapsed() >= wait => return Ok(ClaimedName::Starting),
            None => thread::sleep(PAUSE),
        }
    };
    Ok(match working_node(database, name, wait)? {
        Some(node) => ClaimedName::Taken(node),
        None => ClaimedName::Free(Some(NameClaim {
            _exclusive: Box::new(exclusive),
        })),
    })
}

/// Returns a node with this name whose row changes within the time after which a row lapses. The
/// rows of others are marked as lapsed.
fn working_node(
    database: &Database,
    name: &str,
    wait: Duration,
) -> Result<Option<NodeState>, StorageError> {
    let started = Instant::now();
    let mut first: Option<BTreeMap<RowId, Renewals>> = None;
    loop {
        let rows = database.read(|connection| with_name(connection, name))?;
        let first = first.get_or_insert_with(|| {
            let rows = rows.iter().map(|(row, renewals, _)| (*row, *renewals));
            rows.collect()
        });
        let has_changed = |(row, renewals, _): &(RowId, Renewals, NodeState)| {
            first.get(row).is_none_or(|first| first != renewals)
        };
        if let Some((_, _, node)) = rows.iter().find(|row| has_changed(row)) {
            return Ok(Some(node.clone()));
        }
        if rows.is_empty() {
            return Ok(None);
        }
        if started.elapsed() >= wait {
            let lapsed = rows.iter().map(|(row, renewals, _)| (*row, *renewals));
            let found = Findings {
                lapsed: lapsed.collect(),
                aged: None,
            };
            database.read(|connection| match connection {
                Connection::Postgres(session) => mark(session, &found, true),
                Connection::Sqlite(_) => Ok(()),
            })?;
            return Ok(None);
        }
        thread::sleep(PAUSE);
    }
}
