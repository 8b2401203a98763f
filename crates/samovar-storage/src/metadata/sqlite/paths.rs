//! Paths, their NARs and their references.

use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use samovar_nix::{ContentAddress, HashPart, Signature, StorePath};

use super::rows::{base_name, damaged, nar_columns, nar_of, path_of, signed};
use super::tokens;
use crate::error::StorageError;
use crate::metadata::{CacheId, NewNar, NewPath, Published, StoredNar, StoredPath};
use crate::publish::SIGNATURE_COUNT_MAX;

pub(super) fn cache(
    connection: &Connection,
    name: &str,
    store_dir: &str,
    now: i64,
) -> Result<CacheId, StorageError> {
    connection.execute(
        "insert or ignore into cache (name, store_dir, created_at) values (?1, ?2, ?3)",
        params![name, store_dir, now],
    )?;
    let (id, stored): (i64, String) = connection.query_row(
        "select id, store_dir from cache where name = ?1",
        [name],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    if stored != store_dir {
        return Err(StorageError::StoreDir {
            stored,
            served: store_dir.to_owned(),
        });
    }
    Ok(CacheId(id))
}

pub(super) fn hash_parts(
    connection: &Connection,
) -> Result<Vec<(CacheId, HashPart)>, StorageError> {
    let mut statement = connection.prepare_cached("select cache_id, hash_part from path")?;
    let rows = statement.query_map([], |row| {
        Ok((CacheId(row.get(0)?), HashPart::from_bytes(row.get(1)?)))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn listing(
    connection: &Connection,
    nar_id: i64,
) -> Result<Option<Vec<u8>>, StorageError> {
    let mut statement = connection.prepare_cached("select listing from nar where id = ?1")?;
    let listing = statement.query_row([nar_id], |row| row.get(0)).optional()?;
    Ok(listing.flatten())
}

pub(super) fn file(
    connection: &Connection,
    cache: CacheId,
    token: Option<i64>,
    file_hash: &[u8; 32],
) -> Result<Option<StoredNar>, StorageError> {
    let mut statement = connection.prepare_cached(concat!(
        "select ",
        nar_columns!(),
        " from nar where file_hash = ?1 and ( \
             exists (select 1 from path where nar_id = nar.id and cache_id = ?2) or \
             exists (select 1 from sent where nar_id = nar.id and token_id = ?3))"
    ))?;
    let mut rows = statement.query(params![file_hash, cache.0, token])?;
    rows.next()?.map(nar_of).transpose()
}

pub(super) fn add_nar(
    transaction: &Transaction<'_>,
    token: i64,
    new: &NewNar,
    now: i64,
) -> Result<(), StorageError> {
    let nar = &new.nar;
    transaction.execute(
        "insert into nar (nar_hash, nar_size, file_hash, file_size, compression, object_key, \
         frames, listing, created_at) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) \
         on conflict (file_hash) do update set object_key = excluded.object_key",
        params![
            nar.nar_hash.as_bytes(),
            signed(nar.nar_size)?,
            nar.file_hash,
            signed(nar.file_size)?,
            nar.compression.name(),
            nar.object_key,
            new.frames,
            new.listing,
            now
        ],
    )?;
    transaction.execute(
        "insert or replace into sent select ?1, id, ?2 from nar where file_hash = ?3",
        params![token, now, nar.file_hash],
    )?;
    Ok(())
}

pub(super) fn publish_one(
    transaction: &Transaction<'_>,
    new: &NewPath,
    now: i64,
) -> Result<Published, StorageError> {
    // Checked in the transaction that inserts the path, so that a revocation that has returned
    // takes effect.
    if !tokens::is_valid(transaction, new.token, now)? {
        return Ok(Published::TokenInvalid);
    }
    let hash_part = new.path.hash_part();
    let known: Option<(i64, i64, String)> = transaction
        .prepare_cached("select id, nar_id, sigs from path where cache_id = ?1 and hash_part = ?2")?
        .query_row(params![new.cache.0, hash_part.as_bytes()], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    if let Some((id, nar_id, sigs)) = known {
        if nar_id != new.nar_id {
            return Ok(Published::Conflict);
        }
        let added = joined(&sigs, &new.signatures);
        if added != sigs {
            transaction
                .prepare_cached("update path set sigs = ?2 where id = ?1")?
                .execute(params![id, added])?;
        }
        return Ok(Published::Known);
    }
    insert_path(transaction, new, now)
}

/// Inserts a path that does not exist yet, and its references.
fn insert_path(
    transaction: &Transaction<'_>,
    new: &NewPath,
    now: i64,
) -> Result<Published, StorageError> {
    let (mut references, mut outer) = (Vec::new(), Vec::new());
    for reference in &new.references {
        match path_row(transaction, new.cache, &reference.path)? {
            Some(id) => references.push(id),
            None if reference.is_elsewhere => outer.push(reference.path.base_name()),
            None => return Ok(Published::MissingReference(reference.path.clone())),
        }
    }
    transaction
        .prepare_cached(
            "insert into path (cache_id, hash_part, name, nar_id, self_reference, deriver, ca, \
             sigs, registered_at, used_on, token_id) \
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9 / 86400, ?10)",
        )?
        .execute(params![
            new.cache.0,
            new.path.hash_part().as_bytes(),
            new.path.name(),
            new.nar_id,
            new.has_self_reference,
            new.deriver.as_ref().map(StorePath::base_name),
            new.content_address.map(|address| address.to_string()),
            joined("", &new.signatures),
            now,
            new.token
        ])?;
    let id = transaction.last_insert_rowid();
    for reference in references {
        transaction
            .prepare_cached("insert into reference values (?1, ?2)")?
            .execute([id, reference])?;
    }
    for base_name in outer {
        transaction
            .prepare_cached("insert into outer_reference values (?1, ?2)")?
            .execute(params![id, base_name])?;
    }
    Ok(Published::New)
}

/// Returns the row number of the path with this hash part and name.
fn path_row(
    transaction: &Transaction<'_>,
    cache: CacheId,
    path: &StorePath,
) -> Result<Option<i64>, StorageError> {
    let mut statement = transaction.prepare_cached(
        "select id from path where cache_id = ?1 and hash_part = ?2 and name = ?3",
    )?;
    let hash_part = path.hash_part();
    let parameters = params![cache.0, hash_part.as_bytes(), path.name()];
    Ok(statement
        .query_row(parameters, |row| row.get(0))
        .optional()?)
}

/// Adds signatures to a column, without duplicates, up to the limit.
fn joined(sigs: &str, more: &[Signature]) -> String {
    let mut texts: Vec<String> = sigs.split(' ').map(str::to_owned).collect();
    texts.retain(|text| !text.is_empty());
    for signature in more {
        let text = signature.to_string();
        if texts.len() < SIGNATURE_COUNT_MAX && !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.join(" ")
}

pub(super) fn stored_path(
    connection: &Connection,
    cache: CacheId,
    hash_part: HashPart,
) -> Result<Option<StoredPath>, StorageError> {
    let mut statement = connection.prepare_cached(concat!(
        "select ",
        nar_columns!(),
        ", path.id, path.name, path.self_reference, path.deriver, path.ca, path.sigs, \
         path.registered_at from path join nar on nar.id = path.nar_id \
         where path.cache_id = ?1 and path.hash_part = ?2"
    ))?;
    let mut rows = statement.query(params![cache.0, hash_part.as_bytes()])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let id: i64 = row.get(7)?;
    let path = path_of(hash_part, &row.get::<_, String>(8)?)?;
    let mut references = Vec::new();
    if row.get(9)? {
        references.push(path.clone());
    }
    let mut inner = connection.prepare_cached(
        "select path.hash_part, path.name from reference join path on path.id = reference \
         where referrer = ?1",
    )?;
    let mut inner = inner.query([id])?;
    while let Some(row) = inner.next()? {
        references.push(path_of(
            HashPart::from_bytes(row.get(0)?),
            &row.get::<_, String>(1)?,
        )?);
    }
    let mut outer =
        connection.prepare_cached("select base_name from outer_reference where referrer = ?1")?;
    let mut outer = outer.query([id])?;
    while let Some(row) = outer.next()? {
        references.push(base_name(&row.get::<_, String>(0)?)?);
    }
    references.sort();
    let deriver: Option<String> = row.get(10)?;
    let ca: Option<String> = row.get(11)?;
    let sigs: String = row.get(12)?;
    let signatures = sigs.split(' ').filter(|text| !text.is_empty());
    Ok(Some(StoredPath {
        nar: nar_of(row)?,
        references,
        deriver: deriver.map(|deriver| base_name(&deriver)).transpose()?,
        signatures: signatures
            .map(|text| Signature::parse(text).map_err(|error| damaged(&error.to_string())))
            .collect::<Result<_, _>>()?,
        content_address: ca
            .map(|ca| ContentAddress::parse(&ca).map_err(|error| damaged(&error.to_string())))
            .transpose()?,
        registered_at: row.get(13)?,
        path,
    }))
}
