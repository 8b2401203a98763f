//! The sorted entries of one directory, within a memory budget shared by all walks.
//!
//! # Theory of operation
//!
//! While a client reads slowly, the reader of its NAR holds the entries of its current directory,
//! and many such directories may be large. So the memory above [`FREE_LEN`] per directory has a
//! common limit. A walk that exceeds this budget keeps the entries that sort first, and reads the
//! directory again for the others. That takes longer, but no walk waits or fails.

use std::cmp::Ordering;
use std::ffi::CStr;
use std::sync::atomic::AtomicUsize;

use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, SeekFrom, seek};

use super::TreeError;
use super::reservation::Reservation;
pub(super) use crate::sys::Dents;
use crate::sys::each_entry;

/// Memory per directory that does not count towards the budget, in bytes: some two thousand
/// entries.
const FREE_LEN: usize = 64 * 1024;

/// Budget of all walks of the process together, in bytes: two million entries.
const MEMORY_LEN_MAX: usize = 64 << 20;

/// Bytes of the budget in use.
static MEMORY_LEN: AtomicUsize = AtomicUsize::new(0);

/// Initial capacity, as entries and bytes of names: small, because a tree may be thousands of
/// directories deep.
const FIRST_CAPACITY: (usize, usize) = (8, 256);

/// The entries of one directory, or a consecutive part of them. Reused for the next directory.
#[derive(Debug)]
pub(super) struct Entries {
    /// NUL-terminated names.
    names: Vec<u8>,
    entries: Vec<Entry>,
    /// Share of the budget for the memory above [`FREE_LEN`] that `names` and `entries` use.
    memory: Reservation,
    memory_len_max: usize,
    /// Number of entries of the whole directory, not only of this part.
    count_in_all: u64,
    /// The last name of this part if more entries follow it; `None` if the budget sufficed for all.
    bound: Option<Box<[u8]>>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The first eight bytes as a big-endian number, which decides most comparisons.
    prefix: u64,
    start: u32,
    /// Length of the name in bytes, without the NUL.
    len: u16,
    file_type: FileType,
}

impl Default for Entries {
    fn default() -> Self {
        Self::within(MEMORY_LEN_MAX, &MEMORY_LEN)
    }
}

impl Entries {
    fn within(memory_len_max: usize, taken: &'static AtomicUsize) -> Self {
        Self {
            names: Vec::new(),
            entries: Vec::new(),
            memory: Reservation::empty(taken),
            memory_len_max,
            count_in_all: 0,
            bound: None,
        }
    }

    /// Reads a directory from its start, replacing the current entries.
    pub(super) fn read(
        &mut self,
        directory: BorrowedFd<'_>,
        dents: &mut Dents,
    ) -> Result<(), TreeError> {
        self.count_in_all = self.scan(directory, dents, None)?;
        Ok(())
    }

    /// Returns the number of entries of the whole directory.
    pub(super) fn count_in_all(&self) -> u64 {
        self.count_in_all
    }

    /// Replaces the current part by the entries that follow it, as far as the budget allows.
    pub(super) fn read_on(
        &mut self,
        directory: BorrowedFd<'_>,
        dents: &mut Dents,
    ) -> Result<(), TreeError> {
        let after = self.bound.take().ok_or(TreeError::Changed)?;
        seek(directory, SeekFrom::Start(0))?;
        // Store paths do not change. If a directory changes nevertheless, its NAR is invalid; this
        // check usually detects the change.
        if self.scan(directory, dents, Some(&after))? != self.count_in_all {
            return Err(TreeError::Changed);
        }
        Ok(())
    }

    /// Returns whether entries after this part remain for [`read_on`](Self::read_on).
    pub(super) fn has_more(&self) -> bool {
        self.bound.is_some()
    }

    /// Returns whether the entries fit into [`FREE_LEN`] and use nothing of the budget.
    pub(super) fn is_small(&self) -> bool {
        self.memory.count() == 0
    }

    /// Reads entries after `after` within the budget, and counts all entries.
    fn scan(
        &mut self,
        directory: BorrowedFd<'_>,
        dents: &mut Dents,
        after: Option<&[u8]>,
    ) -> Result<u64, TreeError> {
        self.names.clear();
        self.entries.clear();
        self.bound = None;
        let mut count = 0;
        each_entry(directory, dents, |name, file_type| {
            let bytes = name.to_bytes();
            if matches!(bytes, b"." | b"..") {
                return Ok(());
            }
            count += 1;
            match after {
                Some(after) if bytes <= after => Ok(()),
                _ => self.add(name, file_type),
            }
        })?;
        self.sort();
        if !self.is_small() {
            self.names.shrink_to_fit();
            self.entries.shrink_to_fit();
            let taken = memory_len(self.entries.capacity(), self.names.capacity());
            self.memory.shrink_to(taken.saturating_sub(FREE_LEN));
        }
        Ok(count)
    }

    fn add(&mut self, name: &CStr, file_type: FileType) -> Result<(), TreeError> {
        let with_nul = name.to_bytes_with_nul();
        loop {
            if let Some(bound) = &self.bound
                && name.to_bytes() > bound
            {
                return Ok(());
            }
            if self.try_grow(with_nul.len()) {
                break;
            }
            self.drop_last_half();
        }
        self.entries.push(Entry {
            prefix: prefix(with_nul),
            start: u32::try_from(self.names.len()).map_err(|_error| TreeError::Exhausted)?,
            len: u16::try_from(with_nul.len() - 1).map_err(|_error| TreeError::Exhausted)?,
            file_type,
        });
        self.names.extend_from_slice(with_nul);
        Ok(())
    }

    /// Makes the buffers large enough for one more entry, by doubling them if necessary. Returns
    /// `false` if the memory budget, or the range of 32-bit indexes, does not suffice.
    fn try_grow(&mut self, name_len: usize) -> bool {
        let double = |capacity: usize, first: usize| capacity.saturating_mul(2).max(first);
        let (mut count, mut names_len) = (self.entries.capacity(), self.names.capacity());
        if self.entries.len() == count {
            count = double(count, FIRST_CAPACITY.0);
        }
        if name_len > names_len - self.names.len() {
            names_len = double(names_len, FIRST_CAPACITY.1);
        }
        if (count, names_len) == (self.entries.capacity(), self.names.capacity()) {
            return true;
        }
        let wanted = memory_len(count, names_len).saturating_sub(FREE_LEN);
        let more = wanted.saturating_sub(self.memory.count());
        let is_indexed = u32::try_from(names_len).is_ok();
        if !is_indexed || more > 0 && !self.memory.try_grow(more, self.memory_len_max) {
            return false;
        }
        self.entries.reserve_exact(count - self.entries.len());
        self.names.reserve_exact(names_len - self.names.len());
        true
    }

    /// Drops the second half of the entries, to be read later.
    fn drop_last_half(&mut self) {
        self.sort();
        self.entries.truncate(self.entries.len() / 2);
        self.bound = self
            .entries
            .last()
            .map(|last| name(&self.names, last).into());
        // Compact the remaining names, in the order in which they are stored.
        self.entries.sort_unstable_by_key(|entry| entry.start);
        let mut end = 0;
        for entry in &mut self.entries {
            let start = entry.start as usize;
            let len = usize::from(entry.len) + 1;
            self.names.copy_within(start..start + len, end);
            // The fallback is unreachable: `end` never exceeds `start`.
            entry.start = u32::try_from(end).unwrap_or(entry.start);
            end += len;
        }
        self.names.truncate(end);
    }

    fn sort(&mut self) {
        let names = &self.names;
        self.entries
            .sort_unstable_by(|left, right| compare(names, left, right));
    }

    /// Returns the number of entries of the current part.
    pub(super) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the name of an entry.
    pub(super) fn name(&self, index: usize) -> &[u8] {
        name(&self.names, &self.entries[index])
    }

    /// Returns the name of an entry, for a system call.
    pub(super) fn c_name(&self, index: usize) -> Result<&CStr, TreeError> {
        let entry = &self.entries[index];
        let start = entry.start as usize;
        CStr::from_bytes_with_nul(&self.names[start..=start + usize::from(entry.len)])
            .map_err(|_error| TreeError::Changed)
    }

    /// Returns the type of an entry as given by `getdents`, which may be unknown.
    pub(super) fn file_type(&self, index: usize) -> FileType {
        self.entries[index].file_type
    }
}

/// Returns the size of buffers for `count` entries and `names_len` bytes of names, in bytes.
fn memory_len(count: usize, names_len: usize) -> usize {
    count
        .saturating_mul(size_of::<Entry>())
        .saturating_add(names_len)
}

fn compare(names: &[u8], left: &Entry, right: &Entry) -> Ordering {
    left.prefix
        .cmp(&right.prefix)
        .then_with(|| name(names, left).cmp(name(names, right)))
}

fn name<'a>(names: &'a [u8], entry: &Entry) -> &'a [u8] {
    let start = entry.start as usize;
    &names[start..start + usize::from(entry.len)]
}

/// Returns the sort prefix of a name. A name shorter than eight bytes sorts as if padded with NUL,
/// which no name contains.
fn prefix(name_with_nul: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = name_with_nul.len().min(8);
    bytes[..len].copy_from_slice(&name_with_nul[..len]);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::path::Path;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    fn directory(count: usize) -> (tempfile::TempDir, BTreeSet<Vec<u8>>) {
        // In memory, because creating files on a busy disk takes milliseconds each.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut names = BTreeSet::new();
        for number in 0..count {
            // The names have various lengths, and many names share a prefix.
            let scrambled = number * 7919 % count;
            let name = format!(
                "{}-{scrambled}-{}",
                scrambled % 3,
                "x".repeat(scrambled % 97)
            );
            File::create(dir.path().join(&name)).unwrap();
            names.insert(name.into_bytes());
        }
        (dir, names)
    }

    fn read_all(path: &Path, entries: &mut Entries) -> (Vec<Vec<u8>>, usize) {
        let directory = File::open(path).unwrap();
        let mut dents = Dents::default();
        entries.read(directory.as_fd(), &mut dents).unwrap();
        let (mut names, mut parts) = (Vec::new(), 1);
        loop {
            for index in 0..entries.count() {
                assert_eq!(
                    entries.c_name(index).unwrap().to_bytes(),
                    entries.name(index)
                );
                assert_eq!(entries.file_type(index), FileType::RegularFile);
                names.push(entries.name(index).to_vec());
            }
            if !entries.has_more() {
                return (names, parts);
            }
            entries.read_on(directory.as_fd(), &mut dents).unwrap();
            parts += 1;
        }
    }

    #[test]
    fn directories_above_the_budget_are_read_in_parts_and_in_order() {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        const ROOM_LEN: usize = 4096 * 16 + (1 << 18);
        assert_eq!(size_of::<Entry>(), 16);
        let (dir, names) = directory(4000);
        for (len_max, parts_expected) in [
            (0, 4..20),
            (50_000, 3..12),
            // 4,000 entries with 220 KB of names; capacities are powers of two.
            (ROOM_LEN - FREE_LEN - 1, 2..4),
            (ROOM_LEN - FREE_LEN, 1..2),
        ] {
            let mut entries = Entries::within(len_max, &TAKEN);
            let (found, parts) = read_all(dir.path(), &mut entries);
            assert!(found.iter().eq(&names), "with {len_max} bytes");
            assert!(
                parts_expected.contains(&parts),
                "{parts} with {len_max} bytes"
            );
            assert!(TAKEN.load(Relaxed) <= len_max);
            let held = memory_len(entries.entries.capacity(), entries.names.capacity());
            assert!(held <= len_max + FREE_LEN, "{held} with {len_max} bytes");
            drop(entries);
            assert_eq!(TAKEN.load(Relaxed), 0);
        }
    }

    #[test]
    fn other_walks_share_the_budget() {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        const LEN_MAX: usize = 1 << 20;
        let (dir, names) = directory(4000);
        let mut holders = [(); 8].map(|()| Entries::within(LEN_MAX, &TAKEN));
        let directory = File::open(dir.path()).unwrap();
        for holder in &mut holders {
            seek(&directory, SeekFrom::Start(0)).unwrap();
            holder
                .read(directory.as_fd(), &mut Dents::default())
                .unwrap();
            assert!(TAKEN.load(Relaxed) <= LEN_MAX);
        }
        assert!(!holders[0].has_more() && holders[7].has_more());
        let mut late = Entries::within(LEN_MAX, &TAKEN);
        let (found, parts) = read_all(dir.path(), &mut late);
        assert!(found.iter().eq(&names) && parts > 2, "{parts}");
        drop(holders);
        let (found, parts) = read_all(dir.path(), &mut late);
        assert!(found.iter().eq(&names));
        assert_eq!(parts, 1);
    }

    #[test]
    fn a_change_between_two_parts_is_found() {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        let (dir, names) = directory(2500);
        let directory = File::open(dir.path()).unwrap();
        let mut entries = Entries::within(0, &TAKEN);
        let mut dents = Dents::default();
        entries.read(directory.as_fd(), &mut dents).unwrap();
        let first = std::str::from_utf8(names.first().unwrap()).unwrap();
        std::fs::remove_file(dir.path().join(first)).unwrap();
        let outcome = entries.read_on(directory.as_fd(), &mut dents);
        assert!(matches!(outcome, Err(TreeError::Changed)), "{outcome:?}");
    }
}
