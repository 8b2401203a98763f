//! [`BuildIds`]: finds the paths with debug information of a build ID.
//!
//! # Theory of operation
//!
//! Builds that separate debug information put it into an output whose name ends with `-debug`, in
//! files `lib/debug/.build-id/<2 digits>/<rest>.debug`. The names of these files are read once for
//! each such path, and kept in a [`Table`]. Nothing is read before the first request for debug
//! information. Before each later look-up, only the paths that were added since are read.
//!
//! * **The Nix store.** While the [version](samovar_store::Version) of its database is the same,
//!   nothing is read. Otherwise the rows that are newer than the newest known row are read. If the
//!   newest known row is gone, if more than [`NEW_COUNT_MAX`] rows are new, and once per
//!   [`FULL_INTERVAL`], the names of all paths are read, which takes half a second for a million
//!   paths; deleted paths then leave the table.
//! * **The storage**, with uploaded paths and kept paths of upstreams. Rows with higher numbers
//!   than the highest known one are read, and the listing of each of their paths. Each cache has a
//!   separate table. Once per [`FULL_INTERVAL`], all names are read.
//!
//! The table proves nothing: a path in it may have been deleted, or a policy may hide it. The
//! caller reads the path as for any other request.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | build IDs in a table | 2,000,000 | 32 MiB |
//! | build IDs of one path | 65,536 | a hostile upload must not fill the table |
//! | requests that wait for a table | 32 | each occupies a thread |
//!
//! A request that waits lends its worker slot.

mod table;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use samovar_http::lend_slot;
use samovar_metrics::{Event, Observer};
use samovar_nix::{HashPart, StorePath};
use samovar_storage::metadata::CacheId;
use samovar_storage::{StorageError, StoredCache, browse};
use samovar_store::{Catalog, PageRequest, Place, Store, StoreError, Tree, TreeError, Version};

use crate::known::listing;
use crate::refusal::Refusal;
use crate::route::build_id::BuildId;
use crate::sync::Locked;
use table::{OF_PATH_MAX, Table};

/// End of the names of paths that are read.
const SUFFIX: &str = "-debug";

/// Directory of the files in such a path.
const DIRECTORY: [&str; 3] = ["lib", "debug", ".build-id"];

/// Time after which all names are read again, if anything was added or deleted.
const FULL_INTERVAL: Duration = Duration::from_secs(3600);

/// Maximum number of new rows of the Nix store that are read one by one.
const NEW_COUNT_MAX: usize = 4096;

/// Number of rows that are read first, and that are read at once if all of these are new.
const NEW_COUNTS: (usize, usize) = (8, 256);

/// Maximum number of requests that wait for a table.
const WAITING_COUNT_MAX: usize = 32;

/// The build IDs of a store and of the storage beside it.
#[derive(Debug, Default)]
pub(crate) struct BuildIds {
    store: Mutex<OfStore>,
    storages: Mutex<HashMap<CacheId, Arc<Mutex<OfStorage>>>>,
    waiting_count: AtomicUsize,
}

/// The build IDs of the Nix store.
#[derive(Debug, Default)]
struct OfStore {
    table: Table,
    /// The version that the table describes.
    version: Option<Version>,
    /// The newest path that was read.
    newest: Option<(i64, StorePath)>,
    /// Paths whose files are still to be read, or could not be read.
    unread: Vec<(i64, StorePath)>,
    /// Time of the last reading of all names.
    full_at: Option<Instant>,
}

/// The build IDs of one cache of the storage.
#[derive(Debug, Default)]
struct OfStorage {
    table: Table,
    /// Number of the newest path whose name was read.
    newest: i64,
    /// Paths whose listings are still to be read.
    unread: Vec<(i64, HashPart)>,
    full_at: Option<Instant>,
}

impl BuildIds {
    /// Returns the paths of the Nix store that may have debug information of a build ID.
    pub(crate) fn in_store(
        &self,
        store: &dyn Store,
        observer: &dyn Observer,
        id: &BuildId,
    ) -> Result<Vec<HashPart>, Refusal> {
        self.wait(|| {
            let mut of_store = self.store.locked();
            of_store.refresh(store, observer, Instant::now())?;
            let found = of_store.table.find(id);
            match found.is_empty() && !of_store.unread.is_empty() {
                // One of those that could not be read may have it.
                true => Err(Refusal::Unreadable),
                false => Ok(found),
            }
        })
    }

    /// Returns the paths of a cache of the storage that may have debug information of a build ID.
    pub(crate) fn in_storage(
        &self,
        stored: &StoredCache,
        observer: &dyn Observer,
        id: &BuildId,
    ) -> Result<Vec<HashPart>, Refusal> {
        let of_storage = Arc::clone(self.storages.locked().entry(stored.id()).or_default());
        self.wait(|| {
            let mut of_storage = of_storage.locked();
            let refreshed = of_storage.refresh(stored, Instant::now());
            refreshed.map_err(|error| {
                observer.event(&Event::StorageFailed(&error));
                Refusal::Unreadable
            })?;
            Ok(of_storage.table.find(id))
        })
    }

    /// Calls `look_up`, which may wait long, unless too many requests wait already.
    fn wait<T>(&self, look_up: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
        struct Waiting<'a>(&'a AtomicUsize);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let count = self.waiting_count.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting_count);
        match count < WAITING_COUNT_MAX {
            true => lend_slot(look_up),
            false => Err(Refusal::Unreadable),
        }
    }
}

impl OfStore {
    /// Reads the paths that were added since the last call.
    fn refresh(
        &mut self,
        store: &dyn Store,
        observer: &dyn Observer,
        now: Instant,
    ) -> Result<(), StoreError> {
        let version = || store.catalog().and_then(Catalog::version);
        let before = version();
        if before.is_some() && self.version == before && self.unread.is_empty() {
            return Ok(());
        }
        let new = match is_due(self.full_at, now) {
            true => None,
            false => self.newer(store)?,
        };
        let added = match new {
            Some(added) => added,
            None => self.all(store, now)?,
        };
        self.unread.extend(added);
        for (number, path) in std::mem::take(&mut self.unread) {
            let Ok(tree) = store.tree(&path) else {
                self.unread.push((number, path));
                continue;
            };
            match build_ids_of(&tree) {
                Ok(ids) => self.table.add(number, path.hash_part(), &ids),
                // The path was garbage-collected.
                Err(TreeError::Vanished) if tree.has_neighbours() => {}
                Err(error) => {
                    observer.event(&Event::PathFailed {
                        path: &path,
                        error: &io::Error::from(error),
                    });
                    self.unread.push((number, path));
                }
            }
        }
        self.table.sort();
        // If something was committed meanwhile, the next look-up reads again.
        self.version = before.filter(|before| version().as_ref() == Some(before));
        Ok(())
    }

    /// Returns the paths that are newer than the newest one that was read; `None` if all paths must
    /// be read.
    fn newer(&mut self, store: &dyn Store) -> Result<Option<Vec<(i64, StorePath)>>, StoreError> {
        let Some((newest, path)) = &self.newest else {
            return Ok(None);
        };
        let is_same = store
            .lookup(path.hash_part())?
            .is_some_and(|info| info.registration == Some(*newest) && info.path == *path);
        if !is_same {
            return Ok(None);
        }
        let (mut rows, mut before, mut count) = (Vec::new(), None, NEW_COUNTS.0);
        loop {
            let page = store.newest(before, count)?;
            let numbered = |info: samovar_nix::PathInfo| Some((info.registration?, info.path));
            let numbered = page.into_iter().filter_map(numbered);
            let new: Vec<_> = numbered.take_while(|(number, _)| number > newest).collect();
            before = new.last().map(|(number, _)| *number);
            let is_last = new.len() < count;
            count = NEW_COUNTS.1;
            rows.extend(new);
            if is_last {
                break;
            }
            if rows.len() > NEW_COUNT_MAX {
                return Ok(None);
            }
        }
        if let Some(first) = rows.first() {
            self.newest = Some(first.clone());
        }
        rows.retain(|(_, path)| is_read(path.name()));
        Ok(Some(rows))
    }

    /// Reads the names of all paths, and returns those that were not read yet.
    fn all(
        &mut self,
        store: &dyn Store,
        now: Instant,
    ) -> Result<Vec<(i64, StorePath)>, StoreError> {
        // Paths that are added during the scan may be missing in it.
        let newest = store.newest(None, 1)?.into_iter().next();
        let newest = newest.and_then(|info| Some((info.registration?, info.path)));
        let (mut found, mut after) = (Vec::new(), Some(String::new()));
        while let Some(from) = after {
            let scanned = store.scan(&from, &is_read)?;
            found.extend(scanned.found);
            after = scanned.next;
        }
        let valid: HashSet<_> = found
            .iter()
            .map(|(number, path)| (*number, path.hash_part()))
            .collect();
        self.table.retain(|path| valid.contains(path));
        self.unread.clear();
        let read: HashSet<_> = self.table.paths().iter().copied().collect();
        found.retain(|(number, path)| !read.contains(&(*number, path.hash_part())));
        found.sort_unstable();
        (self.newest, self.full_at) = (newest, Some(now));
        Ok(found)
    }
}

impl OfStorage {
    /// Reads the paths that were published since the last call.
    fn refresh(&mut self, stored: &StoredCache, now: Instant) -> Result<(), StorageError> {
        let is_full = is_due(self.full_at, now);
        let mut newest = if is_full { 0 } else { self.newest };
        let (mut found, mut after) = (Vec::new(), Some(newest));
        while let Some(from) = after {
            let page = browse::named(stored, from, &is_read)?;
            found.extend(page.found);
            newest = page.last;
            after = page.next;
        }
        if is_full {
            let valid: HashSet<_> = found.iter().copied().collect();
            self.table.retain(|path| valid.contains(path));
            let read: HashSet<_> = self.table.paths().iter().copied().collect();
            found.retain(|path| !read.contains(path));
            self.unread.clear();
            self.full_at = Some(now);
        }
        self.newest = newest;
        self.unread.extend(found);
        // Read the oldest path first.
        self.unread.sort_unstable_by(|one, other| other.cmp(one));
        while let Some((number, hash_part)) = self.unread.last().copied() {
            let ids = build_ids_in_storage(stored, hash_part)?;
            self.unread.pop();
            self.table.add(number, hash_part, &ids);
        }
        self.table.sort();
        Ok(())
    }
}

fn is_due(full_at: Option<Instant>, now: Instant) -> bool {
    full_at.is_none_or(|at| now.saturating_duration_since(at) >= FULL_INTERVAL)
}

/// Whether a path with this name, or base name, is read.
fn is_read(name: &str) -> bool {
    name.ends_with(SUFFIX)
}

/// Returns the build IDs of the files of a path.
fn build_ids_of(tree: &Tree) -> Result<Vec<BuildId>, TreeError> {
    let asked = PageRequest {
        skip: 0,
        count_max: OF_PATH_MAX,
    };
    let directory = DIRECTORY.map(str::as_bytes);
    let entries = |names: &[&[u8]]| match tree.place(names, asked)? {
        Some(Place::Directory(page)) => Ok::<_, TreeError>(page.entries),
        _ => Ok(Vec::new()),
    };
    let mut ids = Vec::new();
    for outer in entries(&directory)? {
        if outer.name.len() == 2 && ids.len() < OF_PATH_MAX {
            let names = [&directory[..], &[&outer.name]].concat();
            let files = entries(&names)?.into_iter();
            ids.extend(files.filter_map(|file| BuildId::of_names(&outer.name, &file.name)));
        }
    }
    Ok(ids)
}

/// Returns the build IDs of the files of a path in the storage.
fn build_ids_in_storage(
    stored: &StoredCache,
    hash_part: HashPart,
) -> Result<Vec<BuildId>, StorageError> {
    let mut ids = Vec::new();
    let listing = stored
        .peek(hash_part)
        .and_then(|path| path.map_or(Ok(None), |path| browse::listing(stored, &path)));
    let listing = match listing {
        Ok(Some(listing)) => listing,
        Ok(None) | Err(StorageError::Damaged(_)) => return Ok(ids),
        Err(error) => return Err(error),
    };
    let enters = |names: &[String]| {
        let mut pairs = names.iter().zip(DIRECTORY);
        names.len() <= DIRECTORY.len() + 2 && pairs.all(|(name, wanted)| name == wanted)
    };
    let walked = listing::walk(listing, &enters, &mut |names, _| {
        if let [.., directory, file] = names
            && names.len() == DIRECTORY.len() + 2
            && ids.len() < OF_PATH_MAX
        {
            ids.extend(BuildId::of_names(directory.as_bytes(), file.as_bytes()));
        }
    });
    // A path with a malformed listing counts as one without files: requests find none in it,
    // either.
    Ok(walked.map_or_else(|_malformed| Vec::new(), |()| ids))
}
