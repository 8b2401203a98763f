//! Statements that list all rows, and the statements of `samovar fsck`.

use rusqlite::{Connection, OptionalExtension as _, ToSql, Transaction, params};
use samovar_nix::{HashPart, StoreDir};

use super::rows::{damaged, nar_columns, nar_of, path_of};
use super::{Sqlite, backup, collect, lineage, paths as stored, totals};
use crate::error::StorageError;
use crate::metadata::{CacheId, CacheRow, ListedNar, ListedPath, Metadata as _, Rows, StoredPath};

/// Tables without a row for each path or NAR.
const SMALL_TABLES: [&str; 6] = ["meta", "cache", "token", "pin", "removed_pin", "push"];

/// The total length of the files that the paths of a row of `cache` use, each counted once.
const FILE_BYTES: &str = "(select coalesce(sum(file_size), 0) from nar where id in \
     (select nar_id from path where cache_id = cache.id))";

/// The total length of what the row of `cache` has besides the files of NARs.
const EXTRA_BYTES: &str = "(\
     (select coalesce(sum(own_bytes), 0) from path where cache_id = cache.id) \
     + (select coalesce(sum(4096 + length(key) + length(body) + length(sigs)), 0) \
        from extra where cache_id = cache.id) \
     + (select coalesce(sum(4096 + size), 0) from log where cache_id = cache.id))";

impl Rows for Sqlite {
    fn nars_after(&self, id: i64, count_max: u32) -> Result<Vec<ListedNar>, StorageError> {
        self.read(|connection| nars_after(connection, id, count_max))
    }

    fn paths_after(&self, id: i64, count_max: u32) -> Result<Vec<ListedPath>, StorageError> {
        self.read(|connection| paths_after(connection, id, count_max))
    }

    fn peek(
        &self,
        cache: CacheId,
        hash_part: HashPart,
    ) -> Result<Option<StoredPath>, StorageError> {
        let found = self.read(|connection| stored::stored_path(connection, cache, hash_part))?;
        Ok(found.map(|(path, _)| path))
    }

    fn paths_of_nar(&self, nar_id: i64) -> Result<Vec<ListedPath>, StorageError> {
        self.read(|connection| paths_of_nar(connection, nar_id))
    }

    fn frames(&self, nar_id: i64) -> Result<Option<Vec<u8>>, StorageError> {
        self.read(|connection| frames(connection, nar_id))
    }

    fn set_frames(&self, nar_id: i64, frames: Option<&[u8]>) -> Result<(), StorageError> {
        set_frames(&*self.writer()?, nar_id, frames)
    }

    fn set_lost(
        &self,
        nar_id: i64,
        is_lost: bool,
        is_unchanged: &mut dyn FnMut() -> Result<bool, StorageError>,
        remove_mirror: &mut dyn FnMut(HashPart) -> Result<(), StorageError>,
    ) -> Result<bool, StorageError> {
        self.write(|transaction| {
            Ok(is_unchanged()?
                && set_lost(transaction, nar_id, is_lost, remove_mirror, self.now())?)
        })
    }

    fn mirrored_cache(&self) -> Result<Option<CacheRow>, StorageError> {
        self.read(mirrored_cache)
    }

    fn today(&self) -> Result<String, StorageError> {
        self.read(|connection| backup::today(connection, self.now()))
    }

    fn dump(
        &self,
        write: &mut dyn FnMut(&str) -> Result<(), StorageError>,
    ) -> Result<Option<StorageError>, StorageError> {
        self.read(|connection| {
            // All queries read the same snapshot.
            let transaction = connection.unchecked_transaction()?;
            backup::dump(&transaction, write)?;
            dump_paths(&transaction, write)
        })
    }

    fn dumped_narinfos(&self, lines: &[String]) -> Result<Vec<(String, String)>, StorageError> {
        self.read(|connection| backup::narinfos(connection, lines))
    }

    fn lacks_any(&self, lines: &[String]) -> Result<bool, StorageError> {
        self.read(|connection| backup::lacks_any(connection, lines))
    }

    fn dumped_mirrored_cache(&self, lines: &[String]) -> Result<Option<String>, StorageError> {
        self.read(|connection| backup::mirrored_cache(connection, lines))
    }

    fn dump_state(&self) -> Result<String, StorageError> {
        self.read(backup::state)
    }

    fn restore(&self, lines: &[String]) -> Result<(), StorageError> {
        self.write(|transaction| {
            backup::restore(transaction, lines)?;
            lineage::end_all(transaction)
        })
    }

    fn find_cache(&self, name: &str) -> Result<Option<CacheRow>, StorageError> {
        self.read(|connection| cache(connection, "?1 and deletion = 0", &[&name]))
    }

    fn cache_of(&self, hash_part: HashPart) -> Result<Option<String>, StorageError> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "select name from cache where deletion = 0 and exists (select 1 from path \
                 where cache_id = cache.id and hash_part = ?1)",
            )?;
            let name = statement.query_row([hash_part.as_bytes()], |row| row.get(0));
            Ok(name.optional()?)
        })
    }

    fn cache_names(&self) -> Result<Vec<String>, StorageError> {
        self.read(|connection| {
            let mut statement = connection.prepare("select name from cache where deletion = 0")?;
            let names = statement.query_map([], |row| row.get(0))?;
            Ok(names.collect::<Result<_, _>>()?)
        })
    }

    fn is_orphan(&self, object_key: &str) -> Result<bool, StorageError> {
        self.read(|connection| is_orphan(connection, object_key))
    }

    fn discard(&self, object_keys: &[String]) -> Result<Vec<String>, StorageError> {
        self.write(|transaction| discard(transaction, object_keys, self.now()))
    }

    fn check_small_tables(&self) -> Result<(), StorageError> {
        self.read(check_small_tables)
    }

    fn collected_at(&self) -> Result<Option<i64>, StorageError> {
        self.read(totals::collected_at)
    }

    fn wrong_totals(&self, repairs: bool) -> Result<Vec<String>, StorageError> {
        match repairs {
            false => self.read(wrong_totals),
            true => self.write(|transaction| {
                let wrong = wrong_totals(transaction)?;
                let update = format!(
                    "update cache set file_bytes = {FILE_BYTES}, extra_bytes = {EXTRA_BYTES}"
                );
                transaction.execute(&update, [])?;
                Ok(wrong)
            }),
        }
    }

    fn faults(&self, deep: bool, count_max: u32) -> Result<Vec<String>, StorageError> {
        self.read(|connection| faults(connection, deep, count_max))
    }
}

/// Writes the narinfos of all caches that the directory does not mirror, references first. Returns
/// the fault of the first path that is left out because its row is damaged.
fn dump_paths(
    connection: &Connection,
    write: &mut dyn FnMut(&str) -> Result<(), StorageError>,
) -> Result<Option<StorageError>, StorageError> {
    let mut json =
        connection.prepare("select json_object('kind', 'narinfo', 'cache', ?1, 'text', ?2)")?;
    let mut paths = connection.prepare(
        "select cache_id, cache.name, store_dir, hash_part \
         from path join cache on cache.id = cache_id \
         where cache_id is not (select cast(value as integer) from meta \
             where meta.key = 'mirrored-cache') order by path.id",
    )?;
    let mut fault = None;
    let mut rows = paths.query([])?;
    while let Some(row) = rows.next()? {
        let (cache, hash_part) = (CacheId(row.get(0)?), HashPart::from_bytes(row.get(3)?));
        let dir: String = row.get(2)?;
        let text = match narinfo(connection, cache, &dir, hash_part) {
            Ok(text) => text,
            Err(error @ StorageError::Damaged(_)) => {
                fault = fault.or(Some(error));
                continue;
            }
            Err(error) => return Err(error),
        };
        if let Some(text) = text {
            let name: String = row.get(1)?;
            let line: String = json.query_row([&name, &text], |row| row.get(0))?;
            write(&line)?;
        }
    }
    Ok(fault)
}

/// Returns the narinfo of a path in a cache with this store directory. `None`: the path is lost.
fn narinfo(
    connection: &Connection,
    cache: CacheId,
    dir: &str,
    hash_part: HashPart,
) -> Result<Option<String>, StorageError> {
    let dir = StoreDir::new(dir).map_err(|error| damaged(&format!("{dir:?}: {error}")))?;
    let Some((path, _)) = stored::stored_path(connection, cache, hash_part)? else {
        return Ok(None);
    };
    let mut text = Vec::new();
    let written = path.narinfo().write(&dir, &mut text);
    written.map_err(|error| damaged(&format!("{}: {error}", path.path)))?;
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

fn nars_after(
    connection: &Connection,
    id: i64,
    count_max: u32,
) -> Result<Vec<ListedNar>, StorageError> {
    let mut statement = connection.prepare_cached(concat!(
        "select ",
        nar_columns!(),
        ", state = 3 from nar where id > ?1 order by id limit ?2"
    ))?;
    let mut rows = statement.query(params![id, count_max])?;
    let mut nars = Vec::new();
    while let Some(row) = rows.next()? {
        nars.push(ListedNar {
            nar: nar_of(row)?,
            is_lost: row.get(7)?,
        });
    }
    Ok(nars)
}

fn paths_after(
    connection: &Connection,
    id: i64,
    count_max: u32,
) -> Result<Vec<ListedPath>, StorageError> {
    let condition = "path.id > ?1 order by path.id limit ?2";
    paths(connection, condition, &[id, count_max.into()])
}

fn paths_of_nar(connection: &Connection, nar_id: i64) -> Result<Vec<ListedPath>, StorageError> {
    paths(connection, "nar_id = ?1 order by path.id", &[nar_id])
}

fn paths(
    connection: &Connection,
    condition: &str,
    parameters: &[i64],
) -> Result<Vec<ListedPath>, StorageError> {
    let mut statement = connection.prepare_cached(&format!(
        "select path.id, cache_id, cache.name, hash_part, path.name, state = 3 \
         from path join cache on cache.id = cache_id join nar on nar.id = nar_id \
         where {condition}"
    ))?;
    let mut rows = statement.query(rusqlite::params_from_iter(parameters))?;
    let mut paths = Vec::new();
    while let Some(row) = rows.next()? {
        paths.push(ListedPath {
            id: row.get(0)?,
            cache: CacheId(row.get(1)?),
            cache_name: row.get(2)?,
            path: path_of(HashPart::from_bytes(row.get(3)?), &row.get::<_, String>(4)?)?,
            is_lost: row.get(5)?,
        });
    }
    Ok(paths)
}

fn frames(connection: &Connection, nar_id: i64) -> Result<Option<Vec<u8>>, StorageError> {
    let mut statement = connection.prepare_cached("select frames from nar where id = ?1")?;
    let frames = statement.query_row([nar_id], |row| row.get(0)).optional()?;
    Ok(frames.flatten())
}

fn set_frames(
    connection: &Connection,
    nar_id: i64,
    frames: Option<&[u8]>,
) -> Result<(), StorageError> {
    let update = "update nar set frames = ?2 where id = ?1";
    connection.execute(update, params![nar_id, frames])?;
    Ok(())
}

fn set_lost(
    transaction: &Transaction<'_>,
    nar_id: i64,
    is_lost: bool,
    remove_mirror: &mut dyn FnMut(HashPart) -> Result<(), StorageError>,
    now: i64,
) -> Result<bool, StorageError> {
    let state = if is_lost { 3 } else { 1 };
    let changed = transaction.execute(
        "update nar set state = ?2, state_at = ?3 where id = ?1 and state <> ?2",
        params![nar_id, state, now],
    )?;
    if changed == 0 {
        return Ok(false);
    }
    let mirrored = mirrored_cache(transaction)?.filter(|_| is_lost);
    let mirrored = mirrored.map(|cache| cache.id);
    for path in paths_of_nar(transaction, nar_id)? {
        if mirrored == Some(path.cache) {
            remove_mirror(path.path.hash_part())?;
        }
    }
    Ok(true)
}

pub(super) fn mirrored_cache(connection: &Connection) -> Result<Option<CacheRow>, StorageError> {
    let mirrored = "(select name from cache where id = \
                    (select cast(value as integer) from meta where key = 'mirrored-cache'))";
    cache(connection, mirrored, &[])
}

/// Returns the cache whose name is the value of an SQL expression.
fn cache(
    connection: &Connection,
    name: &str,
    parameters: &[&dyn ToSql],
) -> Result<Option<CacheRow>, StorageError> {
    let query = format!("select id, name, store_dir from cache where name = {name}");
    let found: Option<(i64, String, String)> = connection
        .query_row(&query, parameters, |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let Some((id, name, dir)) = found else {
        return Ok(None);
    };
    let store_dir = StoreDir::new(&dir).map_err(|error| damaged(&format!("{dir:?}: {error}")))?;
    Ok(Some(CacheRow {
        id: CacheId(id),
        name,
        store_dir,
    }))
}

fn is_orphan(connection: &Connection, key: &str) -> Result<bool, StorageError> {
    let mut statement = connection.prepare_cached(
        "select not exists (select 1 from nar where object_key = ?1) \
         and not exists (select 1 from garbage where object_key = ?1 and done_at is null)",
    )?;
    Ok(statement.query_row([key], |row| row.get(0))?)
}

fn discard(
    transaction: &Transaction<'_>,
    keys: &[String],
    now: i64,
) -> Result<Vec<String>, StorageError> {
    let mut discarded = Vec::new();
    for key in keys {
        if is_orphan(transaction, key)? {
            collect::discard(transaction, key, now)?;
            discarded.push(key.clone());
        }
    }
    Ok(discarded)
}

fn check_small_tables(connection: &Connection) -> Result<(), StorageError> {
    for table in SMALL_TABLES {
        let mut statement = connection.prepare(&format!("pragma integrity_check({table})"))?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
        for fault in rows {
            match fault? {
                fault if fault == "ok" => {}
                fault => return Err(damaged(&fault)),
            }
        }
    }
    Ok(())
}

fn wrong_totals(connection: &Connection) -> Result<Vec<String>, StorageError> {
    let query = format!(
        "select 'the size of the cache ' || name || ' is recorded as ' || recorded \
             || ' bytes, but its ' || what || ' have ' || actual \
         from (select name, 'files' as what, file_bytes as recorded, {FILE_BYTES} as actual \
               from cache \
               union all select name, 'logs, realisations and narinfos', extra_bytes, \
               {EXTRA_BYTES} from cache) \
         where recorded <> actual"
    );
    let mut statement = connection.prepare(&query)?;
    let rows = statement.query_map([], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn faults(
    connection: &Connection,
    deep: bool,
    count_max: u32,
) -> Result<Vec<String>, StorageError> {
    let check = if deep { "integrity" } else { "quick" };
    let mut statement = connection.prepare(&format!("pragma {check}_check({count_max})"))?;
    let rows = statement.query_map([], |row| row.get(0))?;
    let mut faults: Vec<String> = rows.collect::<Result<_, _>>()?;
    faults.retain(|fault| fault != "ok");
    let queries = [
        // Without the table `reference`, whose rows have no number.
        // Rows of some other tables have no number, either.
        "select coalesce('row ' || rowid, 'a row') || ' of the table ' || \"table\" \
         || ' needs a missing row of ' || parent from pragma_foreign_key_check \
         where \"table\" <> 'reference' limit ?1",
        "select coalesce(path.name, 'a missing path') || ' (row ' || referrer || \
         ') refers to row ' || reference || ', which is missing or of another cache' \
         from reference left join path on path.id = referrer \
         left join path as target on target.id = reference \
         where path.cache_id is null or target.cache_id is not path.cache_id limit ?1",
    ];
    for query in queries {
        let mut statement = connection.prepare(query)?;
        let rows = statement.query_map([count_max], |row| row.get(0))?;
        for fault in rows {
            faults.push(fault?);
        }
    }
    Ok(faults)
}
