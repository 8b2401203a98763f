//! Queries for metrics and for the web interface.

use std::collections::HashMap;
use std::ops::ControlFlow;

use rusqlite::{Connection, OptionalExtension as _, params};
use samovar_nix::{HashPart, StorePath};

use super::rows::{is_shown, path_of, unsigned};
use super::{Sqlite, paths, totals};
use crate::error::StorageError;
use crate::metadata::{
    CLOSURE_COUNT_MAX, CacheId, ClosureSize, Details, Metadata as _, Overview, REFERRER_COUNT_MAX,
    RecentPath, RecentPush, Totals,
};

/// Number of the newest paths of all caches among which the recent paths of one cache are searched.
const SCAN_COUNT_MAX: u32 = 10_000;

/// A path belongs to the push of a path that refers to it and was published with the same token at
/// most this much later, in seconds.
const PUSH_GAP_S: i64 = 600;

impl Overview for Sqlite {
    fn totals(&self) -> Result<Totals, StorageError> {
        self.read(totals::read)
    }

    fn recent(
        &self,
        cache: CacheId,
        accepts: &dyn Fn(&StorePath) -> bool,
        count_max: usize,
    ) -> Result<Vec<RecentPath>, StorageError> {
        self.read(|connection| recent(connection, cache, accepts, count_max))
    }

    fn recent_pushes(
        &self,
        cache: CacheId,
        count_max: usize,
        other_count_max: usize,
    ) -> Result<Vec<RecentPush>, StorageError> {
        self.read(|connection| recent_pushes(connection, cache, count_max, other_count_max))
    }

    fn details(
        &self,
        cache: CacheId,
        hash_part: HashPart,
    ) -> Result<Option<Details>, StorageError> {
        self.read(|connection| details(connection, cache, hash_part, self.now()))
    }
}

fn recent(
    connection: &Connection,
    cache: CacheId,
    accepts: &dyn Fn(&StorePath) -> bool,
    count_max: usize,
) -> Result<Vec<RecentPath>, StorageError> {
    let mut recent = Vec::new();
    for_newest(connection, cache, |row| {
        if accepts(&row.recent.path) {
            recent.push(row.recent);
        }
        Ok(match recent.len() < count_max {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })
    })?;
    Ok(recent)
}

/// Reads the newest paths, and adds each to the push of a path that refers to it. Referrers come
/// first, because a path is published after its references.
fn recent_pushes(
    connection: &Connection,
    cache: CacheId,
    count_max: usize,
    other_count_max: usize,
) -> Result<Vec<RecentPush>, StorageError> {
    // The rows and their references are of the same snapshot.
    let transaction = connection.unchecked_transaction()?;
    let mut references =
        transaction.prepare_cached("select reference from reference where referrer = ?1")?;
    let mut pushes: Vec<RecentPush> = Vec::new();
    // The push, and the time, of the last referrer that was read, by reference and token.
    let mut referred: HashMap<(i64, Option<i64>), (usize, i64)> = HashMap::new();
    let mut listed_count = 0;
    let mut earliest = i64::MAX;
    for_newest(&transaction, cache, |row| {
        let at = row.recent.registered_at;
        let referrer = referred.get(&(row.id, row.token));
        let push = referrer.filter(|(_, referrer_at)| referrer_at.saturating_sub(at) <= PUSH_GAP_S);
        let index = match push {
            Some((index, _)) => *index,
            None if pushes.len() < count_max => pushes.len(),
            // Older paths may still belong to the pushes.
            None if at >= earliest.saturating_sub(PUSH_GAP_S) => {
                return Ok(ControlFlow::Continue(()));
            }
            None => return Ok(ControlFlow::Break(())),
        };
        match pushes.get_mut(index) {
            Some(push) => {
                push.other_count += 1;
                if listed_count < other_count_max {
                    push.others.push(row.recent);
                    listed_count += 1;
                }
            }
            None => pushes.push(RecentPush {
                path: row.recent,
                others: Vec::new(),
                other_count: 0,
            }),
        }
        earliest = earliest.min(at);
        let mut rows = references.query([row.id])?;
        while let Some(reference) = rows.next()? {
            referred.insert((reference.get(0)?, row.token), (index, at));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(pushes)
}

/// A row of the table of paths.
struct Row {
    id: i64,
    token: Option<i64>,
    recent: RecentPath,
}

/// Reads the newest paths of a cache, the newest first.
fn for_newest(
    connection: &Connection,
    cache: CacheId,
    mut visit: impl FnMut(Row) -> Result<ControlFlow<()>, StorageError>,
) -> Result<(), StorageError> {
    let mut statement = connection.prepare_cached(concat!(
        "select path.id, token_id, hash_part, path.name, registered_at, nar_size, file_size, \
         token.name from (select * from path order by id desc limit ?2) as path \
         join nar on nar.id = nar_id left join token on token.id = token_id \
         where cache_id = ?1 and state <> 3 and ",
        is_shown!("?1"),
        " order by path.id desc"
    ))?;
    let mut rows = statement.query(params![cache.0, SCAN_COUNT_MAX])?;
    while let Some(row) = rows.next()? {
        let hash_part = HashPart::from_bytes(row.get(2)?);
        let row = Row {
            id: row.get(0)?,
            token: row.get(1)?,
            recent: RecentPath {
                path: path_of(hash_part, &row.get::<_, String>(3)?)?,
                registered_at: row.get(4)?,
                nar_size: unsigned(row.get(5)?)?,
                file_size: unsigned(row.get(6)?)?,
                token: row.get(7)?,
            },
        };
        if visit(row)?.is_break() {
            break;
        }
    }
    Ok(())
}

fn details(
    connection: &Connection,
    cache: CacheId,
    hash_part: HashPart,
    now: i64,
) -> Result<Option<Details>, StorageError> {
    // All queries read the same snapshot.
    let transaction = connection.unchecked_transaction()?;
    let Some((path, is_condemned)) = paths::stored_path(&transaction, cache, hash_part)? else {
        return Ok(None);
    };
    let token = transaction
        .prepare_cached(
            "select token.name from path join token on token.id = token_id where path.id = ?1",
        )?
        .query_row([path.id], |row| row.get(0))
        .optional()?;
    let pins = transaction
        .prepare_cached(
            "select name, generation from pin \
             where path_id = ?1 and (expires_at is null or expires_at > ?2) \
             order by name, generation desc",
        )?
        .query_map([path.id, now], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    Ok(Some(Details {
        token,
        is_condemned,
        pins,
        referrers: referrers(&transaction, path.id)?,
        closure: closure(&transaction, path.id)?,
        path,
    }))
}

fn referrers(connection: &Connection, path: i64) -> Result<Vec<StorePath>, StorageError> {
    let mut statement = connection.prepare_cached(
        "select hash_part, name from reference join path on path.id = referrer \
         where reference = ?1 limit ?2",
    )?;
    let mut rows = statement.query(params![path, REFERRER_COUNT_MAX])?;
    let mut referrers = Vec::new();
    while let Some(row) = rows.next()? {
        let hash_part = HashPart::from_bytes(row.get(0)?);
        referrers.push(path_of(hash_part, &row.get::<_, String>(1)?)?);
    }
    Ok(referrers)
}

fn closure(connection: &Connection, path: i64) -> Result<Option<ClosureSize>, StorageError> {
    let mut statement = connection.prepare_cached(
        "with recursive member (id) as (values (?1) union \
         select reference from reference join member on referrer = member.id limit ?2 + 1) \
         select count(*), sum(nar_size) \
         from member join path on path.id = member.id join nar on nar.id = nar_id",
    )?;
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let (path_count, nar_size) = statement.query_row(params![path, CLOSURE_COUNT_MAX], row)?;
    let size = ClosureSize {
        path_count: unsigned(path_count)?,
        nar_size: unsigned(nar_size)?,
    };
    Ok((size.path_count <= CLOSURE_COUNT_MAX.into()).then_some(size))
}
