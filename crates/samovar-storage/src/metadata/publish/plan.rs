//! [`Plan`]: decides what is published.

use std::collections::{HashMap, HashSet};

use samovar_nix::HashPart;

use super::super::limits::{OWN_LEN, over};
use super::super::paths::joined;
use super::super::rows::path_of;
use super::super::{CacheId, NewPath, Published};
use super::stored::{KnownPath, PathRow, Stored, StoredCache};
use crate::error::StorageError;

/// What a transaction that publishes paths will write.
#[derive(Debug)]
pub(super) struct Plan<'n> {
    /// The rows as they are and, for paths that will be published, as they will be.
    stored: Stored,
    pub(super) inserts: Vec<Insert<'n>>,
    /// The paths whose use now must be recorded.
    pub(super) uses: Vec<i64>,
    /// The NARs that are condemned and must be revived.
    pub(super) revivals: Vec<i64>,
    pub(super) updates: Vec<Update>,
    /// The caches whose deletion is complete and that must be added again.
    pub(super) restored: HashSet<CacheId>,
}

/// A path to insert.
#[derive(Debug)]
pub(super) struct Insert<'n> {
    pub(super) new: &'n NewPath,
    pub(super) sigs: String,
    /// Length of the path without its NAR, in bytes.
    pub(super) own_len: u64,
    pub(super) references: Vec<PathRow>,
    /// Base names of the references that are not in the cache.
    pub(super) outer: Vec<&'n str>,
}

/// A change of a path that the cache has.
#[derive(Debug)]
pub(super) struct Update {
    pub(super) id: i64,
    pub(super) key: (CacheId, HashPart),
    pub(super) value: Updated,
}

#[derive(Debug)]
pub(super) enum Updated {
    Nar(i64),
    Sigs(String),
}

/// What undoes the decisions about a group.
struct Mark {
    insert_count: usize,
    use_count: usize,
    revival_count: usize,
    update_count: usize,
    caches: HashMap<CacheId, StoredCache>,
    /// The known paths that were replaced, in this order. `None`: there was none.
    paths: Vec<((CacheId, HashPart), Option<KnownPath>)>,
    used_nars: Vec<(CacheId, i64)>,
    /// The signatures and lengths of inserts of other groups that were changed, in this order.
    sigs: Vec<(usize, String, u64)>,
    restored: Vec<CacheId>,
}

impl<'n> Plan<'n> {
    pub(super) fn new(stored: Stored) -> Self {
        Self {
            stored,
            inserts: Vec::new(),
            uses: Vec::new(),
            revivals: Vec::new(),
            updates: Vec::new(),
            restored: HashSet::new(),
        }
    }

    /// Decides about the paths of a group. If one of them cannot be published, plans nothing.
    pub(super) fn decide(&mut self, group: &'n [NewPath]) -> Result<Vec<Published>, StorageError> {
        let mut mark = self.mark(group);
        let outcomes = group.iter().map(|new| self.decide_one(new, &mut mark));
        let outcomes = outcomes.collect::<Result<Vec<_>, _>>()?;
        if !outcomes.iter().all(Published::is_success) {
            self.undo(mark);
        }
        Ok(outcomes)
    }

    fn mark(&self, group: &[NewPath]) -> Mark {
        let caches: HashSet<CacheId> = group.iter().map(|new| new.cache).collect();
        let row = |cache: CacheId| Some((cache, *self.stored.caches.get(&cache)?));
        Mark {
            insert_count: self.inserts.len(),
            use_count: self.uses.len(),
            revival_count: self.revivals.len(),
            update_count: self.updates.len(),
            caches: caches.into_iter().filter_map(row).collect(),
            paths: Vec::new(),
            used_nars: Vec::new(),
            sigs: Vec::new(),
            restored: Vec::new(),
        }
    }

    fn undo(&mut self, mark: Mark) {
        for (index, sigs, own_len) in mark.sigs.into_iter().rev() {
            let insert = &mut self.inserts[index];
            (insert.sigs, insert.own_len) = (sigs, own_len);
        }
        self.inserts.truncate(mark.insert_count);
        self.uses.truncate(mark.use_count);
        self.revivals.truncate(mark.revival_count);
        self.updates.truncate(mark.update_count);
        self.stored.caches.extend(mark.caches);
        for (key, path) in mark.paths.into_iter().rev() {
            match path {
                Some(path) => self.stored.paths.insert(key, path),
                None => self.stored.paths.remove(&key),
            };
        }
        for used in mark.used_nars {
            self.stored.used_nars.remove(&used);
        }
        for cache in mark.restored {
            self.restored.remove(&cache);
        }
    }

    fn decide_one(&mut self, new: &'n NewPath, mark: &mut Mark) -> Result<Published, StorageError> {
        if let Some(token) = new.token {
            match self.stored.tokens.get(&token) {
                None => return Ok(Published::TokenInvalid),
                Some(Some(names)) if !names.matches(new.path.name()) => {
                    return Ok(Published::OtherName(names.clone()));
                }
                Some(_) => {}
            }
        }
        let Some(cache) = self.stored.caches.get(&new.cache) else {
            return Ok(Published::CacheDeleted);
        };
        if cache.is_deleted && self.restored.insert(new.cache) {
            mark.restored.push(new.cache);
        }
        let Some(nar) = self.stored.nars.get(&new.nar_id).copied() else {
            return Ok(Published::MissingNar);
        };
        if nar.is_lost() {
            return Ok(Published::MissingNar);
        }
        let key = (new.cache, new.path.hash_part());
        let known = self.stored.paths.get(&key).cloned();
        if let Some(known) = &known
            && known.name != new.path.name()
        {
            let path = path_of(new.path.hash_part(), &known.name)?;
            return Ok(Published::OtherPath(path));
        }
        if nar.state == 2 {
            self.revivals.push(new.nar_id);
        }
        Ok(match known {
            Some(known) => self.publish_again(new, known, mark),
            None => self.insert(new, mark),
        })
    }

    /// Publishes a path that already exists.
    fn publish_again(
        &mut self,
        new: &'n NewPath,
        mut known: KnownPath,
        mark: &mut Mark,
    ) -> Published {
        let key = (new.cache, new.path.hash_part());
        self.record_use(&known);
        known.is_unrecorded = false;
        let Some(nar) = self.stored.nars.get(&new.nar_id).copied() else {
            return Published::MissingNar;
        };
        if known.nar.nar_hash != nar.nar_hash && !known.nar.is_lost() {
            return Published::Conflict;
        }
        if known.nar_id != new.nar_id && known.nar.is_lost() {
            // The path's first NAR is lost, so the new one replaces it.
            (known.nar_id, known.nar) = (new.nar_id, nar);
            if let PathRow::Stored(id) = known.row {
                let value = Updated::Nar(new.nar_id);
                self.updates.push(Update { id, key, value });
            }
            self.use_nar(new, mark);
        }
        let sigs = joined(&known.sigs, &new.signatures);
        let added_len = sigs.len().saturating_sub(known.sigs.len()) as u64;
        if let Some(used) = self.add_len(new, 0, added_len) {
            return Published::OverLimit { used };
        }
        if sigs != known.sigs {
            known.sigs.clone_from(&sigs);
            match known.row {
                PathRow::Stored(id) => {
                    let value = Updated::Sigs(sigs);
                    self.updates.push(Update { id, key, value });
                }
                PathRow::New(index) => {
                    let insert = &mut self.inserts[index];
                    let replaced = std::mem::replace(&mut insert.sigs, sigs);
                    mark.sigs.push((index, replaced, insert.own_len));
                    insert.own_len += added_len;
                }
            }
        }
        mark.paths.push((key, self.stored.paths.insert(key, known)));
        Published::Known
    }

    /// Publishes a path that does not exist yet.
    fn insert(&mut self, new: &'n NewPath, mark: &mut Mark) -> Published {
        let key = (new.cache, new.path.hash_part());
        let Some(nar) = self.stored.nars.get(&new.nar_id).copied() else {
            return Published::MissingNar;
        };
        let is_counted = self.stored.used_nars.contains(&(new.cache, new.nar_id));
        let sigs = joined("", &new.signatures);
        let own_len = own_len(new, &sigs);
        let file_size = if is_counted { 0 } else { nar.file_size };
        if let Some(used) = self.add_len(new, file_size, own_len) {
            return Published::OverLimit { used };
        }
        self.use_nar(new, mark);
        let (mut references, mut outer, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for reference in &new.references {
            let known = self
                .stored
                .paths
                .get(&(new.cache, reference.path.hash_part()));
            match known.filter(|known| known.name == reference.path.name()) {
                Some(known) => {
                    references.push(known.row);
                    if let (true, PathRow::Stored(id)) = (known.is_unrecorded, known.row) {
                        self.uses.push(id);
                    }
                }
                None if reference.is_elsewhere => outer.push(reference.path.base_name()),
                None => missing.push(reference.path.clone()),
            }
        }
        let path = KnownPath {
            row: PathRow::New(self.inserts.len()),
            name: new.path.name().to_owned(),
            sigs: sigs.clone(),
            nar_id: new.nar_id,
            nar,
            is_unrecorded: false,
        };
        self.inserts.push(Insert {
            new,
            sigs,
            own_len,
            references,
            outer,
        });
        mark.paths.push((key, self.stored.paths.insert(key, path)));
        match missing.is_empty() {
            true => Published::New,
            // The path stays until the group is undone, so that later paths of the group do not
            // report it as missing.
            false => Published::MissingReferences(missing),
        }
    }

    /// Adds lengths to what a cache stores. Returns the used part of the limit if they would exceed
    /// it, and adds nothing then.
    fn add_len(&mut self, new: &NewPath, file_size: u64, own_len: u64) -> Option<u64> {
        let cache = self.stored.caches.get_mut(&new.cache)?;
        let stored = (cache.file_bytes, cache.extra_bytes);
        let used = over(stored, new.limit, file_size, own_len);
        if used.is_none() {
            cache.file_bytes += file_size;
            cache.extra_bytes += own_len;
        }
        used
    }

    fn record_use(&mut self, known: &KnownPath) {
        if let (true, PathRow::Stored(id)) = (known.is_unrecorded, known.row) {
            self.uses.push(id);
        }
    }

    /// Notes that a path of the cache uses the NAR, whose file then counts once.
    fn use_nar(&mut self, new: &NewPath, mark: &mut Mark) {
        let used = (new.cache, new.nar_id);
        if self.stored.used_nars.insert(used) {
            mark.used_nars.push(used);
        }
    }
}

/// Returns the length of a new path without its NAR, in bytes.
fn own_len(new: &NewPath, sigs: &str) -> u64 {
    let references = new.references.iter();
    let references: usize = references.map(|new| new.path.base_name().len()).sum();
    OWN_LEN + (references + sigs.len()) as u64
}
