//! The list of nodes.

use samovar_lease::{Renewals, RowId};

use crate::error::StorageError;
use crate::sql::{Connection, Database, Row, params};

/// A node, as its row in the database states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeState {
    /// Identifier of its row.
    pub(crate) id: i64,
    /// Name of the node.
    pub name: String,
    /// Version of its program.
    pub version: String,
    /// Name of its machine; `None`: unknown, because its program is older.
    pub host: Option<String>,
    /// URL at which it serves; `None`: unknown.
    pub address: Option<String>,
    /// Whether it has a lease. A node without one has ended, hangs, or does not reach the database.
    pub has_lease: bool,
    /// Number of commits whose changes it has not confirmed.
    pub behind: i64,
    /// Time at which it has joined, in seconds since 1970.
    pub joined_at: i64,
    /// Time of its last renewal, in seconds since 1970.
    pub renewed_at: i64,
}

/// The columns of a [`NodeState`].
const COLUMNS: &str = "name, version, host, address, is_lapsed, clock.seq - seen, joined_at, \
    renewed_at, node.id";

fn node(row: &Row<'_>) -> Result<NodeState, StorageError> {
    Ok(NodeState {
        name: row.get(0)?,
        version: row.get(1)?,
        host: row.get(2)?,
        address: row.get(3)?,
        has_lease: row.get::<i64>(4)? == 0,
        behind: row.get(5)?,
        joined_at: row.get(6)?,
        renewed_at: row.get(7)?,
        id: row.get(8)?,
    })
}

/// Returns the nodes that share the database, by name. Those that have ended without leaving are
/// among them for a day. There are none if the database is a file.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn list(database: &Database) -> Result<Vec<NodeState>, StorageError> {
    if database.postgres().is_none() {
        return Ok(Vec::new());
    }
    database.read(all)
}

/// Returns all nodes, by name.
pub(crate) fn all(connection: &Connection<'_>) -> Result<Vec<NodeState>, StorageError> {
    let query = format!("select {COLUMNS} from node cross join clock order by name, node.id");
    connection.rows(&query, &[], node)
}

/// Returns the nodes with a lease and this name, with their rows.
pub(crate) fn with_name(
    connection: &Connection<'_>,
    name: &str,
) -> Result<Vec<(RowId, Renewals, NodeState)>, StorageError> {
    let query = format!(
        "select {COLUMNS}, renewals from node cross join clock \
         where name = ?1 and is_lapsed = 0 order by node.id"
    );
    connection.rows(&query, params![name], |row| {
        let (node, renewals) = (node(row)?, Renewals(row.get(9)?));
        Ok((RowId(node.id), renewals, node))
    })
}
