//! Inspects what a storage has on other machines, for `samovar doctor`.

use std::collections::HashMap;

use samovar_nix::StorePath;

use crate::error::StorageError;
use crate::location::Location;
use crate::metadata::{CacheSummary, NodeState, caches, check, nodes, tokens};
use crate::objects::Objects;
use crate::storage::open_database;
use crate::store_id;
use crate::token::{self, Token};

/// What was found about a storage that has its objects in a bucket.
#[derive(Debug, Clone, Default)]
pub struct RemoteInspection {
    /// The PostgreSQL server; `None`: the database is in the local directory.
    pub server: Option<DatabaseServer>,
    /// The nodes that share the database, by name.
    pub nodes: Vec<NodeState>,
    /// Why the bucket is not that of the database. `None`: it is, or it cannot be reached.
    pub bucket_fault: Option<String>,
    /// All tokens.
    pub tokens: Vec<Token>,
    /// All caches.
    pub caches: Vec<CacheSummary>,
    /// The newest path of each cache, by the cache's name.
    pub newest: HashMap<String, StorePath>,
}

/// What a PostgreSQL server says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseServer {
    /// Its version, such as `15.14`.
    pub version: String,
    /// Number of seconds by which its clock is ahead of that of this machine.
    pub clock_ahead_s: i64,
    /// Number of its standbys that are connected.
    pub standby_count: u64,
    /// Its setting `synchronous_standby_names`; empty: commits wait for no standby.
    pub synchronous_standbys: String,
    /// Its setting `synchronous_commit`.
    pub synchronous_commit: String,
}

/// Inspects a storage that has its objects in a bucket. Creates the tables of a new database, as
/// the server does.
///
/// # Errors
///
/// Any [`StorageError`].
pub fn inspect_remote(location: &Location) -> Result<RemoteInspection, StorageError> {
    let database = open_database(location)?;
    let compared = match location.bucket() {
        Some(_) => Objects::open(location).and_then(|it| store_id::compare(&it, &database)),
        None => Ok(true),
    };
    let mut found = RemoteInspection {
        bucket_fault: match compared {
            // The check of the bucket itself reports it.
            Ok(_) | Err(StorageError::Bucket(_)) => None,
            Err(error) => Some(error.to_string()),
        },
        tokens: tokens::all(&database)?,
        caches: caches::all(&database)?,
        nodes: nodes::list(&database)?,
        ..RemoteInspection::default()
    };
    for cache in &found.caches {
        if let Some(row) = caches::find(&database, &cache.name)?
            && let Some(newest) = check::newest_paths(&database, row.id, 1)?.pop()
        {
            found.newest.insert(cache.name.clone(), newest.path);
        }
    }
    if location.database().is_some() {
        let query = "select current_setting('server_version'), \
                     current_setting('synchronous_standby_names'), \
                     current_setting('synchronous_commit'), \
                     (select count(*) from pg_stat_replication)";
        let server = database.read(|connection| {
            connection.row(query, &[], |row| {
                Ok(DatabaseServer {
                    version: row.get(0)?,
                    synchronous_standbys: row.get(1)?,
                    synchronous_commit: row.get(2)?,
                    standby_count: row.get::<i64>(3)?.unsigned_abs(),
                    clock_ahead_s: database.now() - token::now(),
                })
            })
        });
        found.server = Some(server?);
    }
    Ok(found)
}
