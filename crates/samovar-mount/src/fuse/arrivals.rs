//! [`Arrivals`]: stores contents of the NAR as they arrive, and verifies the files in them.

use std::io;
use std::mem;
use std::ops::Range;

use samovar_workspace::{Entry, Kind};
use sha2::{Digest as _, Sha256};

use super::local::Local;
use super::view::BLOCK_LEN;

/// Collects data to whole blocks, stores them, and verifies files while their contents are in the
/// processor's cache.
#[derive(Default)]
pub(super) struct Arrivals {
    /// The start of a block.
    buffer: Vec<u8>,
    /// Offset in the NAR after the last data.
    end: u64,
    verifier: Verifier,
}

impl Arrivals {
    /// Adds data of the NAR, stores each block that is complete, and calls `stored` with it. After
    /// a gap, collection goes on at the start of the next block.
    ///
    /// # Errors
    ///
    /// A block cannot be stored.
    pub(super) fn push(
        &mut self,
        local: &Local,
        at: u64,
        mut data: &[u8],
        stored: &mut dyn FnMut(usize),
    ) -> io::Result<()> {
        if at != self.end {
            self.buffer.clear();
            self.end = at;
        }
        while !data.is_empty() {
            let block = usize::try_from(self.end / BLOCK_LEN).unwrap_or(usize::MAX);
            let within = usize::try_from(self.end % BLOCK_LEN).unwrap_or_default();
            let len = local.block_len(block);
            let left = len.saturating_sub(within);
            if left == 0 {
                break;
            }
            let (piece, rest) = data.split_at(left.min(data.len()));
            self.end += piece.len() as u64;
            data = rest;
            if piece.len() == len {
                self.verifier.store(local, block, piece)?;
                stored(block);
                continue;
            }
            if within == self.buffer.len() {
                self.buffer.extend_from_slice(piece);
            }
            if self.buffer.len() == len {
                self.verifier.store(local, block, &self.buffer)?;
                stored(block);
            }
            if piece.len() == left {
                self.buffer.clear();
            }
        }
        Ok(())
    }
}

/// Verifies the files in blocks that arrive in their order.
#[derive(Default)]
struct Verifier {
    /// Offset in the NAR after the last block.
    end: u64,
    /// The first entry whose contents do not end before `end`.
    entry: usize,
    /// The hash of the start of that entry's contents. `None`: the start was not seen.
    started: Option<Sha256>,
}

impl Verifier {
    /// Stores a block, and notes which files it completes. Does nothing if the block is on this
    /// machine already, because the stored contents may differ from `data`.
    fn store(&mut self, local: &Local, block: usize, data: &[u8]) -> io::Result<()> {
        if local.has(block) {
            return Ok(());
        }
        // Verified first, so that readers find the files verified once the block is here.
        let list = local.view().entries().list();
        let verified = self.push(list, block as u64 * BLOCK_LEN, data);
        if local.store(block, data)? {
            for entries in verified {
                local.set_verified(entries);
            }
        } else {
            *self = Self::default();
        }
        Ok(())
    }

    /// Adds a block. Returns the runs of entries that are complete with it, in which all files
    /// match their digests. Files whose start was not seen are left out.
    fn push(&mut self, list: &[Entry], at: u64, data: &[u8]) -> Vec<Range<usize>> {
        if at != self.end {
            self.started = None;
            let ends_later = |entry: &Entry| file(entry).is_some_and(|(file, _)| file.end > at);
            self.entry = list.iter().position(ends_later).unwrap_or(list.len());
        }
        let end = at + data.len() as u64;
        self.end = end;
        let mut runs = Vec::new();
        let mut run = self.entry..self.entry;
        for entry in list.iter().skip(self.entry) {
            if let Some((contents, digest)) = file(entry) {
                let mut hasher = match self.started.take() {
                    Some(hasher) => Some(hasher),
                    None if contents.start >= at => Some(Sha256::new()),
                    None => None,
                };
                let from = contents.start.max(at).min(end);
                let part = part_of(data, from - at..contents.end.min(end) - at);
                if let Some(hasher) = &mut hasher {
                    hasher.update(part);
                }
                if contents.end > end {
                    self.started = hasher;
                    break;
                }
                if hasher.is_none_or(|hasher| digest != Some(hasher.finalize().into())) {
                    let next = run.end + 1;
                    runs.push(mem::replace(&mut run, next..next));
                    continue;
                }
            }
            run.end += 1;
        }
        self.entry = run.end;
        runs.push(run);
        runs.retain(|run| !run.is_empty());
        runs
    }
}

/// Returns the offsets of the contents of a file in the NAR, and their digest.
fn file(entry: &Entry) -> Option<(Range<u64>, Option<[u8; 32]>)> {
    match entry.kind {
        Kind::File {
            size,
            digest,
            offset,
        } => Some((offset..offset + size, digest)),
        _ => None,
    }
}

fn part_of(data: &[u8], range: Range<u64>) -> &[u8] {
    let start = usize::try_from(range.start).ok();
    let range = start.zip(usize::try_from(range.end).ok());
    let part = range.and_then(|(start, end)| data.get(start..end));
    part.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use samovar_workspace::entries::Builder;
    use samovar_workspace::{Entries, Mtime};

    use super::*;

    /// Entries of files with these sizes, each in a directory of its own, and their NAR.
    fn tree(sizes: &[usize]) -> (Entries, Vec<u8>) {
        let time = Mtime::default();
        let mut tree = Builder::new(0o755, time);
        let content = |at: usize| vec![u8::try_from(at).unwrap(); sizes[at]];
        for (at, size) in sizes.iter().enumerate() {
            tree.enter(format!("{at:03}").as_bytes(), 0o755, time)
                .unwrap();
            let digest = Sha256::digest(content(at)).into();
            tree.file(b"x", 0o644, time, *size as u64, Some(digest))
                .unwrap();
            tree.leave().unwrap();
        }
        tree.leave().unwrap();
        let entries = tree.finish().unwrap();
        let mut nar = Vec::new();
        let mut framing = entries.framing();
        let mut count = 0;
        while framing.next_file(&mut nar).unwrap().is_some() {
            nar.extend_from_slice(&content(count));
            count += 1;
        }
        (entries, nar)
    }

    proptest! {
        #[test]
        fn files_are_verified_once_they_are_complete(
            sizes in prop::collection::vec(0..3000_usize, 1..20),
            len in 1..2000_usize,
            missing: Option<prop::sample::Index>,
            damaged: Option<prop::sample::Index>,
        ) {
            let (entries, mut nar) = tree(&sizes);
            let missing = missing.map(|index| index.index(nar.len().div_ceil(len)));
            let damaged = damaged.map(|index| index.index(nar.len()));
            if let Some(at) = damaged {
                nar[at] ^= 1;
            }
            let mut verifier = Verifier::default();
            let mut verified = vec![false; entries.list().len()];
            for (block, data) in nar.chunks(len).enumerate() {
                if missing == Some(block) {
                    continue;
                }
                let at = (block * len) as u64;
                for entry in verifier.push(entries.list(), at, data).into_iter().flatten() {
                    prop_assert!(!std::mem::replace(&mut verified[entry], true), "twice");
                    if let Some((contents, _)) = file(&entries.list()[entry]) {
                        prop_assert!(contents.end <= at + data.len() as u64, "early");
                    }
                }
            }
            for (entry, is_verified) in entries.list().iter().zip(verified) {
                let Some((contents, _)) = file(entry) else {
                    continue;
                };
                let has = |at: usize| contents.contains(&(at as u64));
                let is_missing = missing
                    .is_some_and(|block| (block * len..(block + 1) * len).any(has));
                let is_damaged = damaged.is_some_and(has);
                if !contents.is_empty() {
                    prop_assert_eq!(is_verified, !is_missing && !is_damaged);
                }
            }
        }
    }
}
