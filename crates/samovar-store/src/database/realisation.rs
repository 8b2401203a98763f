//! Queries for the outputs of derivations, and for realisations, whose tables exist only where the
//! experimental feature was once enabled.
//!
//! # Source
//!
//! Nix 2.8.0, `src/libstore/ca-specific-schema.sql` and `local-store.cc`
//! (`queryRealisationCore_`); Nix 2.36, the same files: table `BuildTraceV3`.

use rusqlite::{Connection, OptionalExtension, Row};
use samovar_nix::{StoreDir, StorePath};

use super::row::{signatures, store_path, text};
use crate::error::{Corruption, StoreError};
use crate::realisation::{RealisationId, derivation_document, hash_document, hash_key};

const TABLE_EXISTS: &str = "select 1 from sqlite_master where type = 'table' and name = ?1";

const BY_HASH: &str = "select Realisations.id, Output.path, Realisations.signatures \
    from Realisations inner join ValidPaths as Output on Output.id = Realisations.outputPath \
    where drvPath = ?1 and outputName = ?2";

const DEPENDENCIES: &str = "select drvPath, outputName, Output.path from RealisationsRefs \
    join Realisations on realisationReference = Realisations.id \
    join ValidPaths as Output on Output.id = Realisations.outputPath \
    where referrer = ?1";

const BY_DERIVATION: &str = "select outputPath, signatures from BuildTraceV3 \
    where drvPath = ?1 and outputName = ?2";

const OUTPUTS: &str = "select Output.path from DerivationOutputs as Output \
    inner join ValidPaths as Derivation on Derivation.id = Output.drv \
    where Derivation.path = ?1";

/// Reads the outputs of a valid derivation.
pub(crate) fn outputs(
    connection: &Connection,
    dir: &StoreDir,
    derivation: &StorePath,
) -> Result<Vec<StorePath>, StoreError> {
    if !table_exists(connection, "DerivationOutputs")? {
        return Ok(Vec::new());
    }
    let mut statement = connection.prepare_cached(OUTPUTS)?;
    let mut rows = statement.query([derivation.full(dir)])?;
    let mut outputs = Vec::new();
    while let Some(row) = rows.next()? {
        outputs.push(store_path(dir, required(row, 0)?)?);
    }
    Ok(outputs)
}

/// Reads the JSON document of a realisation; returns `None` if the realisation is absent.
///
/// # Errors
///
/// [`Corruption::RealisationTable`] if a table has lost a column. The rest of the database stays
/// in use.
pub(crate) fn realisation(
    connection: &Connection,
    dir: &StoreDir,
    id: &RealisationId,
) -> Result<Option<String>, StoreError> {
    let found = match id {
        RealisationId::Hash { derivation, output } => {
            by_hash(connection, dir, id, &hash_key(derivation), output.as_str())
        }
        RealisationId::Derivation { derivation, output } => {
            by_derivation(connection, dir, derivation.base_name(), output.as_str())
        }
    };
    found.map_err(|error| match error {
        StoreError::Corrupt(Corruption::Schema) => {
            StoreError::Corrupt(Corruption::RealisationTable)
        }
        other => other,
    })
}

fn by_hash(
    connection: &Connection,
    dir: &StoreDir,
    id: &RealisationId,
    key: &str,
    output: &str,
) -> Result<Option<String>, StoreError> {
    if !table_exists(connection, "Realisations")? {
        return Ok(None);
    }
    let mut statement = connection.prepare_cached(BY_HASH)?;
    let mut rows = statement.query([key, output])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let row_id: i64 = row.get(0)?;
    let out_path = store_path(dir, required(row, 1)?)?;
    let signatures = text(row, 2)?.unwrap_or_default();
    let dependencies = dependencies(connection, dir, row_id)?;
    Ok(Some(hash_document(
        id,
        &out_path,
        &dependencies,
        signatures,
    )))
}

fn dependencies(
    connection: &Connection,
    dir: &StoreDir,
    row_id: i64,
) -> Result<Vec<(String, StorePath)>, StoreError> {
    // Skip this table if it is missing: the first versions of the experimental feature did not have
    // it.
    if !table_exists(connection, "RealisationsRefs")? {
        return Ok(Vec::new());
    }
    let mut statement = connection.prepare_cached(DEPENDENCIES)?;
    let mut rows = statement.query([row_id])?;
    let mut dependencies = Vec::new();
    while let Some(row) = rows.next()? {
        let id = format!("{}!{}", required(row, 0)?, required(row, 1)?);
        dependencies.push((id, store_path(dir, required(row, 2)?)?));
    }
    Ok(dependencies)
}

fn by_derivation(
    connection: &Connection,
    dir: &StoreDir,
    derivation: &str,
    output: &str,
) -> Result<Option<String>, StoreError> {
    if !table_exists(connection, "BuildTraceV3")? {
        return Ok(None);
    }
    let mut statement = connection.prepare_cached(BY_DERIVATION)?;
    let mut rows = statement.query([derivation, output])?;
    let Some(row) = rows.next()? else {
        return Ok(None);
    };
    let out_path = store_path(dir, required(row, 0)?)?;
    let signatures = signatures(text(row, 1)?.unwrap_or_default());
    Ok(Some(derivation_document(&out_path, &signatures)))
}

fn table_exists(connection: &Connection, name: &str) -> Result<bool, StoreError> {
    let mut statement = connection.prepare_cached(TABLE_EXISTS)?;
    let found = statement.query_row([name], |_row| Ok(())).optional();
    Ok(found?.is_some())
}

fn required<'row>(row: &'row Row<'_>, index: usize) -> Result<&'row str, StoreError> {
    text(row, index)?.ok_or(StoreError::Corrupt(Corruption::Realisation))
}
