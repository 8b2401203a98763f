//! [`Ledger`]: the state of each path of a push, and the order in which paths are published.

use std::collections::{HashMap, VecDeque};

use samovar_nix::{HashPart, NarHash, PathInfo, StoreDir, StorePath};
use samovar_protocol::push::{OpenAnswer, Saved};

use crate::http::printable;
use crate::progress::Progress;

/// The files of a path that a cache lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    /// The cache has the path.
    Nothing,
    /// The cache has the NAR but not the narinfo.
    Narinfo,
    /// The cache has neither the NAR nor the narinfo.
    Nar,
}

impl From<&OpenAnswer> for Lack {
    fn from(answer: &OpenAnswer) -> Self {
        match answer {
            OpenAnswer::Have => Self::Nothing,
            OpenAnswer::Link => Self::Narinfo,
            OpenAnswer::Need | OpenAnswer::Refused(_) => Self::Nar,
        }
    }
}

/// Returns, for each answer of a server, the files of its path that the cache lacks.
pub(super) fn lacks(answers: &[OpenAnswer]) -> Vec<Lack> {
    answers.iter().map(Lack::from).collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// The cache had the path before the push.
    Present,
    /// The cache lacks the NAR, which is to be sent.
    Waiting,
    /// The cache has the NAR but not the narinfo.
    Stored,
    Published,
    /// The path cannot be pushed, for this reason.
    Failed(String),
}

/// The states of all paths of a push.
///
/// A path is [ready](Self::next) once the cache has its NAR and all its references are
/// [released](Self::release). References outside the push count as released.
#[derive(Debug)]
pub(super) struct Ledger<'a> {
    /// The paths of the push, each after its references.
    infos: &'a [PathInfo],
    states: Vec<State>,
    by_hash_part: HashMap<HashPart, usize>,
    /// Indices of the paths that have this NAR.
    by_nar: HashMap<NarHash, Vec<usize>>,
    /// For each path, the number of references that are not released yet.
    missing_counts: Vec<usize>,
    referrers: Vec<Vec<usize>>,
    ready: VecDeque<usize>,
    /// Whether a path failed because the cache lost its NAR.
    has_lost_nar: bool,
}

impl<'a> Ledger<'a> {
    /// Creates the ledger. `lacks`: for each path, the files that the cache lacks.
    pub(super) fn new(infos: &'a [PathInfo], lacks: &[Lack]) -> Self {
        let states = lacks.iter().map(|lack| match lack {
            Lack::Nothing => State::Present,
            Lack::Narinfo => State::Stored,
            Lack::Nar => State::Waiting,
        });
        let indices = infos.iter().enumerate();
        let by_hash_part = indices.map(|(index, info)| (info.path.hash_part(), index));
        let mut ledger = Self {
            infos,
            states: states.collect(),
            by_hash_part: by_hash_part.collect(),
            by_nar: HashMap::new(),
            missing_counts: vec![0; infos.len()],
            referrers: vec![Vec::new(); infos.len()],
            ready: VecDeque::new(),
            has_lost_nar: false,
        };
        for (index, info) in infos.iter().enumerate() {
            ledger.by_nar.entry(info.nar_hash).or_default().push(index);
            let references = info.references.iter();
            let references = references.filter_map(|path| ledger.find(path.hash_part()));
            let is_unpublished = |other: &usize| ledger.states.get(*other) != Some(&State::Present);
            let references: Vec<usize> = references
                .filter(|other| *other != index && is_unpublished(other))
                .collect();
            for reference in references {
                if let (Some(count), Some(referrers)) = (
                    ledger.missing_counts.get_mut(index),
                    ledger.referrers.get_mut(reference),
                ) {
                    *count += 1;
                    referrers.push(index);
                }
            }
        }
        for index in 0..infos.len() {
            ledger.add_if_ready(index);
        }
        ledger
    }

    /// Creates the ledger of a push that a server has opened. Fails the paths that the server
    /// refuses, and all paths that refer to them.
    pub(super) fn of_answers(infos: &'a [PathInfo], answers: &[OpenAnswer]) -> Self {
        let mut ledger = Self::new(infos, &lacks(answers));
        ledger.refuse(answers);
        ledger
    }

    fn refuse(&mut self, answers: &[OpenAnswer]) {
        let mut is_refused = false;
        for (path, answer) in answers.iter().enumerate() {
            if let OpenAnswer::Refused(reason) = answer {
                let reason = printable(reason);
                self.failed(path, format!("the cache refused it: {reason}"));
                is_refused = true;
            }
        }
        if !is_refused {
            return;
        }
        for path in 0..self.infos.len() {
            if self.is_open(path) {
                self.fails_by_reference(path);
            }
        }
    }

    pub(super) fn info(&self, path: usize) -> Option<&'a PathInfo> {
        self.infos.get(path)
    }

    /// Returns the index of a path, or `None` if the push does not include it.
    pub(super) fn find(&self, hash_part: HashPart) -> Option<usize> {
        self.by_hash_part.get(&hash_part).copied()
    }

    /// Returns the index of one path for each NAR to send, in the order in which to send them: NARs
    /// of more than `small_len_max` bytes first, the longest first, then the others in the order of
    /// the paths.
    pub(super) fn nars(&self, small_len_max: u64) -> Vec<usize> {
        let len = |index: &usize| self.infos.get(*index).map_or(0, |info| info.nar_size);
        let first_of_nar = self.by_nar.values().filter_map(|same| {
            let is_waiting = |index: &&usize| self.states.get(**index) == Some(&State::Waiting);
            same.iter().find(is_waiting).copied()
        });
        let (mut nars, mut small): (Vec<usize>, Vec<usize>) =
            first_of_nar.partition(|nar| len(nar) > small_len_max);
        nars.sort_unstable_by_key(|nar| (std::cmp::Reverse(len(nar)), *nar));
        small.sort_unstable();
        nars.extend(small);
        nars
    }

    /// Records that the cache now has the NAR of this path. Other paths may have the same NAR.
    pub(super) fn stored(&mut self, nar: usize) {
        for path in self.set_nar(nar, &State::Stored) {
            self.add_if_ready(path);
        }
    }

    /// Fails all paths that wait for this path's NAR: the NAR cannot be sent.
    pub(super) fn nar_failed(&mut self, nar: usize, reason: &str) {
        self.set_nar(nar, &State::Failed(reason.to_owned()));
    }

    /// Sets the state of all waiting paths that have the same NAR as this one. Returns these paths.
    fn set_nar(&mut self, nar: usize, state: &State) -> Vec<usize> {
        let hash = self.infos.get(nar).map(|info| info.nar_hash);
        let same = hash.and_then(|hash| self.by_nar.get(&hash)).cloned();
        let mut changed = same.unwrap_or_default();
        changed.retain(|path| self.states.get(*path) == Some(&State::Waiting));
        for path in &changed {
            self.set(*path, state.clone());
        }
        changed
    }

    fn add_if_ready(&mut self, path: usize) {
        let is_stored = self.states.get(path) == Some(&State::Stored);
        if is_stored && self.missing_counts.get(path) == Some(&0) {
            self.ready.push_back(path);
        }
    }

    /// Takes the next path that is ready to be published. Returns `None` if no path is ready now.
    pub(super) fn next(&mut self) -> Option<usize> {
        while let Some(path) = self.ready.pop_front() {
            if !self.fails_by_reference(path) {
                return Some(path);
            }
            self.release(path);
        }
        None
    }

    /// Releases a path: the paths that refer to it need not wait for it any longer.
    pub(super) fn release(&mut self, path: usize) {
        let referrers = self.referrers.get_mut(path).map(std::mem::take);
        for referrer in referrers.unwrap_or_default() {
            if let Some(count) = self.missing_counts.get_mut(referrer) {
                *count -= 1;
            }
            self.add_if_ready(referrer);
        }
    }

    pub(super) fn published(&mut self, path: usize) {
        self.set(path, State::Published);
    }

    pub(super) fn failed(&mut self, path: usize, reason: String) {
        self.set(path, State::Failed(reason));
    }

    /// Fails the path because the cache has lost its NAR since the push was opened.
    pub(super) fn lost_nar(&mut self, path: usize) {
        let reason = "its NAR was deleted from the cache meanwhile: run the command again";
        self.failed(path, reason.to_owned());
        self.has_lost_nar = true;
    }

    /// Whether a path is neither present nor published, and has not failed.
    fn is_open(&self, path: usize) -> bool {
        matches!(self.states.get(path), Some(State::Waiting | State::Stored))
    }

    pub(super) fn is_failed(&self, path: usize) -> bool {
        matches!(self.states.get(path), Some(State::Failed(_)))
    }

    /// Fails the path if one of its references has failed. Returns whether it did.
    pub(super) fn fails_by_reference(&mut self, path: usize) -> bool {
        let is_failed = |path: &&StorePath| {
            let found = self.find(path.hash_part());
            found.is_some_and(|found| self.is_failed(found))
        };
        let info = self.infos.get(path);
        let failed = info.and_then(|info| info.references.iter().find(is_failed));
        let Some(failed) = failed else {
            return false;
        };
        let reason = format!("its reference {} was not pushed", failed.base_name());
        self.failed(path, reason);
        true
    }

    fn set(&mut self, path: usize, state: State) {
        if let Some(old) = self.states.get_mut(path) {
            *old = state;
        }
    }

    /// Returns the result of the push if nothing fails from here on.
    pub(super) fn into_prediction(mut self, dir: &StoreDir) -> Summary {
        for path in 0..self.infos.len() {
            if self.is_open(path) {
                self.published(path);
            }
        }
        self.into_result(dir)
    }

    /// Ends the push and returns its result. A path that is neither present nor published fails.
    pub(super) fn into_result(mut self, dir: &StoreDir) -> Summary {
        let mut summary = Summary {
            has_lost_nar: self.has_lost_nar,
            ..Summary::default()
        };
        for (index, info) in self.infos.iter().enumerate() {
            if self.is_open(index) && !self.fails_by_reference(index) {
                self.failed(index, "it was not published".to_owned());
            }
            let path = info.path.full(dir);
            match self.states.get(index) {
                Some(State::Present) => summary.present.push(path),
                Some(State::Published) => {
                    summary.pushed.push(path);
                    summary.nar_len += info.nar_size;
                }
                Some(State::Failed(reason)) => summary.failed.push((path, reason.clone())),
                Some(State::Waiting | State::Stored) | None => {}
            }
        }
        summary
    }
}

/// The result of a push. Paths are full store paths.
#[derive(Debug, Default)]
pub struct Summary {
    /// Paths that were pushed, or would be.
    pub pushed: Vec<String>,
    /// Paths that the cache had before the push.
    pub present: Vec<String>,
    /// Paths that were not pushed, each with the reason.
    pub failed: Vec<(String, String)>,
    /// Total NAR size of the pushed paths, in bytes.
    pub nar_len: u64,
    /// Number of compressed bytes sent for NARs.
    pub sent_len: u64,
    /// What was not sent because upstreams of the cache have it; part of `present`.
    pub saved: Saved,
    /// Whether a path failed because the cache lost its NAR during the push.
    pub(super) has_lost_nar: bool,
}

impl Summary {
    /// Adds the result of another push.
    pub(super) fn add(&mut self, other: Self) {
        self.pushed.extend(other.pushed);
        self.present.extend(other.present);
        self.failed.extend(other.failed);
        self.nar_len += other.nar_len;
        self.sent_len += other.sent_len;
        self.saved.count += other.saved.count;
        self.saved.nar_len += other.saved.nar_len;
        self.has_lost_nar = other.has_lost_nar;
    }
}

/// Starts the display of a push of the NARs that a cache lacks.
pub(super) fn progress_of(infos: &[PathInfo], lacks: &[Lack]) -> Progress {
    let nars = infos
        .iter()
        .zip(lacks)
        .filter(|(_, lack)| **lack == Lack::Nar);
    Progress::start("pushed", nars.map(|(info, _)| info.nar_size).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push::closure::path_info;

    /// Makes a path with a number in its name, and with a NAR of this content and length.
    fn info(number: u8, nar: u8, nar_size: u64, references: &[u8]) -> PathInfo {
        let path =
            |number: u8| StorePath::from_base_name(&format!("{number:032}-p{number}")).unwrap();
        let references = references.iter().copied().map(path).collect();
        path_info(
            path(number),
            NarHash::from_bytes([nar; 32]),
            nar_size,
            references,
        )
    }

    /// Takes and releases all ready paths.
    fn ready(ledger: &mut Ledger<'_>) -> Vec<usize> {
        let mut ready = Vec::new();
        while let Some(path) = ledger.next() {
            ledger.release(path);
            ready.push(path);
        }
        ready
    }

    #[test]
    fn large_nars_come_first_and_equal_ones_once() {
        let infos = [
            info(0, 0, 10, &[]),
            info(1, 1, 500, &[]),
            info(2, 0, 10, &[]),
            info(3, 3, 900, &[]),
            info(4, 4, 20, &[]),
            info(5, 5, 600, &[]),
        ];
        let mut lacks = [Lack::Nar; 6];
        lacks[4] = Lack::Narinfo;
        let ledger = Ledger::new(&infos, &lacks);
        assert_eq!(ledger.nars(100), [3, 5, 1, 0]);
        // The cache has path 0, but perhaps not with the NAR that this store has for paths 0 and 2.
        lacks[0] = Lack::Nothing;
        assert_eq!(Ledger::new(&infos, &lacks).nars(100), [3, 5, 1, 2]);
    }

    #[test]
    fn paths_are_ready_after_their_references() {
        let infos = [
            info(0, 0, 1, &[]),
            info(1, 1, 1, &[0, 1]),
            info(2, 2, 1, &[1, 4]),
            info(3, 0, 1, &[9]),
            info(4, 4, 1, &[]),
        ];
        let mut lacks = [Lack::Nar; 5];
        lacks[4] = Lack::Nothing;
        let mut ledger = Ledger::new(&infos, &lacks);
        ledger.stored(2);
        ledger.stored(1);
        assert_eq!(ready(&mut ledger), [0; 0]);
        // Paths 0 and 3 have the same NAR. Reference 9 is not in the push.
        ledger.stored(0);
        assert_eq!(ledger.next(), Some(0));
        assert_eq!(ledger.next(), Some(3));
        assert_eq!(ledger.next(), None);
        ledger.release(0);
        assert_eq!(ready(&mut ledger), [1, 2]);
        // The cache lacks only the narinfo of path 0.
        lacks[0] = Lack::Narinfo;
        assert_eq!(ready(&mut Ledger::new(&infos, &lacks)), [0]);
    }

    #[test]
    fn paths_that_refer_to_a_failed_one_fail() {
        let infos = [
            info(0, 0, 1, &[]),
            info(1, 1, 2, &[0]),
            info(2, 2, 4, &[1]),
            info(3, 3, 8, &[]),
            info(4, 4, 16, &[]),
            info(5, 5, 32, &[3]),
            info(6, 6, 64, &[5]),
        ];
        let mut lacks = [Lack::Nar; 7];
        lacks[4] = Lack::Nothing;
        let mut ledger = Ledger::new(&infos, &lacks);
        ledger.nar_failed(0, "unreadable");
        for nar in 1..7 {
            ledger.stored(nar);
        }
        assert_eq!(ready(&mut ledger), [3, 5, 6]);
        ledger.published(3);
        ledger.failed(5, "refused".to_owned());
        assert!(ledger.fails_by_reference(6) && !ledger.fails_by_reference(3));
        let summary = ledger.into_result(&StoreDir::default());
        let reasons: Vec<&str> = summary.failed.iter().map(|(_, reason)| &**reason).collect();
        let of = |number: u8| format!("its reference {number:032}-p{number} was not pushed");
        assert_eq!(reasons, ["unreadable", &of(0), &of(1), "refused", &of(5)]);
        assert_eq!((summary.pushed.len(), summary.nar_len), (1, 8));
        assert_eq!(summary.present.len(), 1);
    }

    #[test]
    fn ready_paths_fail_with_their_reference() {
        let infos = [info(0, 0, 1, &[]), info(1, 1, 2, &[0]), info(2, 2, 2, &[1])];
        let mut ledger = Ledger::new(&infos, &[Lack::Nar; 3]);
        for nar in 0..3 {
            ledger.stored(nar);
        }
        assert_eq!(ledger.next(), Some(0));
        ledger.failed(0, "refused".to_owned());
        ledger.release(0);
        assert_eq!(ready(&mut ledger), [0; 0]);
        let summary = ledger.into_result(&StoreDir::default());
        assert_eq!(summary.failed.len(), 3);
    }
}
