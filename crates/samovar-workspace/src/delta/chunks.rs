//! Common ranges of two byte strings that consist of chunks, such as lines.

use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

/// Ranges of two byte strings with the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Match {
    /// Offset in the base.
    pub(super) base: usize,
    /// Range of the new bytes.
    pub(super) new: Range<usize>,
}

/// The chunks of a base.
#[derive(Debug)]
pub(super) struct Chunks<'a> {
    base: &'a [u8],
    /// Returns the start of the first chunk after this offset, or the length of the bytes.
    after: fn(&[u8], usize) -> usize,
    /// Hash and start of each chunk, ascending.
    starts: Vec<(u64, usize)>,
}

/// The shortest match that is worth an operation, in bytes.
const MATCH_MIN: usize = 64;

impl<'a> Chunks<'a> {
    pub(super) fn new(base: &'a [u8], after: fn(&[u8], usize) -> usize) -> Self {
        let mut starts = Vec::new();
        let mut start = 0;
        while start < base.len() {
            let end = after(base, start);
            starts.push((hash(&base[start..end]), start));
            start = end;
        }
        starts.sort_unstable();
        Self {
            base,
            after,
            starts,
        }
    }

    /// Calls `found` for each match, in the order of the new bytes. Matches do not overlap.
    ///
    /// A match starts from a chunk that the base has too, if possible after the last match, and
    /// extends in both directions as far as the bytes are the same.
    pub(super) fn matches(&self, new: &[u8], mut found: impl FnMut(Match)) {
        let mut expected = 0;
        let mut unmatched = 0;
        let mut start = 0;
        while start < new.len() {
            let end = (self.after)(new, start);
            let candidate = self.candidate(&new[start..end], expected);
            let found_here = candidate.and_then(|at| {
                let forward = common_prefix(&self.base[at..], &new[start..]);
                let backward = common_suffix(&self.base[..at], &new[unmatched..start]);
                let is_worthwhile = forward + backward >= MATCH_MIN;
                is_worthwhile.then_some((at, forward, backward))
            });
            let Some((at, forward, backward)) = found_here else {
                start = end;
                continue;
            };
            found(Match {
                base: at - backward,
                new: start - backward..start + forward,
            });
            expected = at + forward;
            unmatched = start + forward;
            // A match may end within a chunk.
            while start < unmatched {
                start = (self.after)(new, start);
            }
        }
    }

    /// Returns the start of a chunk of the base that has the same bytes: the first at `expected` or
    /// after it, else the last before it.
    fn candidate(&self, chunk: &[u8], expected: usize) -> Option<usize> {
        let is_same = |start: usize| self.base[start..].starts_with(chunk);
        if is_same(expected) {
            return Some(expected);
        }
        let hash = hash(chunk);
        let at = self.starts.partition_point(|at| *at < (hash, expected));
        let neighbors = [Some(at), at.checked_sub(1)];
        let mut neighbors = neighbors.iter().filter_map(|at| self.starts.get((*at)?));
        let found = neighbors.find(|found| found.0 == hash && is_same(found.1));
        found.map(|found| found.1)
    }
}

fn hash(chunk: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(chunk);
    hasher.finish()
}

const BLOCK: usize = 64;

/// Returns the length of the longest common prefix.
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK));
    let same = blocks.take_while(|(a, b)| a == b).count() * BLOCK;
    let bytes = a[same..].iter().zip(&b[same..]);
    same + bytes.take_while(|(a, b)| a == b).count()
}

/// Returns the length of the longest common suffix.
pub(super) fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    let blocks = a.rchunks_exact(BLOCK).zip(b.rchunks_exact(BLOCK));
    let same = blocks.take_while(|(a, b)| a == b).count() * BLOCK;
    let (a, b) = (&a[..a.len() - same], &b[..b.len() - same]);
    let bytes = a.iter().rev().zip(b.iter().rev());
    same + bytes.take_while(|(a, b)| a == b).count()
}
