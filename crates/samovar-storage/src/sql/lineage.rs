//! The ends of lineages.
//!
//! A generation has the lineage of the generation with the number before it, if there is one when
//! it is added. So a lineage ends when a number is left out: after the newest generation was
//! removed, and after an older copy of the database was restored.

use super::connection::Connection;
use super::value::params;
use crate::error::StorageError;

/// Ends the lineages of all pins: their next generations get new ones.
pub(crate) fn end_all(transaction: &Connection<'_>, now: i64) -> Result<(), StorageError> {
    transaction.execute(
        "insert into removed_pin (cache_id, name, generation, removed_at) \
         select cache_id, name, max(generation) + 1, ?1 from pin \
         where true group by cache_id, name \
         on conflict (cache_id, name) do update set generation = excluded.generation \
         where removed_pin.generation < excluded.generation",
        params![now],
    )?;
    Ok(())
}
