//! Writes what a [`Plan`] contains.

use samovar_nix::{HashPart, StorePath};

use super::super::rows::signed;
use super::super::{caches, uses};
use super::plan::{Insert, Plan, Update, Updated};
use super::stored::PathRow;
use crate::error::StorageError;
use crate::sql::{Change, Dialect, Transaction, Value, params};

/// Number of columns of an inserted path.
const COLUMN_COUNT: usize = 11;

pub(super) fn write(
    transaction: &Transaction<'_>,
    plan: &Plan<'_>,
    now: i64,
) -> Result<(), StorageError> {
    for cache in &plan.restored {
        caches::restore(transaction, *cache)?;
    }
    uses::revive_nars(transaction, &plan.revivals, now)?;
    uses::record_paths(transaction, plan.uses.iter().copied(), now)?;
    for change in &plan.updates {
        update(transaction, change)?;
    }
    let ids = insert_paths(transaction, &plan.inserts, now)?;
    let id = |row: &PathRow| match row {
        PathRow::Stored(id) => *id,
        PathRow::New(index) => ids[*index],
    };
    let (mut references, mut outer) = (Vec::new(), Vec::new());
    for (insert, referrer) in plan.inserts.iter().zip(&ids) {
        references.extend(
            insert
                .references
                .iter()
                .map(|row| (*referrer, id(row).into())),
        );
        outer.extend(
            insert
                .outer
                .iter()
                .map(|base_name| (*referrer, Value::Text(base_name))),
        );
        let hash_part = insert.new.path.hash_part();
        transaction.note(Change::PathAdded(insert.new.cache, hash_part));
    }
    insert_pairs(
        transaction,
        "reference (referrer, reference)",
        "bigint",
        &references,
    )?;
    insert_pairs(
        transaction,
        "outer_reference (referrer, base_name)",
        "text",
        &outer,
    )
}

fn update(transaction: &Transaction<'_>, update: &Update) -> Result<(), StorageError> {
    match &update.value {
        Updated::Nar(nar) => transaction.execute(
            "update path set nar_id = ?2 where id = ?1",
            params![update.id, *nar],
        )?,
        Updated::Sigs(sigs) => transaction.execute(
            "update path set sigs = ?2, own_bytes = own_bytes + length(?2) - length(sigs) \
             where id = ?1",
            params![update.id, sigs],
        )?,
    };
    let (cache, hash_part) = update.key;
    transaction.note(Change::PathChanged(cache, hash_part));
    Ok(())
}

/// Inserts paths without their references. Returns their row numbers, which ascend.
fn insert_paths(
    transaction: &Transaction<'_>,
    inserts: &[Insert<'_>],
    now: i64,
) -> Result<Vec<i64>, StorageError> {
    let keys = inserts.iter().map(|insert| {
        let address = insert.new.content_address;
        (
            insert.new.path.hash_part(),
            address.map(|address| address.to_string()),
        )
    });
    let keys: Vec<(HashPart, Option<String>)> = keys.collect();
    let rows = inserts.iter().zip(&keys);
    let rows: Vec<[Value<'_>; COLUMN_COUNT]> = rows
        .map(|(insert, (hash_part, address))| columns(insert, hash_part, address.as_deref(), now))
        .collect::<Result<_, _>>()?;
    match transaction.dialect() {
        Dialect::Sqlite => {
            let insert = "insert into path (cache_id, hash_part, name, nar_id, self_reference, \
                 deriver, ca, sigs, registered_at, used_at, token_id, own_bytes) \
                 values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9, ?10, ?11) returning id";
            let rows = rows.iter();
            rows.map(|row| transaction.row(insert, row, |row| row.get(0)))
                .collect()
        }
        Dialect::Postgres if rows.is_empty() => Ok(Vec::new()),
        Dialect::Postgres => {
            // Identity columns get their numbers in the order of the selected rows.
            let insert = "insert into path (cache_id, hash_part, name, nar_id, self_reference, \
                 deriver, ca, sigs, registered_at, used_at, token_id, own_bytes) \
                 select cache_id, hash_part, name, nar_id, self_reference, deriver, ca, sigs, at, \
                     at, token_id, own_bytes \
                 from unnest(?1::bigint[], ?2::bytea[], ?3::text[], ?4::bigint[], ?5::bigint[], \
                     ?6::text[], ?7::text[], ?8::text[], ?9::bigint[], ?10::bigint[], \
                     ?11::bigint[]) with ordinality as its (cache_id, hash_part, name, nar_id, \
                     self_reference, deriver, ca, sigs, at, token_id, own_bytes, number) \
                 order by number returning id";
            let column = |index| rows.iter().map(|row| row[index]).collect();
            let columns: [Vec<Value<'_>>; COLUMN_COUNT] = std::array::from_fn(column);
            let params = columns.each_ref().map(|column| Value::List(column));
            let mut ids: Vec<i64> = transaction.rows(insert, &params, |row| row.get(0))?;
            ids.sort_unstable();
            Ok(ids)
        }
    }
}

fn columns<'v>(
    insert: &'v Insert<'_>,
    hash_part: &'v HashPart,
    address: Option<&'v str>,
    now: i64,
) -> Result<[Value<'v>; COLUMN_COUNT], StorageError> {
    let new = insert.new;
    Ok([
        new.cache.into(),
        hash_part.as_bytes().into(),
        new.path.name().into(),
        new.nar_id.into(),
        new.has_self_reference.into(),
        new.deriver.as_ref().map(StorePath::base_name).into(),
        address.into(),
        (&insert.sigs).into(),
        now.into(),
        new.token.into(),
        signed(insert.own_len)?.into(),
    ])
}

/// Inserts rows of a row number and a value of this type.
fn insert_pairs(
    transaction: &Transaction<'_>,
    table: &str,
    kind: &str,
    pairs: &[(i64, Value<'_>)],
) -> Result<(), StorageError> {
    match transaction.dialect() {
        Dialect::Sqlite => {
            let insert = format!("insert into {table} values (?1, ?2)");
            for (id, value) in pairs {
                transaction.execute(&insert, &[Value::from(*id), *value])?;
            }
        }
        Dialect::Postgres if pairs.is_empty() => {}
        Dialect::Postgres => {
            let insert =
                format!("insert into {table} select * from unnest(?1::bigint[], ?2::{kind}[])");
            let (ids, values): (Vec<_>, Vec<_>) = pairs
                .iter()
                .map(|(id, value)| (Value::from(*id), *value))
                .unzip();
            transaction.execute(&insert, &[Value::List(&ids), Value::List(&values)])?;
        }
    }
    Ok(())
}
