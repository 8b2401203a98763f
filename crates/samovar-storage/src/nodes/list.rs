//! The list of nodes.

use crate::error::StorageError;
use crate::sql::Database;

/// A node, as its row in the database states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeState {
    /// Name of the node.
    pub name: String,
    /// Version of its program.
    pub version: String,
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

/// Returns the nodes that share the database, by name. Those that have ended without leaving are
/// among them for a day. There are none if the database is a file.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn list(database: &Database) -> Result<Vec<NodeState>, StorageError> {
    let query = "select name, version, address, is_lapsed, clock.seq - seen, joined_at, renewed_at \
        from node cross join clock order by name, node.id";
    if database.postgres().is_none() {
        return Ok(Vec::new());
    }
    database.read(|connection| {
        connection.rows(query, &[], |row| {
            Ok(NodeState {
                name: row.get(0)?,
                version: row.get(1)?,
                address: row.get(2)?,
                has_lease: row.get::<i64>(3)? == 0,
                behind: row.get(4)?,
                joined_at: row.get(5)?,
                renewed_at: row.get(6)?,
            })
        })
    })
}
