//! Queries for lists of paths: the paths of a range, and the paths that refer to a path.

use rusqlite::{Connection, params};
use samovar_nix::{StoreDir, StorePath};

use super::row::{store_path, text};
use crate::error::StoreError;

/// The paths that [`Store::scan`](crate::Store::scan) found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scanned {
    /// The accepted paths, with their registration numbers.
    pub found: Vec<(i64, StorePath)>,
    /// The base name after which to continue; `None` after the last path.
    pub next: Option<String>,
}

/// Number of rows per scan: a transaction of a few milliseconds, so that checkpoints can proceed.
const SCAN_ROW_COUNT: u32 = 8192;

/// SQLite answers it from the unique index on `path` alone.
const PATHS: &str = "select id, path from ValidPaths where path > ?1 order by path limit ?2";

/// Uses the index on `reference`.
const REFERRERS: &str = "select path from Refs join ValidPaths on referrer = id \
    where reference = ?1 and referrer <> ?1";

/// Reads the rows after `after`, which is relative to the store directory. Rows without a valid
/// path are left out.
pub(crate) fn scan(
    connection: &Connection,
    dir: &StoreDir,
    after: &str,
    accepts: &dyn Fn(&str) -> bool,
) -> Result<Scanned, StoreError> {
    let prefix = format!("{}/", dir.as_str());
    let mut statement = connection.prepare_cached(PATHS)?;
    let mut rows = statement.query(params![format!("{prefix}{after}"), SCAN_ROW_COUNT])?;
    let (mut found, mut row_count, mut last) = (Vec::new(), 0, String::new());
    while let Some(row) = rows.next()? {
        row_count += 1;
        let base_name = text(row, 1).ok().flatten();
        let Some(base_name) = base_name.and_then(|path| path.strip_prefix(&*prefix)) else {
            continue;
        };
        if accepts(base_name)
            && let Ok(path) = StorePath::from_base_name(base_name)
        {
            found.push((row.get(0)?, path));
        }
        last.clear();
        last.push_str(base_name);
    }
    let has_more = row_count == SCAN_ROW_COUNT && !last.is_empty();
    Ok(Scanned {
        found,
        next: has_more.then_some(last),
    })
}

/// Finds paths that refer to the path of the row `id`.
pub(crate) fn referrers(
    connection: &Connection,
    dir: &StoreDir,
    id: i64,
    count_max: usize,
) -> Result<Vec<StorePath>, StoreError> {
    let mut statement = connection.prepare_cached(REFERRERS)?;
    let mut rows = statement.query(params![id])?;
    let mut paths = Vec::new();
    while paths.len() < count_max
        && let Some(row) = rows.next()?
    {
        if let Some(path) = text(row, 0)? {
            paths.push(store_path(dir, path)?);
        }
    }
    Ok(paths)
}
