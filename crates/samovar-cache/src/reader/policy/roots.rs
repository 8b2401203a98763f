//! Which paths belong to the closures of roots.
//!
//! # Theory of operation
//!
//! One thread of low priority for all caches looks twice a second where the roots of each rule
//! lead, and whether those store paths are still registered as they were. As long as both is so,
//! the set is what it was: what a valid path needs is valid as long as it is, and stays the same.
//! Where only new ones have come, only what they add is read; else everything.
//!
//! A set is known once it was worked out, and no more as soon as the roots cannot be read. When the
//! store cannot be read, the last one stays, because it is about the store that was read: nothing
//! new is served meanwhile.
//!
//! Where a policy takes the place of another one, its roots are looked at before, so that no
//! request comes too early ([`first_looks`]).
//!
//! # Limits
//!
//! | what | value | why |
//! | --- | --- | --- |
//! | memory for each path | 20 bytes | the hash part |
//! | links in a row | 40 | as the kernel's |
//! | folders in each other | 16 | those of Nix have three |

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use samovar_metrics::Event;
use samovar_nix::{HashPart, NarHash, StoreDir, StorePath};
use samovar_store::{Store, StoreError};

use crate::known::shared_store::SharedStore;

/// How often it is looked where roots lead: what they lead to is served within a second.
const INTERVAL: Duration = Duration::from_millis(400);

/// Paths looked up at once.
const STEP_COUNT: usize = 256;

/// Links in a row.
const HOP_COUNT_MAX: usize = 40;

/// Folders in each other.
const DEPTH_MAX: usize = 16;

/// How long the first look of a policy may take that is to take the place of another.
const FIRST_LOOK_TIME: Duration = Duration::from_secs(60);

/// Added to the priority's number, where 0 is usual and 19 the lowest priority.
const NICENESS: i32 = 5;

/// The roots of one rule.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) roots: Vec<PathBuf>,
    /// Whether the rule denies: then a root that is not there is an error, because it may have led
    /// to what must not be read. One that allows leads to nothing then.
    pub(super) denies: bool,
}

/// The roots of all rules of a policy, and what is known of them.
#[derive(Debug)]
pub(crate) struct Roots {
    wanted: Vec<Wanted>,
    sets: RwLock<Option<Arc<Sets>>>,
    /// Counts changes of the sets.
    generation: AtomicU64,
}

/// The closures of the roots of each rule.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sets(Vec<Box<[HashPart]>>);

impl Sets {
    pub(super) fn contains(&self, index: usize, hash_part: &HashPart) -> bool {
        let set = self.0.get(index);
        set.is_some_and(|set| set.binary_search(hash_part).is_ok())
    }
}

/// Why it is not known where roots lead.
#[derive(Debug)]
pub(crate) struct RootsError {
    path: PathBuf,
    error: io::Error,
}

impl fmt::Display for RootsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.path, self.error)
    }
}

impl Roots {
    pub(super) fn new(wanted: Vec<Wanted>) -> Self {
        let known = wanted.is_empty().then(Arc::default);
        Self {
            wanted,
            sets: RwLock::new(known),
            generation: AtomicU64::new(0),
        }
    }

    /// `None` while that is not known.
    pub(super) fn sets(&self) -> Option<Arc<Sets>> {
        let sets = self.sets.read().unwrap_or_else(PoisonError::into_inner);
        sets.clone()
    }

    /// Whether there is anything to look at.
    pub(crate) fn is_used(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Begins with what the others know that are made of the same.
    pub(super) fn inherit(&self, before: &Self) {
        self.publish(before.sets());
    }

    #[cfg(test)]
    pub(super) fn set(&self, sets: Option<Vec<Box<[HashPart]>>>) {
        self.publish(sets.map(|sets| Arc::new(Sets(sets))));
    }

    /// Counted after a change, and read before a decision.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn publish(&self, sets: Option<Arc<Sets>>) {
        let mut current = self.sets.write().unwrap_or_else(PoisonError::into_inner);
        if *current != sets {
            *current = sets;
            drop(current);
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// The running thread; dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct RootsWatch {
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is told.
#[derive(Debug, Default)]
struct Orders {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_stopped: bool,
    /// The caches that are served from now on, and what is new to look at.
    change: Option<(Vec<Arc<Roots>>, Vec<Look>)>,
}

impl Orders {
    /// Waits for the next look and does as was told meanwhile; `false` if there will be none.
    fn wait(&self, looks: &mut Vec<Look>) -> bool {
        let state = self.state();
        let waited = self.changed.wait_timeout_while(state, INTERVAL, |state| {
            !state.is_stopped && state.change.is_none()
        });
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some((served, new)) = state.change.take() {
            looks.extend(new);
            looks.retain(|look| served.iter().any(|one| Arc::ptr_eq(one, &look.roots)));
        }
        !state.is_stopped
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RootsWatch {
    /// Watches the roots of some caches.
    pub(crate) fn start(mut looks: Vec<Look>) -> io::Result<Self> {
        let orders = Arc::new(Orders::default());
        let shared = Arc::clone(&orders);
        let thread = std::thread::Builder::new()
            .name("roots".into())
            .spawn(move || {
                // Linux counts this for each thread. Where it may not be lowered, that is no harm.
                rustix::process::nice(NICENESS).ok();
                loop {
                    looks.iter_mut().for_each(Look::look);
                    if !shared.wait(&mut looks) {
                        return;
                    }
                }
            })?;
        Ok(Self {
            orders,
            thread: Some(thread),
        })
    }

    /// Watches these from now on, too, and no cache any more that is not served.
    pub(crate) fn change(&self, served: Vec<Arc<Roots>>, mut new: Vec<Look>) {
        let mut state = self.orders.state();
        // What the thread has not seen yet is not lost.
        if let Some((_, earlier)) = state.change.take() {
            new.extend(earlier);
        }
        state.change = Some((served, new));
        drop(state);
        self.orders.changed.notify_one();
    }
}

impl Drop for RootsWatch {
    fn drop(&mut self) {
        self.orders.state().is_stopped = true;
        self.orders.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so already.
            let _ended = thread.join();
        }
    }
}

/// What was seen of the roots of one cache.
#[derive(Debug)]
pub(crate) struct Look {
    shared: Arc<SharedStore>,
    roots: Arc<Roots>,
    /// Of each rule.
    closures: Vec<Closure>,
    /// In which state of the store they were made.
    epoch: Option<u64>,
    has_failed: bool,
}

/// Where the roots of a rule led, and all that those store paths need.
#[derive(Debug, Default, Clone)]
struct Closure {
    targets: Vec<Target>,
    members: Arc<HashSet<HashPart>>,
}

/// A store path that a root leads to, and its registration if it has one: present and same as
/// before, it was valid all the time in between.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    path: StorePath,
    registered: Option<(Option<i64>, i64, NarHash)>,
}

/// Why it could not be looked where roots lead.
#[derive(Debug)]
enum LookError {
    Roots(RootsError),
    Store(StoreError),
}

/// Why a policy cannot take the place of another one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FirstLookError {
    #[error("the root of a policy cannot be followed: {0}")]
    Roots(RootsError),
    #[error("it cannot be found out what the roots of a policy need: {0}")]
    Store(StoreError),
    #[error("it takes too long to find out what the roots of a policy need")]
    Late,
}

/// Looks for the first time, so that it is known what may be read before anybody asks. A disk may
/// not answer, so that is done on another thread.
pub(crate) fn first_looks(mut looks: Vec<Look>) -> Result<Vec<Look>, FirstLookError> {
    if looks.is_empty() {
        return Ok(looks);
    }
    let (sender, outcome) = channel();
    let thread = std::thread::Builder::new().name("roots-first".into());
    let spawned = thread.spawn(move || {
        let looked = looks.iter_mut().try_for_each(Look::try_look);
        // Whoever does not wait any more needs no answer.
        sender.send(looked.map(|()| looks)).ok();
    });
    match spawned.map(|_| outcome.recv_timeout(FIRST_LOOK_TIME)) {
        Ok(Ok(Ok(looks))) => Ok(looks),
        Ok(Ok(Err(LookError::Roots(error)))) => Err(FirstLookError::Roots(error)),
        Ok(Ok(Err(LookError::Store(error)))) => Err(FirstLookError::Store(error)),
        Ok(Err(_)) | Err(_) => Err(FirstLookError::Late),
    }
}

impl Look {
    pub(crate) fn new(shared: Arc<SharedStore>, roots: Arc<Roots>) -> Self {
        let count = roots.wanted.len();
        Self {
            shared,
            roots,
            closures: vec![Closure::default(); count],
            epoch: None,
            has_failed: false,
        }
    }

    fn look(&mut self) {
        let outcome = self.try_look();
        let shared = &self.shared;
        match outcome {
            Err(LookError::Roots(error)) => {
                if !std::mem::replace(&mut self.has_failed, true) {
                    shared.observer.event(&Event::RootsFailed(&error));
                }
                self.roots.publish(None);
            }
            outcome => {
                if std::mem::take(&mut self.has_failed) {
                    shared.observer.event(&Event::RootsRecovered);
                }
                if let Err(LookError::Store(error)) = outcome {
                    shared.note(error);
                }
            }
        }
    }

    fn try_look(&mut self) -> Result<(), LookError> {
        let (shared, roots) = (Arc::clone(&self.shared), Arc::clone(&self.roots));
        let led = roots
            .wanted
            .iter()
            .map(|wanted| wanted.lead_to(shared.store.store_dir()))
            .collect::<Result<Vec<_>, _>>();
        let led = led.map_err(LookError::Roots)?;
        // Before the rows are read: whatever is committed later is looked at the next time.
        let epoch = shared.refresh().map(|snapshot| snapshot.epoch);
        let is_known = epoch.is_some() && epoch == self.epoch && roots.sets().is_some();
        let is_same = |(known, led): (&Closure, &BTreeSet<StorePath>)| {
            known.targets.iter().map(|target| &target.path).eq(led)
        };
        if is_known && self.closures.iter().zip(&led).all(is_same) {
            return Ok(());
        }
        let store = &*shared.store;
        let made = self
            .closures
            .iter()
            .zip(led)
            .map(|(known, led)| known.now(store, led))
            .collect::<Result<Vec<_>, _>>();
        self.closures = made.map_err(LookError::Store)?;
        shared.recovered();
        self.epoch = epoch;
        let sets = self.closures.iter().map(Closure::sorted).collect();
        roots.publish(Some(Arc::new(Sets(sets))));
        Ok(())
    }
}

impl Closure {
    /// The same, now that the roots lead to these.
    fn now(&self, store: &dyn Store, led: BTreeSet<StorePath>) -> Result<Self, StoreError> {
        let paths: Vec<StorePath> = led.into_iter().collect();
        let mut targets = Vec::with_capacity(paths.len());
        for some in paths.chunks(STEP_COUNT) {
            let hash_parts: Vec<HashPart> = some.iter().map(StorePath::hash_part).collect();
            for (path, looked) in some.iter().zip(store.lookup_many(&hash_parts)?) {
                // A row that makes no sense belongs to no closure.
                let info = looked.ok().flatten().filter(|info| info.path == *path);
                targets.push(Target {
                    path: path.clone(),
                    registered: info
                        .map(|info| (info.registration, info.registration_time, info.nar_hash)),
                });
            }
        }
        if targets == self.targets {
            return Ok(self.clone());
        }
        let valid = |target: &&Target| target.registered.is_some();
        let is_more = self
            .targets
            .iter()
            .filter(valid)
            .all(|known| targets.contains(known));
        let mut members = match is_more {
            true => (*self.members).clone(),
            false => HashSet::new(),
        };
        let starts = targets
            .iter()
            .filter(valid)
            .map(|target| target.path.hash_part());
        add_closure(store, &mut members, starts.collect())?;
        Ok(Self {
            targets,
            members: Arc::new(members),
        })
    }

    fn sorted(&self) -> Box<[HashPart]> {
        let mut sorted: Box<[HashPart]> = self.members.iter().copied().collect();
        sorted.sort_unstable();
        sorted
    }
}

/// Adds these and all that they need to `members`, which has all that its members need.
fn add_closure(
    store: &dyn Store,
    members: &mut HashSet<HashPart>,
    starts: Vec<HashPart>,
) -> Result<(), StoreError> {
    let mut open: Vec<HashPart> = starts
        .into_iter()
        .filter(|one| members.insert(*one))
        .collect();
    while !open.is_empty() {
        let some = open.split_off(open.len().saturating_sub(STEP_COUNT));
        for looked in store.lookup_many(&some)? {
            let Ok(Some(info)) = looked else { continue };
            let references = info.references.iter().map(StorePath::hash_part);
            open.extend(references.filter(|one| members.insert(*one)));
        }
    }
    Ok(())
}

impl Wanted {
    /// The store paths that the roots lead to.
    fn lead_to(&self, dir: &StoreDir) -> Result<BTreeSet<StorePath>, RootsError> {
        let mut found = BTreeSet::new();
        for root in &self.roots {
            let outcome = match follow(root, dir) {
                Ok(Lead::StorePath(path)) => {
                    found.insert(path);
                    Ok(())
                }
                Ok(Lead::Folder(folder)) => self.search(&folder, dir, DEPTH_MAX, &mut found),
                Ok(Lead::Other) => Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "leads to no store path and is no folder of links to store paths",
                )),
                Err(error) if error.kind() == io::ErrorKind::NotFound && !self.denies => Ok(()),
                Err(error) => Err(error),
            };
            outcome.map_err(|error| RootsError {
                path: root.clone(),
                error,
            })?;
        }
        Ok(found)
    }

    /// Adds what the links in a folder and its folders lead to. What they lead to elsewhere is
    /// nothing, as for Nix.
    fn search(
        &self,
        folder: &Path,
        dir: &StoreDir,
        depth: usize,
        found: &mut BTreeSet<StorePath>,
    ) -> io::Result<()> {
        for entry in folder.read_dir()? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let outcome = if kind.is_symlink() {
                follow(&entry.path(), dir).map(|lead| {
                    if let Lead::StorePath(path) = lead {
                        found.insert(path);
                    }
                })
            } else if kind.is_dir() && depth > 0 {
                self.search(&entry.path(), dir, depth - 1, found)
            } else {
                Ok(())
            };
            match outcome {
                // It leads nowhere, or was removed just now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // The homes of users are closed, and links of theirs lead there.
                Err(_) if !self.denies => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }
}

/// What is at the end of a row of links.
enum Lead {
    StorePath(StorePath),
    Folder(PathBuf),
    Other,
}

/// The logical store directory decides, wherever the files of the store are.
fn follow(start: &Path, dir: &StoreDir) -> io::Result<Lead> {
    let mut path = start.to_owned();
    for _ in 0..HOP_COUNT_MAX {
        if let Some(found) = within(&path, dir) {
            return Ok(Lead::StorePath(found));
        }
        let kind = path.symlink_metadata()?.file_type();
        if kind.is_dir() {
            return Ok(Lead::Folder(path));
        }
        if !kind.is_symlink() {
            return Ok(Lead::Other);
        }
        let target = path.read_link()?;
        // Relative to the folder of the link; an absolute one takes its place.
        path.pop();
        path.push(target);
    }
    Err(io::Error::other("too many links in a row"))
}

/// The store path that a file name is or is inside of.
fn within(path: &Path, dir: &StoreDir) -> Option<StorePath> {
    let rest = path.strip_prefix(dir.as_str()).ok()?;
    let first = rest.components().next()?;
    StorePath::from_base_name(first.as_os_str().to_str()?).ok()
}
