//! Operations that build the NAR of a new tree from the NAR of a base tree.
//!
//! # Rules
//!
//! * A run of entries that the base has in the same order becomes one copy, including the framing
//!   between the entries.
//! * A file whose contents are anywhere in the base is copied. The source is the file that
//!   continues the run, else the file with the same path, else the file that follows the last
//!   match, else any file with these contents.
//! * Everything else is literal. Framing is copied only where it adjoins other copies, or if it
//!   is long.
//! * Empty files are framing.

use std::collections::HashMap;
use std::ops::Range;

use crate::entries::{Entries, Kind};
use crate::walk::Walk;

mod chunks;
#[cfg(test)]
mod tests;

use chunks::{Chunks, common_prefix, common_suffix};

/// Operations that build a new NAR from a base NAR.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// The operations, in the order of the new NAR. None of them is empty.
    pub ops: Vec<Op>,
    /// The bytes of all [`Op::Bytes`].
    pub bytes: Vec<u8>,
    literal_len: u64,
}

/// An operation that appends bytes to the new NAR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Appends a range of the base NAR.
    Copy {
        /// Offset in the base NAR, in bytes.
        offset: u64,
        /// Length, in bytes.
        len: u64,
    },
    /// Appends this range of [`Delta::bytes`].
    Bytes(Range<usize>),
    /// Appends the contents of the file with this index in the new tree, without padding.
    File(usize),
}

impl Delta {
    /// Returns the operations that build the NAR of `new` from the NAR of `base`. Contents are
    /// compared by digest and size; a file without a digest is literal.
    #[must_use]
    pub fn of_trees(base: &Entries, new: &Entries) -> Self {
        let base = Base::new(base);
        let mut delta = Self::default();
        let mut finder = Finder::new(&base, new);
        let mut gaps = Gaps::new(&base);
        let mut gap = Vec::new();
        let mut framing = new.framing();
        // `next_file` can fail only after the end.
        while let Ok(Some(index)) = framing.next_file(&mut gap) {
            let Some((size, digest)) = contents(new, index) else {
                continue;
            };
            let found = finder.find(index, size, digest, &gap);
            gaps.write(&gap, found, finder.near(), &mut delta);
            gap.clear();
            match found {
                Some(file) => delta.copy(base.files[file].offset, size),
                None => delta.file(index, size),
            }
        }
        gaps.write(&gap, Some(base.files.len()), finder.near(), &mut delta);
        delta
    }

    /// Returns the operations that build `new` from `base`. Suits NARs of manifests: the bytes are
    /// compared by lines.
    #[must_use]
    pub fn of_texts(base: &[u8], new: &[u8]) -> Self {
        let mut delta = Self::default();
        delta.matched(&Chunks::new(base, after_line), 0, new);
        delta
    }

    /// Returns whether the new NAR is the same as the base's NAR.
    #[must_use]
    pub fn is_copy_of(&self, base: &Entries) -> bool {
        let len = base.nar_size();
        self.ops == [Op::Copy { offset: 0, len }]
    }

    /// Returns the number of bytes of the new NAR that are not copied from the base.
    #[must_use]
    pub fn literal_len(&self) -> u64 {
        self.literal_len
    }

    fn copy(&mut self, offset: u64, len: u64) {
        match self.ops.last_mut() {
            Some(Op::Copy {
                offset: last,
                len: last_len,
            }) if *last + *last_len == offset => *last_len += len,
            _ if len > 0 => self.ops.push(Op::Copy { offset, len }),
            _ => {}
        }
    }

    fn file(&mut self, index: usize, size: u64) {
        self.ops.push(Op::File(index));
        self.literal_len += size;
    }

    fn literal(&mut self, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.literal_len += bytes.len() as u64;
        match self.ops.last_mut() {
            Some(Op::Bytes(last)) => last.end = self.bytes.len(),
            _ if !bytes.is_empty() => self.ops.push(Op::Bytes(start..self.bytes.len())),
            _ => {}
        }
    }

    /// Writes `new` with copies of chunks. The chunks start at `offset` in the base NAR.
    fn matched(&mut self, chunks: &Chunks<'_>, offset: u64, new: &[u8]) {
        let mut end = 0;
        chunks.matches(new, |found| {
            self.literal(&new[end..found.new.start]);
            self.copy(offset + found.base as u64, found.new.len() as u64);
            end = found.new.end;
        });
        self.literal(&new[end..]);
    }
}

/// Returns size and digest of a file that is not empty.
fn contents(entries: &Entries, index: usize) -> Option<(u64, Option<&[u8; 32]>)> {
    match &entries.get(index)?.kind {
        Kind::File { size, digest, .. } if *size > 0 => Some((*size, digest.as_ref())),
        _ => None,
    }
}

/// The NAR of the base: files that are not empty, and gaps of framing before, between and after
/// them. Gap `n` precedes file `n`; the last gap follows the last file.
struct Base<'a> {
    entries: &'a Entries,
    files: Vec<BaseFile>,
    framing: Vec<u8>,
}

struct BaseFile {
    index: usize,
    /// Offset in the NAR.
    offset: u64,
    size: u64,
    /// End of the gap before the file, in `framing`.
    gap_end: usize,
}

/// Framing between two files.
struct Gap<'a> {
    /// Offset in the NAR.
    offset: u64,
    bytes: &'a [u8],
}

impl<'a> Base<'a> {
    fn new(entries: &'a Entries) -> Self {
        let mut files = Vec::new();
        let mut bytes = Vec::new();
        let mut framing = entries.framing();
        while let Ok(Some(index)) = framing.next_file(&mut bytes) {
            if let Some(&Kind::File { size, offset, .. }) = entries.get(index).map(|it| &it.kind)
                && size > 0
            {
                files.push(BaseFile {
                    index,
                    offset,
                    size,
                    gap_end: bytes.len(),
                });
            }
        }
        Self {
            entries,
            files,
            framing: bytes,
        }
    }

    fn gap(&self, number: usize) -> Gap<'_> {
        let before = number
            .checked_sub(1)
            .and_then(|before| self.files.get(before));
        let start = before.map_or(0, |file| file.gap_end);
        let end = self
            .files
            .get(number)
            .map_or(self.framing.len(), |file| file.gap_end);
        Gap {
            offset: before.map_or(0, |file| file.offset + file.size),
            bytes: &self.framing[start..end],
        }
    }
}

/// Finds the contents of the new tree's files in the base.
struct Finder<'a> {
    base: &'a Base<'a>,
    walk: Walk<'a, 2>,
    /// Index in the base of the last entry whose path does not follow the path of the last file.
    position: usize,
    /// Number of the file after the last match.
    expected: usize,
    /// Number of files since the last match.
    skipped: usize,
    /// Number of the first file for each digest; built when it is first needed.
    by_digest: Option<HashMap<&'a [u8; 32], usize>>,
}

impl<'a> Finder<'a> {
    fn new(base: &'a Base<'a>, new: &'a Entries) -> Self {
        Self {
            base,
            walk: Walk::new([base.entries, new]),
            position: 0,
            expected: 0,
            skipped: 0,
            by_digest: None,
        }
    }

    /// Returns the number of a file of the base with the contents of this file, which `gap`
    /// precedes. The indices must ascend from call to call.
    fn find(
        &mut self,
        index: usize,
        size: u64,
        digest: Option<&[u8; 32]>,
        gap: &[u8],
    ) -> Option<usize> {
        let mut same_path = None;
        for [in_base, in_new] in self.walk.by_ref() {
            if in_new == Some(index) {
                same_path = in_base;
            }
            self.position = in_base.unwrap_or(self.position);
            if in_new == Some(index) {
                break;
            }
        }
        let same_path = same_path.and_then(|entry| {
            let files = &self.base.files;
            files.binary_search_by_key(&entry, |file| file.index).ok()
        });
        let base = self.base;
        let is_match = |number: &usize| {
            let file = base.files.get(*number);
            let found = file.and_then(|file| contents(base.entries, file.index));
            digest.is_some() && found == Some((size, digest))
        };
        let is_run = self.skipped == 0 && base.gap(self.expected).bytes == gap;
        let following = [self.expected, self.expected + self.skipped];
        let run = is_run.then_some(self.expected);
        let mut candidates = run.into_iter().chain(same_path).chain(following);
        let found = candidates.find(is_match);
        let found = found.or_else(|| {
            let number = self.by_digest().get(digest?).copied();
            number.filter(is_match)
        });
        match found {
            Some(number) => {
                self.expected = number + 1;
                self.skipped = 0;
            }
            None => self.skipped += 1,
        }
        found
    }

    /// Returns the number of the base's gap at the path of the last file.
    fn near(&self) -> usize {
        let files = &self.base.files;
        files.partition_point(|file| file.index < self.position)
    }

    fn by_digest(&mut self) -> &HashMap<&'a [u8; 32], usize> {
        let base = self.base;
        self.by_digest.get_or_insert_with(|| {
            let mut map = HashMap::with_capacity(base.files.len());
            for (number, file) in base.files.iter().enumerate() {
                if let Some((_, Some(digest))) = contents(base.entries, file.index) {
                    map.entry(digest).or_insert(number);
                }
            }
            map
        })
    }
}

/// Writes the gaps between the files of the new tree.
struct Gaps<'a> {
    base: &'a Base<'a>,
    /// The base's gap after the end of the last copy; `None` after a literal file.
    before: Option<usize>,
    /// The chunks of the base's gap with this number.
    chunks: Option<(usize, Chunks<'a>)>,
}

/// Length in bytes from which framing is compared by entries. Shorter framing is copied only where
/// it adjoins other copies.
const LONG: usize = 1024;

impl<'a> Gaps<'a> {
    fn new(base: &'a Base<'a>) -> Self {
        Self {
            base,
            before: Some(0),
            chunks: None,
        }
    }

    /// Writes the gap before a file. `after`: the gap of the base that precedes the same contents.
    /// `near`: a gap with which a long gap without neighbors is compared.
    fn write(&mut self, gap: &[u8], after: Option<usize>, near: usize, delta: &mut Delta) {
        let mut rest = gap;
        if let Some(before) = self.before {
            let before = self.base.gap(before);
            let len = common_prefix(before.bytes, rest);
            delta.copy(before.offset, len as u64);
            rest = &rest[len..];
        }
        let common = after.map(|after| {
            let after = self.base.gap(after);
            let len = common_suffix(after.bytes, rest);
            (after.offset + (after.bytes.len() - len) as u64, len)
        });
        let (offset, len) = common.unwrap_or_default();
        let middle = &rest[..rest.len() - len];
        match middle.len() {
            ..LONG => delta.literal(middle),
            LONG.. => {
                let number = self.before.or(after).unwrap_or(near);
                let offset = self.base.gap(number).offset;
                delta.matched(self.chunks(number), offset, middle);
            }
        }
        delta.copy(offset, len as u64);
        self.before = after.map(|after| after + 1);
    }

    fn chunks(&mut self, number: usize) -> &Chunks<'a> {
        let base = self.base;
        let new = || (number, Chunks::new(base.gap(number).bytes, after_entry));
        if self
            .chunks
            .as_ref()
            .is_some_and(|(cached, _)| *cached != number)
        {
            self.chunks = None;
        }
        &self.chunks.get_or_insert_with(new).1
    }
}

fn after_line(bytes: &[u8], start: usize) -> usize {
    let line = bytes[start..].iter().position(|byte| *byte == b'\n');
    line.map_or(bytes.len(), |len| start + len + 1)
}

/// Returns the end of the next string `entry`, which precedes each entry of a NAR.
fn after_entry(bytes: &[u8], start: usize) -> usize {
    const STRING: &[u8] = b"entry\0\0\0";
    let mut windows = bytes[start..].windows(STRING.len());
    let len = windows.position(|window| window == STRING);
    len.map_or(bytes.len(), |len| start + len + STRING.len())
}
