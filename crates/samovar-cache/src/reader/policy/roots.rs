//! Computes the closures of the roots in policies, and keeps them up to date.
//!
//! # Theory of operation
//!
//! One low-priority thread per cache checks about twice a second to which store paths the roots of
//! each rule lead, and whether these paths have the same registration as before. If both
//! are unchanged, so is the closure: the references of a valid path never change and stay valid as
//! long as the path does. If the roots lead to additional store paths only, only the references of
//! these are read, otherwise all references.
//!
//! A deny rule also hides uploaded paths, and the store may collect what its roots lead to. So its
//! closure always contains the targets themselves, follows the references of uploaded paths where
//! the store has no row, and keeps its members as long as the roots lead to the same paths.
//!
//! If the roots cannot be followed, the closures become unknown. If the store cannot be read, the
//! last closures stay in use: they describe the store as it was last read, and no new paths are
//! served meanwhile.
//!
//! Before a policy replaces another one, its roots are followed once, so that no request finds its
//! closures unknown ([`RootsCheck::first`]).

mod links;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use samovar_metrics::Event;
use samovar_nix::{HashPart, NarHash, StorePath};
use samovar_storage::{StorageError, StoredCache};
use samovar_store::{Catalog, Store, StoreError, Version};

use crate::known::shared_store::SharedStore;
use crate::sync::{LowPriority, unpoisoned};
pub(super) use links::{LinkTarget, follow};

/// Interval between checks of the roots, so that new targets are served within a second.
const INTERVAL: Duration = Duration::from_millis(400);

/// Number of rows per query of the store.
const STEP_COUNT: usize = 256;

/// Maximum number of symbolic links in a row, which is also the kernel's limit.
const HOP_COUNT_MAX: usize = 40;

/// Maximum depth of nested directories. Nix uses three.
const DEPTH_MAX: usize = 16;

/// Maximum time for the first checks of the roots of all new policies.
pub(crate) const FIRST_CHECK_TIME: Duration = Duration::from_secs(60);

/// Increment of the nice value, which ranges from 0 (normal) to 19 (lowest priority).
const NICENESS: i32 = 5;

/// The roots of one rule, as configured.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RuleRoots {
    pub(super) roots: Vec<PathBuf>,
    /// Whether this is a deny rule. A missing root of a deny rule is an error, because it may have
    /// led to paths that must not be read. A missing root of an allow rule just leads to no path.
    pub(super) denies: bool,
}

/// The roots of all rules of a policy, and their closures if these are known.
#[derive(Debug)]
pub(crate) struct Roots {
    rules: Vec<RuleRoots>,
    /// The results of the last check, from which the next one goes on.
    closures: RwLock<Vec<Closure>>,
    sets: RwLock<Option<Arc<Sets>>>,
    /// Number of changes of the closures so far.
    generation: AtomicU64,
}

/// The closure of the roots of each rule, sorted: 20 bytes of memory per path.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sets(Vec<Box<[HashPart]>>);

impl Sets {
    pub(super) fn contains(&self, index: usize, hash_part: &HashPart) -> bool {
        let set = self.0.get(index);
        set.is_some_and(|set| set.binary_search(hash_part).is_ok())
    }
}

/// The reason why a root cannot be followed.
#[derive(Debug, thiserror::Error)]
#[error("{path:?}: {error}")]
pub(crate) struct RootsError {
    path: PathBuf,
    error: io::Error,
}

impl Roots {
    pub(super) fn new(rules: Vec<RuleRoots>) -> Self {
        let known = rules.is_empty().then(Arc::default);
        Self {
            closures: RwLock::new(vec![Closure::default(); rules.len()]),
            rules,
            sets: RwLock::new(known),
            generation: AtomicU64::new(0),
        }
    }

    /// Computes the closures once. They are not kept up to date.
    pub(super) fn compute(&self, store: &dyn Store) -> Result<(), RootsCheckError> {
        let closure = |rule: &RuleRoots| {
            let targets = rule.store_paths(store.store_dir());
            let targets = targets.map_err(RootsCheckError::Roots)?;
            let closure = Closure::default().now(&Source::of(rule, store, None), targets);
            Ok(closure?.sorted())
        };
        let sets: Result<_, RootsCheckError> = self.rules.iter().map(closure).collect();
        self.publish(Some(Arc::new(Sets(sets?))));
        Ok(())
    }

    /// Returns the closures; `None` while they are unknown.
    pub(super) fn sets(&self) -> Option<Arc<Sets>> {
        let sets = unpoisoned(self.sets.read());
        sets.clone()
    }

    /// Whether the policy has roots, so that they must be watched.
    pub(crate) fn is_used(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Takes over the closures of rules that `before` has, too: they may have members that neither
    /// the store nor the uploaded paths know any more.
    pub(super) fn inherit(&self, before: &Self) {
        let known = unpoisoned(before.closures.read());
        let mut closures = unpoisoned(self.closures.write());
        for (rule, closure) in self.rules.iter().zip(&mut *closures) {
            let same = before.rules.iter().position(|before| before == rule);
            if let Some(known) = same.and_then(|at| known.get(at)) {
                *closure = known.clone();
            }
        }
        if before.rules == self.rules {
            self.publish(before.sets());
        }
    }

    #[cfg(test)]
    pub(super) fn set(&self, sets: Option<Vec<Box<[HashPart]>>>) {
        self.publish(sets.map(|sets| Arc::new(Sets(sets))));
    }

    /// Returns a number that grows with each change of the closures. Callers must read it before
    /// they decide about a path.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn publish(&self, sets: Option<Arc<Sets>>) {
        let mut current = unpoisoned(self.sets.write());
        if *current != sets {
            *current = sets;
            drop(current);
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// The thread that checks the roots of one cache. Dropping this ends the thread.
#[derive(Debug)]
pub(crate) struct RootsWatch {
    /// The thread ends when this channel is closed. The field is declared first, so it is dropped
    /// before `thread`, which waits for the thread.
    _running: Sender<()>,
    thread: LowPriority,
}

impl RootsWatch {
    pub(crate) fn start(mut check: RootsCheck) -> io::Result<Self> {
        let (running, end) = channel();
        let thread = LowPriority::start("roots", NICENESS, move || {
            loop {
                check.run();
                if end.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        })?;
        Ok(Self {
            _running: running,
            thread,
        })
    }

    /// Ends the thread without waiting for it, because it may be waiting for a disk.
    pub(crate) fn retire(mut self) {
        self.thread.detach();
    }
}

/// What the thread of one cache needs to check the roots in its policy, and what the last check
/// found.
#[derive(Debug)]
pub(crate) struct RootsCheck {
    shared: Arc<SharedStore>,
    roots: Arc<Roots>,
    /// The uploaded paths of the cache; `None` if it is read-only.
    uploaded: Option<StoredCache>,
    /// The closures of the roots, one for each rule.
    closures: Vec<Closure>,
    /// The version of the store of which `closures` were computed; `None` if it is unknown.
    version: Option<Version>,
    has_failed: bool,
}

/// The store paths that the roots of a rule lead to, and their closure.
#[derive(Debug, Default, Clone)]
struct Closure {
    targets: Vec<Target>,
    members: Arc<HashSet<HashPart>>,
    /// Members whose references are unknown, because neither the store nor the uploaded paths have
    /// them. Only of deny rules.
    ends: Vec<HashPart>,
}

/// Where the references of paths are looked up.
struct Source<'a> {
    store: &'a dyn Store,
    /// For deny rules: the uploaded paths of the cache.
    uploaded: Option<&'a StoredCache>,
    denies: bool,
}

/// A store path to which a root leads, and its registration if it is valid. If two checks find the
/// same registration, the path was valid all the time in between.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    path: StorePath,
    registered: Option<(Option<i64>, i64, NarHash)>,
}

/// The reason why the closures of a policy's roots cannot be computed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RootsCheckError {
    #[error("the root of a policy cannot be followed: {0}")]
    Roots(RootsError),
    #[error("the closures of the roots of a policy cannot be computed: {0}")]
    Store(StoreError),
    #[error("the closures of the roots of a policy cannot be computed: {0}")]
    Storage(StorageError),
    /// The first check exceeded its time limit.
    #[error("computing the closures of the roots of a policy takes too long")]
    Late,
}

impl RootsCheck {
    pub(crate) fn new(
        shared: Arc<SharedStore>,
        roots: Arc<Roots>,
        uploaded: Option<StoredCache>,
    ) -> Self {
        let closures = unpoisoned(roots.closures.read()).clone();
        Self {
            shared,
            roots,
            uploaded,
            closures,
            version: None,
            has_failed: false,
        }
    }

    /// Checks the roots of a new policy once, before the policy is used. The check runs on another
    /// thread, and fails at `deadline`, because a disk may hang.
    pub(crate) fn first(mut self, deadline: Instant) -> Result<Self, RootsCheckError> {
        let (sender, outcome) = channel();
        let thread = std::thread::Builder::new().name("roots-first".into());
        let spawned = thread.spawn(move || {
            let result = self.try_run();
            // Sending fails if the receiver has reached its time limit.
            sender.send(result.map(|()| self)).ok();
        });
        let left = deadline.saturating_duration_since(Instant::now());
        match spawned.map(|_| outcome.recv_timeout(left)) {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(RootsCheckError::Late),
        }
    }

    fn run(&mut self) {
        let outcome = self.try_run();
        let shared = &self.shared;
        match outcome {
            Err(RootsCheckError::Roots(error)) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    shared.observer.event(&Event::RootsFailed(&error));
                }
                self.roots.publish(None);
            }
            outcome => {
                if std::mem::take(&mut self.has_failed) {
                    shared.observer.event(&Event::RootsRecovered);
                }
                match outcome {
                    Err(RootsCheckError::Store(error)) => shared.note(error),
                    Err(RootsCheckError::Storage(error)) => {
                        shared.observer.event(&Event::StorageFailed(&error));
                    }
                    _ => {}
                }
            }
        }
    }

    fn try_run(&mut self) -> Result<(), RootsCheckError> {
        let (shared, roots) = (Arc::clone(&self.shared), Arc::clone(&self.roots));
        let targets = roots
            .rules
            .iter()
            .map(|rule| rule.store_paths(shared.store.store_dir()))
            .collect::<Result<Vec<_>, _>>();
        let targets = targets.map_err(RootsCheckError::Roots)?;
        // Not the catalog's epoch: this thread must not load the hash parts of an idle server.
        let version = || shared.store.catalog().and_then(Catalog::version);
        let before = version();
        let is_known = before.is_some() && before == self.version && roots.sets().is_some();
        let is_same = |(known, targets): (&Closure, &BTreeSet<StorePath>)| {
            known.targets.iter().map(|target| &target.path).eq(targets)
                && !known.has_uploaded_end(self.uploaded.as_ref())
        };
        if is_known && self.closures.iter().zip(&targets).all(is_same) {
            return Ok(());
        }
        let store = &*shared.store;
        let made = self
            .closures
            .iter()
            .zip(targets)
            .zip(&roots.rules)
            .map(|((known, targets), rule)| {
                let source = Source::of(rule, store, self.uploaded.as_ref());
                known.now(&source, targets)
            })
            .collect::<Result<Vec<_>, _>>()?;
        for ((known, made), rule) in self.closures.iter().zip(&made).zip(&roots.rules) {
            if let Some(lost) = known.lost(made, rule) {
                shared.observer.event(&Event::DenialsEnded(&lost));
            }
        }
        unpoisoned(roots.closures.write()).clone_from(&made);
        self.closures = made;
        shared.recovered();
        self.version = before.filter(|before| version().as_ref() == Some(before));
        let sets = self.closures.iter().map(Closure::sorted).collect();
        roots.publish(Some(Arc::new(Sets(sets))));
        Ok(())
    }
}

impl<'a> Source<'a> {
    fn of(rule: &RuleRoots, store: &'a dyn Store, uploaded: Option<&'a StoredCache>) -> Self {
        Self {
            store,
            uploaded: uploaded.filter(|_| rule.denies),
            denies: rule.denies,
        }
    }
}

impl Closure {
    /// Computes the closure of `targets`. Reuses as much of this closure as is still valid.
    fn now(
        &self,
        source: &Source<'_>,
        targets: BTreeSet<StorePath>,
    ) -> Result<Self, RootsCheckError> {
        let targets = source.targets(targets)?;
        if targets == self.targets && self.ends.is_empty() {
            return Ok(self.clone());
        }
        let counts = |target: &&Target| source.denies || target.registered.is_some();
        let is_more = self
            .targets
            .iter()
            .filter(counts)
            .all(|known| targets.contains(known));
        let (mut members, mut starts) = match is_more {
            true => ((*self.members).clone(), self.ends.clone()),
            false => (HashSet::new(), Vec::new()),
        };
        for end in &starts {
            members.remove(end);
        }
        starts.extend(
            targets
                .iter()
                .filter(counts)
                .map(|target| target.path.hash_part()),
        );
        let ends = source.add_closure(&mut members, starts)?;
        let made = Self {
            targets,
            members: Arc::new(members),
            ends,
        };
        Ok(match source.denies && made.leads_to_all_of(self) {
            true => made.with_members_of(self),
            false => made,
        })
    }

    /// Whether the roots lead at least to the store paths to which they led before.
    fn leads_to_all_of(&self, before: &Self) -> bool {
        let paths = |closure: &Self| -> BTreeSet<HashPart> {
            let targets = closure.targets.iter();
            targets.map(|target| target.path.hash_part()).collect()
        };
        paths(before).is_subset(&paths(self))
    }

    /// Adds the members of an earlier closure, whose references the store may have forgotten.
    fn with_members_of(mut self, before: &Self) -> Self {
        if !before.members.is_subset(&self.members) {
            Arc::make_mut(&mut self.members).extend(before.members.iter().copied());
        }
        self
    }

    /// Describes the members that `after`, the closure of the same deny rule, lacks. Returns `None`
    /// if it has all.
    fn lost(&self, after: &Self, root: &RuleRoots) -> Option<DenialsEnded> {
        let lost = self.members.difference(&after.members).count();
        (root.denies && lost > 0).then(|| DenialsEnded {
            roots: root.roots.clone(),
            count: lost,
        })
    }

    /// Whether a member whose references are unknown may have been uploaded.
    fn has_uploaded_end(&self, uploaded: Option<&StoredCache>) -> bool {
        let may_contain = |uploaded: &StoredCache| {
            let mut ends = self.ends.iter();
            ends.any(|end| uploaded.may_contain(*end))
        };
        uploaded.is_some_and(may_contain)
    }

    fn sorted(&self) -> Box<[HashPart]> {
        let mut sorted: Box<[HashPart]> = self.members.iter().copied().collect();
        sorted.sort_unstable();
        sorted
    }
}

impl Source<'_> {
    /// Looks up the registrations of store paths.
    fn targets(&self, paths: BTreeSet<StorePath>) -> Result<Vec<Target>, RootsCheckError> {
        let paths: Vec<StorePath> = paths.into_iter().collect();
        let mut targets = Vec::with_capacity(paths.len());
        for some in paths.chunks(STEP_COUNT) {
            let hash_parts: Vec<HashPart> = some.iter().map(StorePath::hash_part).collect();
            let looked = self.store.lookup_many(&hash_parts);
            for (path, looked) in some.iter().zip(looked.map_err(RootsCheckError::Store)?) {
                // A row that cannot be read counts as an invalid path.
                let info = looked.ok().flatten().filter(|info| info.path == *path);
                targets.push(Target {
                    path: path.clone(),
                    registered: info
                        .map(|info| (info.registration, info.registration_time, info.nar_hash)),
                });
            }
        }
        Ok(targets)
    }

    /// Adds the closure of `starts` to `members`, which must already be closed under references.
    /// For a deny rule, returns the members whose references are unknown.
    fn add_closure(
        &self,
        members: &mut HashSet<HashPart>,
        starts: Vec<HashPart>,
    ) -> Result<Vec<HashPart>, RootsCheckError> {
        let mut ends = Vec::new();
        let mut open: Vec<HashPart> = starts
            .into_iter()
            .filter(|one| members.insert(*one))
            .collect();
        while !open.is_empty() {
            let some = open.split_off(open.len().saturating_sub(STEP_COUNT));
            let looked = self.store.lookup_many(&some);
            for (hash_part, looked) in some.iter().zip(looked.map_err(RootsCheckError::Store)?) {
                let references = match looked {
                    Ok(Some(info)) => Some(info.references),
                    _ => self.uploaded_references(*hash_part)?,
                };
                match references {
                    Some(references) => {
                        let references = references.iter().map(StorePath::hash_part);
                        open.extend(references.filter(|one| members.insert(*one)));
                    }
                    None if self.denies => ends.push(*hash_part),
                    None => {}
                }
            }
        }
        Ok(ends)
    }

    fn uploaded_references(
        &self,
        hash_part: HashPart,
    ) -> Result<Option<Vec<StorePath>>, RootsCheckError> {
        let Some(uploaded) = self.uploaded else {
            return Ok(None);
        };
        let path = uploaded.peek(hash_part).map_err(RootsCheckError::Storage)?;
        Ok(path.map(|path| path.references))
    }
}

/// The message that paths are no longer denied, because the roots of a deny rule lead to
/// other paths now.
#[derive(Debug)]
struct DenialsEnded {
    roots: Vec<PathBuf>,
    count: usize,
}

impl std::fmt::Display for DenialsEnded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { roots, count } = self;
        write!(
            f,
            "the roots {roots:?} in policy.deny now lead to other paths, so {count} paths are no \
             longer denied by them; to deny these as well, add roots that lead to them to \
             policy.deny"
        )
    }
}
