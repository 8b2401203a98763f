//! Packs: which NARs have their files in an object that they share.

use std::collections::HashSet;
use std::io::Read;

use super::rows::{signed, unsigned};
use super::{Database, NewNar, StoredNar, collect};
use crate::error::StorageError;
use crate::objects::{InPack, NarObject, Objects};
use crate::sql::{Connection, Dialect, Transaction, Value, params};

/// Opens the file of a NAR to read it once from its start, without making a copy. Returns `None` if
/// its object does not exist.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn read_nar(
    database: &Database,
    objects: &Objects,
    nar: &StoredNar,
) -> Result<Option<Box<dyn Read + Send>>, StorageError> {
    objects.read_nar(&object_of(database, objects, nar)?)
}

/// Returns the object with the file of a NAR.
pub(crate) fn object_of<'a>(
    database: &Database,
    objects: &Objects,
    nar: &'a StoredNar,
) -> Result<NarObject<'a>, StorageError> {
    Ok(NarObject {
        id: nar.id,
        key: &nar.object_key,
        len: nar.file_size,
        sha256: &nar.file_hash,
        pack: match objects.bucket() {
            Some(_) => database.read(|connection| place_in(connection, nar.id))?,
            None => None,
        },
    })
}

/// Records the places of the files of new NARs in their packs, by the hashes of the files.
pub(super) fn place(
    transaction: &Transaction<'_>,
    files: &[(&[u8; 32], &InPack)],
) -> Result<(), StorageError> {
    match transaction.dialect() {
        Dialect::Sqlite => {
            let insert = "insert into packed (nar_id, pack, start) \
                          select id, ?2, ?3 from nar where file_hash = ?1";
            for (file_hash, InPack { key, start }) in files {
                transaction.execute(insert, params![*file_hash, &**key, signed(*start)?])?;
            }
        }
        Dialect::Postgres if files.is_empty() => {}
        Dialect::Postgres => {
            let hashes: Vec<Value<'_>> = files.iter().map(|(hash, _)| (*hash).into()).collect();
            let keys: Vec<Value<'_>> = files
                .iter()
                .map(|(_, place)| (&*place.key).into())
                .collect();
            let starts = files
                .iter()
                .map(|(_, place)| Ok(signed(place.start)?.into()));
            let starts = starts.collect::<Result<Vec<Value<'_>>, StorageError>>()?;
            transaction.execute(
                "insert into packed (nar_id, pack, start) select nar.id, its.pack, its.start \
                 from unnest(?1::bytea[], ?2::text[], ?3::bigint[]) \
                     as its (file_hash, pack, start) \
                 join nar on nar.file_hash = its.file_hash",
                &[
                    Value::List(&hashes),
                    Value::List(&keys),
                    Value::List(&starts),
                ],
            )?;
        }
    }
    Ok(())
}

/// Records the place of the file of a NAR that was lost. Another place that was recorded is
/// forgotten.
pub(super) fn replace(
    transaction: &Transaction<'_>,
    new: &NewNar,
    now: i64,
) -> Result<(), StorageError> {
    let query = "select id from nar where file_hash = ?1";
    let nar_id = transaction.row(query, params![&new.nar.file_hash], |row| row.get(0))?;
    forget(transaction, nar_id, now)?;
    match &new.pack {
        Some(pack) => place(transaction, &[(&new.nar.file_hash, pack)]),
        None => Ok(()),
    }
}

/// Forgets the place of a NAR's file. If it was the last one in its pack, the key of the pack
/// becomes garbage.
pub(super) fn forget(
    transaction: &Transaction<'_>,
    nar_id: i64,
    now: i64,
) -> Result<(), StorageError> {
    if let Some(place) = place_in(transaction, nar_id)? {
        transaction.execute("delete from packed where nar_id = ?1", params![nar_id])?;
        release(transaction, &place.key, now)?;
    }
    Ok(())
}

/// Records the keys of new packs as garbage if no NAR uses them, because all of theirs were stored
/// before.
pub(super) fn release_unused<'a>(
    transaction: &Transaction<'_>,
    new: impl Iterator<Item = &'a NewNar>,
    now: i64,
) -> Result<(), StorageError> {
    let packs: HashSet<&str> = new
        .filter_map(|new| new.pack.as_ref())
        .map(|place| &*place.key)
        .collect();
    let mut packs = packs.into_iter();
    packs.try_for_each(|pack| release(transaction, pack, now))
}

/// Records the key of a pack as garbage if no NAR uses it.
pub(super) fn release(
    transaction: &Transaction<'_>,
    pack: &str,
    now: i64,
) -> Result<(), StorageError> {
    let query = "select exists (select 1 from packed where pack = ?1)";
    match transaction.row(query, params![pack], |row| row.get(0))? {
        true => Ok(()),
        false => collect::discard(transaction, pack, now),
    }
}

/// Returns the place of a NAR's file, or `None` if the file has its own object.
pub(super) fn place_in(
    connection: &Connection<'_>,
    nar_id: i64,
) -> Result<Option<InPack>, StorageError> {
    let query = "select pack, start from packed where nar_id = ?1";
    connection.optional(query, params![nar_id], |row| {
        let key: String = row.get(0)?;
        Ok(InPack {
            key: key.into(),
            start: unsigned(row.get(1)?)?,
        })
    })
}
