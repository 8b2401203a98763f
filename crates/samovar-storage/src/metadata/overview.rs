//! Queries for metrics and for the web interface. They change nothing and record no use.

use std::collections::HashMap;
use std::ops::ControlFlow;

use samovar_nix::{HashPart, StorePath};

use super::rows::{is_shown, path_of, unsigned};
use super::{CacheId, Database, StoredPath, paths};
use crate::error::StorageError;
use crate::sql::{Connection, params};

/// Number of the newest paths of all caches among which the recent paths of one cache are searched.
const SCAN_COUNT_MAX: u32 = 10_000;

/// A path belongs to the push of a path that refers to it and was published with the same token at
/// most this much later, in seconds.
const PUSH_GAP_S: i64 = 600;

/// Number of paths that one query reads the names of: a transaction of a few milliseconds.
const NAMED_COUNT: u32 = 8192;

/// Paths whose names were accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The numbers and hash parts of the paths.
    pub found: Vec<(i64, HashPart)>,
    /// Number of the last path that was read.
    pub last: i64,
    /// The number after which to continue; `None` after the last path.
    pub next: Option<i64>,
}

/// A path that was published recently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentPath {
    /// The store path that was published.
    pub path: StorePath,
    /// Time of publication, in seconds since 1970.
    pub registered_at: i64,
    /// Length of the NAR, in bytes.
    pub nar_size: u64,
    /// Length of the NAR's file, in bytes.
    pub file_size: u64,
    /// Name of the token that uploaded the path, if it is known.
    pub token: Option<String>,
}

/// A path that was pushed, and the paths that were pushed with it because it needs them. The
/// storage does not record what a client was asked to push, so this is derived from references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentPush {
    /// A path to which no other path refers that was published with the same token shortly after.
    pub path: RecentPath,
    /// Paths to which it refers, directly or not, and that were published shortly before it with
    /// the same token. A path to which several pushes refer belongs to one of them. May lack some:
    /// the sum over all pushes is limited.
    pub others: Vec<RecentPath>,
    /// Number of these paths, with those that [`others`](Self::others) lacks.
    pub other_count: u64,
}

/// The details of an uploaded path for the web interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// The path with its NAR, references and signatures.
    pub path: StoredPath,
    /// Name of the token that uploaded the path, if it is known.
    pub token: Option<String>,
    /// Whether the path is condemned: it will be deleted unless it is used.
    pub is_condemned: bool,
    /// Name and generation of each valid pin of the path.
    pub pins: Vec<(String, i64)>,
    /// Uploaded paths that refer to the path, at most [`REFERRER_COUNT_MAX`].
    pub referrers: Vec<StorePath>,
    /// Size of the uploaded part of the path's closure. `None`: that part has more than
    /// [`CLOSURE_COUNT_MAX`] paths.
    pub closure: Option<ClosureSize>,
}

/// The number of paths in a closure and their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosureSize {
    /// Number of paths in the closure.
    pub path_count: u64,
    /// Total length of the NARs of these paths, in bytes.
    pub nar_size: u64,
}

/// Maximum number of entries in [`Details::referrers`].
pub const REFERRER_COUNT_MAX: u32 = 100;

/// Maximum number of paths in a closure whose size is computed.
pub const CLOSURE_COUNT_MAX: u32 = 2000;

/// Returns the paths that were published last in a cache, newest first, at most `count_max`.
/// Searches only the newest paths of the whole storage, so it may omit paths of a cache into
/// which nothing was uploaded for a long time.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn recent(
    database: &Database,
    cache: CacheId,
    accepts: &dyn Fn(&StorePath) -> bool,
    count_max: usize,
) -> Result<Vec<RecentPath>, StorageError> {
    database.read(|connection| {
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
    })
}

/// Reads the next paths of a cache: see [`browse::named`](crate::browse::named).
pub(crate) fn named(
    database: &Database,
    cache: CacheId,
    after: i64,
    accepts: &dyn Fn(&str) -> bool,
) -> Result<Named, StorageError> {
    database.read(|connection| {
        let query =
            "select id, cache_id, hash_part, name from path where id > ?1 order by id limit ?2";
        let (mut found, mut last, mut row_count) = (Vec::new(), after, 0);
        connection.each(query, params![after, NAMED_COUNT], |row| {
            row_count += 1;
            last = row.get(0)?;
            if row.get::<CacheId>(1)? == cache && accepts(row.get(3)?) {
                found.push((last, HashPart::from_bytes(row.get(2)?)));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let next = (row_count == NAMED_COUNT).then_some(last);
        Ok(Named { found, last, next })
    })
}

/// Returns the last pushes to a cache, at most `count_max`, the newest first, with at most
/// `other_count_max` other paths in all. Searches the same paths as [`recent`].
///
/// # Errors
///
/// Any [`StorageError`].
pub fn recent_pushes(
    database: &Database,
    cache: CacheId,
    count_max: usize,
    other_count_max: usize,
) -> Result<Vec<RecentPush>, StorageError> {
    // The rows and their references are of the same snapshot.
    database.read(|connection| {
        connection
            .snapshot(|connection| recent_pushes_in(connection, cache, count_max, other_count_max))
    })
}

/// Reads the newest paths, and adds each to the push of a path that refers to it. Referrers come
/// first, because a path is published after its references.
// Long: the state of one loop.
fn recent_pushes_in(
    connection: &Connection<'_>,
    cache: CacheId,
    count_max: usize,
    other_count_max: usize,
) -> Result<Vec<RecentPush>, StorageError> {
    let mut pushes: Vec<RecentPush> = Vec::new();
    // The push, and the time, of the last referrer that was read, by reference and token.
    let mut referred: HashMap<(i64, Option<i64>), (usize, i64)> = HashMap::new();
    let mut listed_count = 0;
    let mut earliest = i64::MAX;
    for_newest(connection, cache, |row| {
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
        let references = "select reference from reference where referrer = ?1";
        let references = connection.rows(references, params![row.id], |row| row.get(0))?;
        let references = references.into_iter();
        referred.extend(references.map(|reference| ((reference, row.token), (index, at))));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(pushes)
}

/// Returns the details of an uploaded path. Returns `None` if the cache does not have the path,
/// or if its NAR is lost.
pub(crate) fn details(
    database: &Database,
    cache: CacheId,
    hash_part: HashPart,
) -> Result<Option<Details>, StorageError> {
    let now = database.now();
    database.read(|connection| {
        connection.snapshot(|connection| details_in(connection, cache, hash_part, now))
    })
}

fn details_in(
    connection: &Connection<'_>,
    cache: CacheId,
    hash_part: HashPart,
    now: i64,
) -> Result<Option<Details>, StorageError> {
    let Some((path, is_condemned)) = paths::stored_path(connection, cache, hash_part)? else {
        return Ok(None);
    };
    let token = "select token.name from path join token on token.id = token_id where path.id = ?1";
    let pins = "select name, generation from pin \
                where path_id = ?1 and (expires_at is null or expires_at > ?2) \
                order by name, generation desc";
    Ok(Some(Details {
        token: connection.optional(token, params![path.id], |row| row.get(0))?,
        is_condemned,
        pins: connection.rows(pins, params![path.id, now], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?,
        referrers: referrers(connection, path.id)?,
        closure: closure(connection, path.id)?,
        path,
    }))
}

/// A row of the table of paths.
struct Row {
    id: i64,
    token: Option<i64>,
    recent: RecentPath,
}

/// Reads the newest paths of a cache, the newest first.
fn for_newest(
    connection: &Connection<'_>,
    cache: CacheId,
    mut visit: impl FnMut(Row) -> Result<ControlFlow<()>, StorageError>,
) -> Result<(), StorageError> {
    let query = concat!(
        "select path.id, token_id, hash_part, path.name, registered_at, nar_size, file_size, \
         token.name from (select * from path order by id desc limit ?2) as path \
         join nar on nar.id = nar_id left join token on token.id = token_id \
         where cache_id = ?1 and state <> 3 and ",
        is_shown!("?1"),
        " order by path.id desc"
    );
    connection.each(query, params![cache, SCAN_COUNT_MAX], |row| {
        let hash_part = HashPart::from_bytes(row.get(2)?);
        visit(Row {
            id: row.get(0)?,
            token: row.get(1)?,
            recent: RecentPath {
                path: path_of(hash_part, row.get(3)?)?,
                registered_at: row.get(4)?,
                nar_size: unsigned(row.get(5)?)?,
                file_size: unsigned(row.get(6)?)?,
                token: row.get(7)?,
            },
        })
    })
}

fn referrers(connection: &Connection<'_>, path: i64) -> Result<Vec<StorePath>, StorageError> {
    let query = "select hash_part, name from reference join path on path.id = referrer \
                 where reference = ?1 limit ?2";
    connection.rows(query, params![path, REFERRER_COUNT_MAX], |row| {
        path_of(HashPart::from_bytes(row.get(0)?), row.get(1)?)
    })
}

fn closure(connection: &Connection<'_>, path: i64) -> Result<Option<ClosureSize>, StorageError> {
    // The outer query reads no more members than one too many, and so stops the recursion.
    let query = "with recursive member (id) as (select id from path where id = ?1 union \
         select reference from reference join member on referrer = member.id), \
         some_of (id) as (select id from member limit ?2) \
         select count(*), cast(coalesce(sum(nar_size), 0) as bigint) \
         from some_of join path on path.id = some_of.id join nar on nar.id = nar_id";
    let params = params![path, CLOSURE_COUNT_MAX + 1];
    let size = connection.row(query, params, |row| {
        Ok(ClosureSize {
            path_count: unsigned(row.get(0)?)?,
            nar_size: unsigned(row.get(1)?)?,
        })
    })?;
    Ok((size.path_count <= CLOSURE_COUNT_MAX.into()).then_some(size))
}
