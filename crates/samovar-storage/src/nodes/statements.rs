//! The statements of the protocol, on PostgreSQL. Each is a transaction of its own. None takes the
//! lock of those that write, so a transaction that hangs ends no lease.

use samovar_lease::{RowId, Seq, Snapshot};

use super::NodeSettings;
use crate::error::StorageError;
use crate::metadata::DAY;
use crate::sql::{Connection, params};

/// How long a change is kept, in seconds. A node that has not read it by then loads everything.
const CHANGE_AGE_MAX: i64 = DAY;

/// Inserts the row of the node, if the generation is still that of the snapshot. Returns its
/// identifier.
pub(super) fn join(
    connection: &Connection<'_>,
    settings: &NodeSettings,
    snapshot: Snapshot,
    now: i64,
) -> Result<Option<RowId>, StorageError> {
    let of_earlier = "delete from node where name = ?1 and is_lapsed = 1";
    connection.execute(of_earlier, params![&settings.name])?;
    let insert = "insert into node (name, version, host, address, seen, joined_at, renewed_at) \
        select ?1, ?2, ?3, ?4, ?5, ?6, ?6 from generation where id = ?7 \
        returning id";
    connection.optional(
        insert,
        params![
            &settings.name,
            &settings.version,
            &settings.host,
            settings.address.as_deref(),
            snapshot.seq.0,
            now,
            snapshot.generation.0
        ],
        |row| Ok(RowId(row.get(0)?)),
    )
}

/// Renews. Returns whether there is a row.
pub(super) fn renew(
    connection: &Connection<'_>,
    row: RowId,
    now: i64,
) -> Result<bool, StorageError> {
    let update = "update node set renewals = renewals + 1, is_lapsed = 0, renewed_at = ?2 \
        where id = ?1";
    Ok(connection.execute(update, params![row.0, now])? == 1)
}

/// Confirms all changes up to a number. Returns whether there is a row.
pub(super) fn confirm(
    connection: &Connection<'_>,
    row: RowId,
    seen: Seq,
) -> Result<bool, StorageError> {
    let update = "update node set seen = ?2 where id = ?1";
    Ok(connection.execute(update, params![row.0, seen.0])? == 1)
}

/// Deletes the row.
pub(super) fn leave(connection: &Connection<'_>, row: RowId) -> Result<(), StorageError> {
    connection.execute("delete from node where id = ?1", params![row.0])?;
    Ok(())
}

/// Deletes old changes, and the rows of nodes that have ended long ago.
pub(super) fn prune(connection: &Connection<'_>, now: i64) -> Result<(), StorageError> {
    let delete = "with old as (delete from change where at < ?1 returning seq) \
        update clock set pruned = (select max(seq) from old) \
        where id = 1 and (select max(seq) from old) > pruned";
    connection.execute(delete, params![now - CHANGE_AGE_MAX])?;
    let ended = "delete from node where is_lapsed = 1 and renewed_at < ?1";
    connection.execute(ended, params![now - CHANGE_AGE_MAX])?;
    Ok(())
}
