//! NAR plans of paths: the offsets of all files in a NAR, bounded in memory.
//!
//! With a plan, a range of a NAR is sent without reading the bytes before it, and a listing is made
//! without reading the files. A plan is valid for one registration of a path and one root on the
//! disk. If a path is registered again, repaired or replaced, or a reader finds that the files
//! differ from the plan, a new plan is made.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use samovar_metrics::CacheStatus;
use samovar_nix::{HashPart, NarHash};
use samovar_store::{Identity, NarPlan, NarReader, PlanError, Tree, TreeError};

use crate::known::registration::{Registration, wrong_size};
use crate::known::row::Row;
use crate::known::sharded::{MemoryLen, Sharded};

/// Memory for all plans, in bytes. A node of a tree takes about 25 bytes, so this is enough for
/// 600,000 nodes.
const MEMORY_LEN_MAX: usize = 16 << 20;

/// Memory for one plan, in bytes: it must fit into half of the table. Trees of more than 300,000
/// nodes have no plan, so their ranges and listings walk the tree.
const PLAN_LEN_MAX: usize = MEMORY_LEN_MAX / 2 - 1024;

/// Ranges that start before this offset, in bytes, do not cause a tree to be planned, and NARs
/// smaller than this are sent without looking for a plan: walking so far is cheaper.
const PLANNED_FROM: u64 = 1 << 20;

/// The NAR plans of recently used paths.
#[derive(Debug)]
pub(crate) struct Plans {
    entries: Sharded<Entry>,
    hit_count: AtomicU64,
    miss_count: AtomicU64,
}

#[derive(Debug, Clone)]
struct Entry {
    stamp: Stamp,
    /// The plan of the tree; `None` if it would be too large.
    plan: Option<Arc<NarPlan>>,
}

/// The registration and root for which a plan is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    nar_hash: NarHash,
    registration: Option<i64>,
    registration_time: i64,
    root: Identity,
}

impl Default for Plans {
    fn default() -> Self {
        Self {
            entries: Sharded::new(1, MEMORY_LEN_MAX, Arc::default()),
            hit_count: AtomicU64::new(0),
            miss_count: AtomicU64::new(0),
        }
    }
}

impl Plans {
    /// Returns the entry of a path, if it is valid for this row and for the root of its files.
    fn find(&self, row: &Row, root: Identity) -> Option<Entry> {
        let entry = self.entries.find(&row.path.hash_part());
        let known = entry.filter(|entry| {
            let has_failed = entry.plan.as_ref().is_some_and(|plan| plan.has_failed());
            entry.stamp == Stamp::new(row, root) && !has_failed
        });
        let counter = match known {
            Some(_) => &self.hit_count,
            None => &self.miss_count,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        known
    }

    fn insert(&self, row: &Row, root: Identity, plan: Option<&Arc<NarPlan>>) {
        let entry = Entry {
            stamp: Stamp::new(row, root),
            plan: plan.cloned(),
        };
        self.entries.insert(row.path.hash_part(), entry);
    }

    pub(crate) fn status(&self) -> CacheStatus {
        CacheStatus {
            hit_count: self.hit_count.load(Ordering::Relaxed),
            miss_count: self.miss_count.load(Ordering::Relaxed),
            ..self.entries.status("plans")
        }
    }
}

impl Stamp {
    fn new(row: &Row, root: Identity) -> Self {
        Self {
            nar_hash: row.nar_hash,
            registration: row.registration,
            registration_time: row.registration_time,
            root,
        }
    }
}

impl MemoryLen for Entry {
    fn memory_len(&self) -> usize {
        let plan = self.plan.as_ref().map_or(0, |plan| plan.memory_len());
        2 * (size_of::<HashPart>() + size_of::<Self>()) + plan
    }
}

impl Plans {
    /// Returns a reader of the NAR from offset `start`. An existing plan saves listing and sorting
    /// directories.
    pub(crate) fn nar_from(
        &self,
        registration: &Registration,
        tree: &Tree,
        start: u64,
    ) -> io::Result<NarReader> {
        if let Some(plan) = self.plan_of_nar(registration, tree, start)? {
            match tree.nar_at(&plan, start) {
                // The files were just replaced. The stale plan will not be used again, so walk the
                // tree.
                Err(TreeError::Changed) => {}
                outcome => return Ok(outcome?),
            }
        }
        let mut reader = tree.nar()?;
        reader.skip_to(start)?;
        Ok(reader)
    }

    /// Returns the plan of a tree, which is made if necessary. `None`: the caller must walk the
    /// tree, and check at the end that the registration is still current.
    pub(crate) fn plan(
        &self,
        registration: &Registration,
        tree: &Tree,
    ) -> io::Result<Option<Arc<NarPlan>>> {
        match self.find(&registration.row, tree.identity()?) {
            Some(known) => Ok(known.plan),
            None => self.make_plan(registration, tree),
        }
    }

    fn plan_of_nar(
        &self,
        registration: &Registration,
        tree: &Tree,
        start: u64,
    ) -> io::Result<Option<Arc<NarPlan>>> {
        if registration.row.nar_size < PLANNED_FROM {
            return Ok(None);
        }
        if start >= PLANNED_FROM {
            return self.plan(registration, tree);
        }
        let known = self.find(&registration.row, tree.identity()?);
        Ok(known.and_then(|known| known.plan))
    }

    fn make_plan(
        &self,
        registration: &Registration,
        tree: &Tree,
    ) -> io::Result<Option<Arc<NarPlan>>> {
        let row = &registration.row;
        let plan = match tree.plan(PLAN_LEN_MAX) {
            Ok(plan) => Arc::new(plan),
            Err(PlanError::Tree(error)) => return Err(error.into()),
            Err(PlanError::TooLarge) => {
                self.insert(row, tree.identity()?, None);
                return Ok(None);
            }
            Err(_) => return Ok(None),
        };
        // A size of 0 in the row means that the size is unknown.
        if plan.nar_size() != row.nar_size && row.nar_size != 0 {
            let is_shorter = plan.nar_size() < row.nar_size;
            return Err(wrong_size(if is_shorter { "shorter" } else { "longer" }));
        }
        // If the path was registered anew meanwhile, the plan may mix the files of both
        // registrations.
        if registration.is_current() != Ok(true) {
            return Ok(None);
        }
        self.insert(row, plan.root(), Some(&plan));
        Ok(Some(plan))
    }
}

#[cfg(test)]
mod tests {
    use samovar_nix::StorePath;

    use super::*;

    fn row(number: u8) -> Row {
        let hash_part = HashPart::from_bytes([number; 20]);
        Row {
            path: StorePath::from_base_name(&format!("{hash_part}-x")).unwrap(),
            nar_hash: NarHash::from_bytes([number; 32]),
            nar_size: 0,
            registration: Some(1),
            registration_time: 1,
        }
    }

    /// Makes a tree whose plan takes about 100 KB.
    fn tree() -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..400 {
            let name = format!("{number:0>240}");
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let tree = Tree::of_files(dir.path().to_owned());
        (dir, tree)
    }

    #[test]
    fn memory_is_bounded_and_used_plans_stay() {
        let plans = Plans::default();
        let (_dir, tree) = tree();
        let plan = Arc::new(tree.plan(1 << 20).unwrap());
        assert!(plan.memory_len() > 90_000);
        plans.insert(&row(255), plan.root(), Some(&plan));
        for number in 0..250 {
            plans.insert(&row(number), plan.root(), Some(&plan));
            let favourite = plans.find(&row(255), plan.root());
            assert!(favourite.is_some_and(|entry| entry.plan.is_some()));
            let status = plans.status();
            assert!(
                status.len > 0 && status.len <= MEMORY_LEN_MAX as u64,
                "{status:?}"
            );
        }
        assert!(plans.find(&row(0), plan.root()).is_none());
        assert!(plans.find(&row(249), plan.root()).is_some());
    }

    #[test]
    fn a_plan_is_valid_for_one_registration_and_root() {
        let plans = Plans::default();
        let (dir, tree) = tree();
        let plan = Arc::new(tree.plan(1 << 20).unwrap());
        let root = plan.root();
        plans.insert(&row(1), root, Some(&plan));
        let is_known = |row: &Row, root| plans.find(row, root).is_some();
        assert!(is_known(&row(1), root));
        assert!(!is_known(&row(2), root));
        let again = Row {
            registration: Some(2),
            ..row(1)
        };
        assert!(!is_known(&again, root));
        let other = Row {
            nar_hash: NarHash::from_bytes([2; 32]),
            ..row(1)
        };
        assert!(!is_known(&other, root));
        std::fs::write(dir.path().join("new"), "").unwrap();
        assert!(!is_known(&row(1), tree.identity().unwrap()));
        assert!(is_known(&row(1), root));
        // A reader detects the change, and the plan is not used again.
        assert!(tree.nar_at(&plan, 0).is_err());
        assert!(!is_known(&row(1), root));

        plans.insert(&row(1), root, None);
        assert!(
            plans
                .find(&row(1), root)
                .is_some_and(|entry| entry.plan.is_none())
        );
    }
}
