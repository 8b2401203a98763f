//! Requests single narinfos over several connections at once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use samovar_nix::HashPart;
use samovar_nix::narinfo::NarInfo;

use crate::http::AT_ONCE_MAX;

type Answer = anyhow::Result<Option<NarInfo>>;

/// The narinfos in some closures, and the paths that the cache lacks.
#[derive(Debug, Default)]
pub struct Found {
    /// Narinfos in topological order: each path comes after its references.
    pub narinfos: Vec<NarInfo>,
    /// Paths that the cache does not have.
    pub missing: Vec<HashPart>,
}

/// Requests the narinfos of these paths. Returns them in order, with `None` for absent paths.
///
/// # Errors
///
/// The first error of `ask`.
pub fn each(
    hash_parts: &[HashPart],
    ask: impl Fn(HashPart) -> Answer + Sync,
) -> anyhow::Result<Vec<Option<NarInfo>>> {
    let answers = run(hash_parts, false, &HashSet::new(), ask)?;
    Ok(hash_parts
        .iter()
        .map(|hash_part| answers.get(hash_part).cloned().flatten())
        .collect())
}

/// Requests the closures of `roots`. Excludes the paths in `known`, and the paths that only these
/// refer to. Returns each path after its references.
///
/// # Errors
///
/// The first error of `ask`.
pub fn closure(
    roots: &[HashPart],
    known: &HashSet<HashPart>,
    ask: impl Fn(HashPart) -> Answer + Sync,
) -> anyhow::Result<Found> {
    let mut answers = run(roots, true, known, ask)?;
    let mut found = Found::default();
    for root in roots {
        // Stack of the paths being visited, each with the references that are still to visit.
        let mut open = vec![(*root, references(&answers, root))];
        let mut entered = HashSet::from([*root]);
        while let Some((hash_part, left)) = open.last_mut() {
            if let Some(next) = left.pop() {
                if entered.insert(next) {
                    open.push((next, references(&answers, &next)));
                }
                continue;
            }
            let hash_part = *hash_part;
            open.pop();
            match answers.remove(&hash_part) {
                Some(Some(narinfo)) => found.narinfos.push(narinfo),
                Some(None) => found.missing.push(hash_part),
                // The path is in `known`, or was already reported below another root.
                None => {}
            }
        }
    }
    Ok(found)
}

fn references(answers: &HashMap<HashPart, Option<NarInfo>>, hash_part: &HashPart) -> Vec<HashPart> {
    let narinfo = answers.get(hash_part).and_then(Option::as_ref);
    let references = narinfo.map_or(&[][..], |narinfo| &narinfo.references);
    references
        .iter()
        .rev()
        .map(samovar_nix::StorePath::hash_part)
        .collect()
}

#[derive(Default)]
struct State {
    queue: VecDeque<HashPart>,
    /// All paths that have been in the queue.
    seen: HashSet<HashPart>,
    active_count: usize,
    answers: HashMap<HashPart, Option<NarInfo>>,
    error: Option<anyhow::Error>,
}

/// Requests the narinfos of `start` and, if `follows`, of their closures. Leaves out the paths in
/// `known`.
fn run(
    start: &[HashPart],
    follows: bool,
    known: &HashSet<HashPart>,
    ask: impl Fn(HashPart) -> Answer + Sync,
) -> anyhow::Result<HashMap<HashPart, Option<NarInfo>>> {
    let mut first = State::default();
    for hash_part in start {
        if !known.contains(hash_part) && first.seen.insert(*hash_part) {
            first.queue.push_back(*hash_part);
        }
    }
    let thread_count = if follows {
        AT_ONCE_MAX
    } else {
        AT_ONCE_MAX.min(first.queue.len())
    };
    let state = Mutex::new(first);
    let changed = Condvar::new();
    std::thread::scope(|scope| {
        for _ in 0..thread_count {
            scope.spawn(|| {
                while let Some(hash_part) = next(&state, &changed) {
                    let answer = ask(hash_part);
                    let mut state = lock(&state);
                    state.active_count = state.active_count.saturating_sub(1);
                    match answer {
                        Ok(narinfo) => {
                            let references = narinfo.iter().filter(|_| follows);
                            for reference in references.flat_map(|narinfo| &narinfo.references) {
                                let reference = reference.hash_part();
                                if !known.contains(&reference) && state.seen.insert(reference) {
                                    state.queue.push_back(reference);
                                }
                            }
                            state.answers.insert(hash_part, narinfo);
                        }
                        Err(error) => {
                            state.error.get_or_insert(error);
                        }
                    }
                    changed.notify_all();
                }
            });
        }
    });
    let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    match state.error {
        Some(error) => Err(error),
        None => Ok(state.answers),
    }
}

/// Waits for the next path to request. Returns `None` if nothing is left, or after an error.
fn next(state: &Mutex<State>, changed: &Condvar) -> Option<HashPart> {
    let mut state = changed
        .wait_while(lock(state), |state| {
            state.queue.is_empty() && state.active_count > 0 && state.error.is_none()
        })
        .unwrap_or_else(PoisonError::into_inner);
    if state.error.is_some() {
        return None;
    }
    let hash_part = state.queue.pop_front()?;
    state.active_count = state.active_count.saturating_add(1);
    Some(hash_part)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
