//! [`Store`]: the store paths of a cache, each of which is opened when its name is looked up.
//!
//! # Threads
//!
//! When a name is looked up for the first time, a new thread opens the path: it requests the
//! narinfo, downloads the NAR and verifies it. So no lookup waits for the lookup of another name.
//! After a failure, the thread tries again while lookups wait. Another thread answers the lookups
//! that have waited for too long.
//!
//! # Eviction
//!
//! A tree is open while the kernel has references to its entries. The files of an open tree are not
//! removed from the cache directory. A tree that was closed keeps its number, and so its inode
//! numbers.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use samovar_client::failed::Failed;
use samovar_client::notice::notice;
use samovar_client::snapshot::Snapshots;
use samovar_nix::StorePath;

use super::cache_dir::CacheDir;
use super::local::Local;
use super::queue::{DAMAGED_TIME, Outage};
use super::tree::Tree;
use super::whole;

/// Pause after a failed attempt. It doubles after each further one.
const PAUSE: Duration = Duration::from_millis(250);

/// Maximum pause between failed attempts.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Minimum time that a lookup waits while the server is away: enough to notice that it is back.
const PROBE: Duration = Duration::from_secs(1);

/// Lifetime in the kernel's cache of the absence of a path that the cache does not have yet.
const ABSENT: Duration = Duration::from_secs(60);

/// Lifetime in the kernel's cache of the absence of a name that cannot be the name of a store path.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// The store paths of a cache.
#[derive(Clone)]
pub(super) struct Store(Arc<Shared>);

struct Shared {
    /// `None`: only what is on this machine is shown.
    server: Option<Snapshots>,
    cache_dir: CacheDir,
    patience: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The number of each path that was opened so far, from 1.
    numbers: HashMap<StorePath, u32>,
    /// Open trees, by number.
    open: BTreeMap<u32, (StorePath, Arc<Tree>)>,
    opening: HashMap<StorePath, Opening>,
    /// Paths that are damaged or not trusted, and when this was found.
    refused: HashMap<StorePath, Instant>,
    /// Whether requests for narinfos fail, and when the server has last sent anything.
    outage: Outage,
    /// Time of the last change of `open`.
    modified: SystemTime,
}

/// A path that is being opened.
struct Opening {
    outage: Outage,
    waiting: Vec<Waiting>,
}

struct Waiting {
    started: Instant,
    answer: Answer,
}

/// The answer to a lookup.
#[derive(Clone)]
pub(super) enum Found {
    /// The number of the tree, and the tree.
    Tree(u32, Arc<Tree>),
    /// There is no such path. The kernel may remember this for a limited time.
    Absent(Duration),
    /// The path is damaged or not trusted, or the server cannot be reached.
    Failed,
}

/// Called once with the answer to a lookup.
pub(super) type Answer = Box<dyn FnOnce(Found) + Send>;

impl Store {
    /// Starts the thread that answers lookups that wait for too long. `server`: `None` shows only
    /// what is on this machine. `patience`: time after which lookups fail, from when the server
    /// became unreachable.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub(super) fn start(
        server: Option<&Snapshots>,
        cache_dir: CacheDir,
        patience: Duration,
    ) -> std::io::Result<Self> {
        let store = Self(Arc::new(Shared {
            server: server.map(Snapshots::once),
            cache_dir,
            patience,
            state: Mutex::new(State {
                numbers: HashMap::new(),
                open: BTreeMap::new(),
                opening: HashMap::new(),
                refused: HashMap::new(),
                outage: Outage::new(Instant::now(), patience),
                modified: SystemTime::now(),
            }),
            changed: Condvar::new(),
        }));
        let watched = store.clone();
        let thread = thread::Builder::new().name("store".to_owned());
        thread.spawn(move || watched.watch())?;
        Ok(store)
    }

    /// Returns the open tree with this number.
    pub(super) fn tree(&self, number: u32) -> Option<Arc<Tree>> {
        let state = self.state();
        state.open.get(&number).map(|(_, tree)| Arc::clone(tree))
    }

    /// Returns the time of the last change of the list of open trees.
    pub(super) fn modified(&self) -> SystemTime {
        self.state().modified
    }

    /// Calls `add` with the open trees whose numbers are greater than `after`, until it returns
    /// true.
    pub(super) fn list(
        &self,
        after: u64,
        mut add: impl FnMut(u32, &StorePath, &Arc<Tree>) -> bool,
    ) {
        // Trees stay open meanwhile, because `add` may note references to them.
        let state = self.state();
        for (number, (path, tree)) in &state.open {
            if u64::from(*number) > after && add(*number, path, tree) {
                break;
            }
        }
    }

    /// Looks up a name. The answer may come later from another thread. A tree in it has one more
    /// reference.
    pub(super) fn look_up(&self, name: &[u8], answer: Answer) {
        let path = str::from_utf8(name).ok();
        let path = path.and_then(|name| StorePath::from_base_name(name).ok());
        let Some(path) = path else {
            return answer(Found::Absent(NEVER));
        };
        let now = Instant::now();
        let mut state = self.state();
        if let Some(found) = state.find(&path) {
            if let Found::Tree(_, tree) = &found {
                tree.refer();
            }
            drop(state);
            return answer(found);
        }
        let is_recent = |time: &Instant| now.saturating_duration_since(*time) < DAMAGED_TIME;
        state.refused.retain(|_, time| is_recent(time));
        if state.refused.contains_key(&path) {
            drop(state);
            return answer(Found::Failed);
        }
        let waiting = Waiting {
            started: now,
            answer,
        };
        self.0.changed.notify_all();
        if let Some(opening) = state.opening.get_mut(&path) {
            opening.waiting.push(waiting);
            return;
        }
        let opening = Opening {
            outage: Outage::new(now, self.0.patience),
            waiting: vec![waiting],
        };
        state.opening.insert(path.clone(), opening);
        drop(state);
        let (store, opened) = (self.clone(), path.clone());
        let thread = thread::Builder::new().name("open".to_owned());
        if let Err(error) = thread.spawn(move || store.open(&opened)) {
            notice(&format!("cannot open {path}: {error}"));
            self.end(&path, |_| Found::Failed);
        }
    }

    /// Closes a tree to which the kernel has no reference any more.
    pub(super) fn close(&self, number: u32) {
        let mut state = self.state();
        let open = state.open.get(&number);
        // Another lookup may have noted a reference in the meantime.
        if open.is_some_and(|(_, tree)| !tree.is_in_use()) {
            let closed = state.open.remove(&number);
            state.modified = SystemTime::now();
            drop(state);
            drop(closed);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a path, and answers the lookups that wait for it.
    fn open(&self, path: &StorePath) {
        let mut pause = PAUSE;
        loop {
            let error = match self.try_open(path) {
                Ok(Some(local)) => {
                    let tree = Arc::new(Tree::new(Arc::new(local), None));
                    return self.end(path, |state| state.add(path, tree));
                }
                Ok(None) => return self.end(path, |_| Found::Absent(ABSENT)),
                Err(error) => error,
            };
            if Failed::of(&error) != Some(Failed::Unavailable) {
                notice(&format!("{error:#}: looking {path} up gives an I/O error"));
                return self.end(path, |state| {
                    state.refused.insert(path.clone(), Instant::now());
                    Found::Failed
                });
            }
            if self.give_up(path) {
                if !self.state().outage.is_on() {
                    notice(&format!("cannot open {path}: {error:#}"));
                }
                return;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Returns `None` if the cache does not have the path.
    fn try_open(&self, path: &StorePath) -> anyhow::Result<Option<Local>> {
        let Some(server) = &self.0.server else {
            return whole::open(&self.0.cache_dir, path, None, &mut |_len| ());
        };
        let info = server.signed_narinfo(path);
        let info = info.map_err(|error| Failed::Unavailable.because(error));
        self.note_answer(server, &info);
        let Some(info) = info? else {
            return Ok(None);
        };
        let source = Some((server, &info));
        whole::open(&self.0.cache_dir, path, source, &mut |_len| {
            if let Some(opening) = self.state().opening.get_mut(path) {
                opening.outage.progressed(Instant::now());
            }
            self.note_answer(server, &Ok(()));
        })
    }

    /// Notes whether the server has answered a request for a narinfo, or sent a piece of a NAR.
    fn note_answer<T>(&self, server: &Snapshots, answer: &anyhow::Result<T>) {
        let url = server.cache().url();
        let now = Instant::now();
        let mut state = self.state();
        match answer {
            Err(error) if Failed::of(error) == Some(Failed::Unavailable) => {
                let began = state.outage.failed(now);
                let patience = state.outage.patience().as_secs();
                drop(state);
                if began {
                    notice(&format!(
                        "{error:#}; paths that are not open give I/O errors after {patience} \
                         seconds, until {url} is reachable again"
                    ));
                }
            }
            _ => {
                let ended = state.outage.progressed(now);
                drop(state);
                if ended {
                    notice(&format!("{url} is reachable again"));
                }
            }
        }
    }

    /// Notes that an attempt to open a path has failed. If all lookups have waited for too long,
    /// answers them. Returns whether there will be no further attempt.
    fn give_up(&self, path: &StorePath) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        let State {
            opening, outage, ..
        } = &mut *state;
        let Some(mut failed) = opening.remove(path) else {
            return true;
        };
        failed.outage.failed(now);
        let mut waiting = failed.waiting.iter();
        if !waiting.all(|lookup| deadline(outage, &failed, lookup) <= now) {
            opening.insert(path.clone(), failed);
            return false;
        }
        drop(state);
        for lookup in failed.waiting {
            (lookup.answer)(Found::Failed);
        }
        true
    }

    /// Answers all lookups that wait for a path. `found`: changes the state and returns the answer.
    fn end(&self, path: &StorePath, found: impl FnOnce(&mut State) -> Found) {
        let mut state = self.state();
        let opening = state.opening.remove(path);
        let waiting = opening.map(|opening| opening.waiting).unwrap_or_default();
        if waiting.is_empty() {
            // A tree without references would stay open.
            return;
        }
        let found = found(&mut state);
        if let Found::Tree(_, tree) = &found {
            waiting.iter().for_each(|_lookup| tree.refer());
        }
        drop(state);
        for lookup in waiting {
            (lookup.answer)(found.clone());
        }
    }

    /// Answers lookups that have waited for too long.
    fn watch(&self) {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            let mut next = None;
            let mut expired = Vec::new();
            let State {
                opening, outage, ..
            } = &mut *state;
            for opening in opening.values_mut() {
                for lookup in std::mem::take(&mut opening.waiting) {
                    let deadline = deadline(outage, opening, &lookup);
                    let deadline = deadline.max(lookup.started + PROBE);
                    if deadline <= now {
                        expired.push(lookup.answer);
                    } else {
                        next = next.min(Some(deadline)).or(Some(deadline));
                        opening.waiting.push(lookup);
                    }
                }
            }
            if !expired.is_empty() {
                drop(state);
                for answer in expired {
                    answer(Found::Failed);
                }
                state = self.state();
                continue;
            }
            state = match next {
                Some(deadline) => {
                    let time = deadline.saturating_duration_since(now);
                    let waited = self.0.changed.wait_timeout(state, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.0.changed.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

impl State {
    /// Returns the open tree of a path.
    fn find(&self, path: &StorePath) -> Option<Found> {
        let number = *self.numbers.get(path)?;
        let (_, tree) = self.open.get(&number)?;
        Some(Found::Tree(number, Arc::clone(tree)))
    }

    /// Adds an open tree. Its number is the one that it had before, if it was open before.
    fn add(&mut self, path: &StorePath, tree: Arc<Tree>) -> Found {
        let next = u32::try_from(self.numbers.len() + 1).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(path.clone()).or_insert(next);
        self.open.insert(number, (path.clone(), Arc::clone(&tree)));
        self.modified = SystemTime::now();
        Found::Tree(number, tree)
    }
}

/// Returns the time at which a lookup gives up. `outage`: the outage of the server, as all requests
/// have shown it.
fn deadline(outage: &Outage, opening: &Opening, lookup: &Waiting) -> Instant {
    let own = opening.outage.deadline(lookup.started);
    let others = outage.deadline(lookup.started);
    match (outage.is_on(), opening.outage.is_on()) {
        (true, _) => own.min(others),
        (false, true) => own,
        // No request has failed: the server may be busy with other paths, so data for them extends
        // the deadline, too. If it never answers the request for this path, the request fails at
        // the client's time limit, and `own` applies.
        (false, false) => own.max(others),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;

    use samovar_nix::NarHash;
    use sha2::{Digest as _, Sha256};
    use testkit::eventually;

    use super::*;

    const NAMES: [&str; 2] = [
        "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-one",
        "1b9p07z77phvv2hf6gm9f28syp39f1ag-two",
    ];

    /// A cache directory with two store paths, each a file.
    fn cache(dir: &std::path::Path) -> CacheDir {
        let cache = CacheDir::at(dir.to_owned(), 1 << 20).unwrap();
        for name in NAMES {
            let folder = cache.folder(name);
            fs::create_dir_all(&folder).unwrap();
            let nar = samovar_workspace::file_nar(name.as_bytes());
            let hash = NarHash::from_bytes(Sha256::digest(&nar).into());
            fs::write(folder.join("nar"), nar).unwrap();
            fs::write(folder.join("nar-hash"), hash.nixbase32()).unwrap();
        }
        cache
    }

    fn look_up(store: &Store, name: &str) -> Found {
        let (sender, answers) = mpsc::channel();
        let answer = move |found| sender.send(found).unwrap();
        store.look_up(name.as_bytes(), Box::new(answer));
        answers.recv().unwrap()
    }

    fn tree(found: &Found) -> (u32, Arc<Tree>) {
        match found {
            Found::Tree(number, tree) => (*number, Arc::clone(tree)),
            Found::Absent(_) => panic!("absent"),
            Found::Failed => panic!("failed"),
        }
    }

    fn listed(store: &Store, after: u64) -> Vec<String> {
        let mut names = Vec::new();
        store.list(after, |_, path, _| {
            names.push(path.base_name().to_owned());
            false
        });
        names
    }

    #[test]
    fn a_tree_keeps_its_number_while_its_files_are_evicted() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        let store = Store::start(None, cache.clone(), Duration::from_secs(60)).unwrap();
        let (first, one) = tree(&look_up(&store, NAMES[0]));
        let (second, two) = tree(&look_up(&store, NAMES[1]));
        assert_eq!((first, second), (1, 2));
        assert_eq!(listed(&store, 0), NAMES);
        assert_eq!(listed(&store, 1), NAMES[1..]);
        // A second reference: one that is forgotten does not close the tree.
        tree(&look_up(&store, NAMES[0]));
        assert!(!one.forget(1));
        store.close(first);
        assert!(store.tree(first).is_some());
        // Files in use are not evicted, and others are.
        drop(one);
        assert!(store.tree(first).unwrap().forget(1));
        store.close(first);
        assert!(store.tree(first).is_none());
        assert_eq!(listed(&store, 0), NAMES[1..]);
        let is_here = |name| cache.folder(name).join("nar").exists();
        // The thread that opened the tree may still have it for a moment after its answer.
        eventually("files that are not in use are evicted", || {
            cache.make_room(1 << 20, "another").unwrap();
            !is_here(NAMES[0])
        });
        assert!(is_here(NAMES[1]));
        self::cache(dir.path());
        assert_eq!(tree(&look_up(&store, NAMES[0])).0, first);
        assert!(two.is_in_use());
    }

    #[test]
    fn names_that_are_no_store_paths_are_absent() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::start(None, cache(dir.path()), Duration::from_secs(60)).unwrap();
        for name in ["bin", ".", &NAMES[0][..32], "\u{fc}"] {
            assert!(matches!(look_up(&store, name), Found::Absent(time) if time == NEVER));
        }
        let other = NAMES[0].replace("one", "other");
        assert!(matches!(look_up(&store, &other), Found::Absent(time) if time == ABSENT));
        assert!(!dir.path().join("snapshots").join(other).exists());
    }
}
