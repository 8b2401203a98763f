//! Packs: which NARs have their files in an object that they share.

use std::collections::{HashMap, HashSet};
use std::io::Read;

use super::rows::{signed, unsigned, values};
use super::{Database, NewNar, StoredNar, collect};
use crate::error::StorageError;
use crate::objects::{InPack, NarObject, Objects};
use crate::sql::{Connection, Dialect, Row, Transaction, Value, params};

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
    let pack = match objects.bucket() {
        Some(_) => database.read(|connection| place_in(connection, nar.id))?,
        None => None,
    };
    Ok(object(nar, pack))
}

/// Returns the object with the file of a NAR. `pack`: its place, if it shares an object.
pub(crate) fn object(nar: &StoredNar, pack: Option<InPack>) -> NarObject<'_> {
    NarObject {
        id: nar.id,
        key: &nar.object_key,
        len: nar.file_size,
        sha256: &nar.file_hash,
        pack,
    }
}

/// Returns the places of the files of those among these NARs that share objects, by row number.
pub(crate) fn places(
    database: &Database,
    objects: &Objects,
    nars: &[i64],
) -> Result<HashMap<i64, InPack>, StorageError> {
    match objects.bucket() {
        Some(_) => database.read(|connection| places_in(connection, nars)),
        None => Ok(HashMap::new()),
    }
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

/// Records the places of the files of NARs that were lost. Other places that were recorded are
/// forgotten.
pub(super) fn replace(
    transaction: &Transaction<'_>,
    new: &[&NewNar],
    now: i64,
) -> Result<(), StorageError> {
    let hashes = new.iter().map(|new| Value::from(&new.nar.file_hash));
    let hashes: Vec<Value<'_>> = hashes.collect();
    let mut ids = Vec::with_capacity(new.len());
    let query = "select id from nar where file_hash";
    transaction.each_of(query, &[], &hashes, |row| {
        ids.push(row.get(0)?);
        Ok(())
    })?;
    forget(transaction, &ids, now)?;
    let places = new
        .iter()
        .filter_map(|new| Some((&new.nar.file_hash, new.pack.as_ref()?)));
    place(transaction, &places.collect::<Vec<_>>())
}

/// Forgets the places of the files of NARs. The keys of packs of which they were the last files
/// become garbage.
fn forget(transaction: &Transaction<'_>, nar_ids: &[i64], now: i64) -> Result<(), StorageError> {
    let delete = "delete from packed where nar_id";
    let packs: Vec<String> =
        transaction.returning_of(delete, "pack", &[], &values(nar_ids), |row| row.get(0))?;
    release(transaction, packs.into_iter().collect(), now)
}

/// Returns the places of the files of those among these NARs that share objects, by row number.
pub(super) fn places_in(
    connection: &Connection<'_>,
    nars: &[i64],
) -> Result<HashMap<i64, InPack>, StorageError> {
    let mut places = HashMap::new();
    let query = "select pack, start, nar_id from packed where nar_id";
    connection.each_of(query, &[], &values(nars), |row| {
        places.insert(row.get(2)?, place_of(row)?);
        Ok(())
    })?;
    Ok(places)
}

/// Records the keys of new packs as garbage if no NAR uses them, because all of theirs were stored
/// before.
pub(super) fn release_unused<'a>(
    transaction: &Transaction<'_>,
    new: impl Iterator<Item = &'a NewNar>,
    now: i64,
) -> Result<(), StorageError> {
    let packs = new.filter_map(|new| new.pack.as_ref());
    let packs = packs.map(|place| place.key.to_string());
    release(transaction, packs.collect(), now)
}

/// Records the keys of those of these packs as garbage that no NAR uses.
pub(super) fn release(
    transaction: &Transaction<'_>,
    packs: HashSet<String>,
    now: i64,
) -> Result<(), StorageError> {
    let mut unused: HashSet<&str> = packs.iter().map(String::as_str).collect();
    let keys: Vec<Value<'_>> = packs.iter().map(Value::from).collect();
    let query = "select distinct pack from packed where pack";
    transaction.each_of(query, &[], &keys, |row| {
        unused.remove(row.get::<&str>(0)?);
        Ok(())
    })?;
    collect::discard(transaction, unused, now)
}

/// Returns the place of a NAR's file, or `None` if the file has its own object.
pub(super) fn place_in(
    connection: &Connection<'_>,
    nar_id: i64,
) -> Result<Option<InPack>, StorageError> {
    let query = "select pack, start from packed where nar_id = ?1";
    connection.optional(query, params![nar_id], place_of)
}

/// Parses the place in the first columns of a row.
fn place_of(row: &Row<'_>) -> Result<InPack, StorageError> {
    let key: String = row.get(0)?;
    Ok(InPack {
        key: key.into(),
        start: unsigned(row.get(1)?)?,
    })
}
