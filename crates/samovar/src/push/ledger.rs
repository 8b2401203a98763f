//! [`Ledger`]: the state of each path of a push.

use std::collections::HashMap;

use samovar_nix::{HashPart, PathInfo, StoreDir};

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// The cache had the path before the push.
    Present,
    Waiting,
    Published,
    /// With the reason.
    Failed(String),
}

/// The states of all paths of a push.
#[derive(Debug)]
pub(super) struct Ledger<'a> {
    /// References first.
    infos: &'a [PathInfo],
    states: Vec<State>,
    by_hash_part: HashMap<HashPart, usize>,
}

impl<'a> Ledger<'a> {
    /// `is_missing`: for each path, whether the cache lacks it.
    pub(super) fn new(infos: &'a [PathInfo], is_missing: &[bool]) -> Self {
        let states = is_missing.iter().map(|is_missing| match is_missing {
            true => State::Waiting,
            false => State::Present,
        });
        let by_hash_part = infos.iter().enumerate();
        let by_hash_part = by_hash_part.map(|(index, info)| (info.path.hash_part(), index));
        Self {
            infos,
            states: states.collect(),
            by_hash_part: by_hash_part.collect(),
        }
    }

    pub(super) fn published(&mut self, path: usize) {
        self.set(path, State::Published);
    }

    pub(super) fn failed(&mut self, path: usize, reason: String) {
        self.set(path, State::Failed(reason));
    }

    fn set(&mut self, path: usize, state: State) {
        if let Some(old) = self.states.get_mut(path) {
            *old = state;
        }
    }

    /// Returns the index of a path.
    pub(super) fn find(&self, hash_part: HashPart) -> Option<usize> {
        self.by_hash_part.get(&hash_part).copied()
    }

    /// Ends the push. Paths that still wait have a reference that failed.
    pub(super) fn into_result(mut self, dir: &StoreDir) -> Summary {
        let mut summary = Summary::default();
        for index in 0..self.infos.len() {
            let Some(info) = self.infos.get(index) else {
                continue;
            };
            let (path, size) = (info.path.full(dir), info.nar_size);
            match self.states.get(index) {
                Some(State::Present) => summary.present.push(path),
                Some(State::Published) => {
                    summary.pushed.push(path);
                    summary.nar_len += size;
                }
                Some(State::Failed(reason)) => summary.failed.push((path, reason.clone())),
                _ => {
                    let mut references = info.references.iter();
                    let missing = references.find(|path| {
                        let found = self.find(path.hash_part());
                        let state = found.and_then(|found| self.states.get(found));
                        matches!(state, Some(State::Failed(_)))
                    });
                    let reason = missing.map_or_else(
                        || "it was not published".to_owned(),
                        |path| format!("its reference {} was not pushed", path.base_name()),
                    );
                    self.failed(index, reason.clone());
                    summary.failed.push((path, reason));
                }
            }
        }
        summary
    }
}

/// The result of a push. Paths are full store paths.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) pushed: Vec<String>,
    /// Paths that the cache had before.
    pub(super) present: Vec<String>,
    /// Paths that were not pushed, each with the reason.
    pub(super) failed: Vec<(String, String)>,
    /// NAR bytes of the pushed paths.
    pub(super) nar_len: u64,
    /// Bytes of compressed NARs that were sent.
    pub(super) sent_len: u64,
}

impl Summary {
    /// Adds the result of another push.
    pub(super) fn add(&mut self, other: Self) {
        self.pushed.extend(other.pushed);
        self.present.extend(other.present);
        self.failed.extend(other.failed);
        self.nar_len += other.nar_len;
        self.sent_len += other.sent_len;
    }
}

#[cfg(test)]
mod tests {
    use samovar_nix::{NarHash, StorePath};

    use super::*;

    fn info(number: u8, nar_size: u64, references: &[u8]) -> PathInfo {
        let path =
            |number: u8| StorePath::from_base_name(&format!("{number:032}-p{number}")).unwrap();
        PathInfo {
            path: path(number),
            nar_hash: NarHash::from_bytes([number; 32]),
            nar_size,
            references: references.iter().copied().map(path).collect(),
            deriver: None,
            signatures: Vec::new(),
            content_address: None,
            registration_time: 0,
            ultimate: true,
            registration: None,
        }
    }

    #[test]
    fn paths_that_refer_to_a_failed_one_fail() {
        let infos = [
            info(0, 1, &[]),
            info(1, 2, &[0]),
            info(2, 4, &[1]),
            info(3, 8, &[]),
            info(4, 16, &[]),
        ];
        let mut ledger = Ledger::new(&infos, &[true, true, true, true, false]);
        ledger.failed(0, "unreadable".to_owned());
        ledger.published(3);
        let summary = ledger.into_result(&StoreDir::default());
        let reasons: Vec<&str> = summary.failed.iter().map(|(_, reason)| &**reason).collect();
        let of = |number: u8| format!("its reference {number:032}-p{number} was not pushed");
        assert_eq!(reasons, ["unreadable", &of(0), &of(1)]);
        assert_eq!((summary.pushed.len(), summary.nar_len), (1, 8));
        assert_eq!(summary.present.len(), 1);
    }
}
