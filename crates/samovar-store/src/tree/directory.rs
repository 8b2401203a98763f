//! One directory of a walk: its entries, sorted as a NAR has them.

use std::cmp::Ordering;
use std::ffi::CStr;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, RawDir};

use super::TreeError;

/// Enough for a hundred entries at a time; directories of the store have seven on average.
const DENTS_LEN: usize = 32 * 1024;

/// The entries of one directory. Reused from one directory to the next.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// The names, each with a NUL behind it.
    names: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// The first eight bytes, as a number that sorts as they do: mostly no other ones are needed.
    prefix: u64,
    start: usize,
    /// Without the NUL.
    len: usize,
    file_type: FileType,
}

/// Room for the kernel's directory entries.
#[derive(Debug, Default)]
pub(super) struct Dents(Vec<u8>);

impl Entries {
    /// Reads all entries of a directory, in place of those held so far.
    pub(super) fn read(&mut self, directory: &OwnedFd, dents: &mut Dents) -> Result<(), TreeError> {
        self.names.clear();
        self.entries.clear();
        dents.0.reserve(DENTS_LEN);
        let mut raw = RawDir::new(directory.as_fd(), dents.0.spare_capacity_mut());
        while let Some(entry) = raw.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes_with_nul();
            if matches!(name, b".\0" | b"..\0") {
                continue;
            }
            self.entries.push(Entry {
                prefix: prefix(name),
                start: self.names.len(),
                len: name.len() - 1,
                file_type: entry.file_type(),
            });
            self.names.extend_from_slice(name);
        }
        let names = &self.names;
        self.entries
            .sort_unstable_by(|left, right| compare(names, left, right));
        Ok(())
    }

    /// How many entries there are.
    pub(super) fn count(&self) -> usize {
        self.entries.len()
    }

    /// The name of an entry.
    pub(super) fn name(&self, index: usize) -> &[u8] {
        name(&self.names, &self.entries[index])
    }

    /// The name of an entry, for a system call.
    pub(super) fn c_name(&self, index: usize) -> Result<&CStr, TreeError> {
        let entry = &self.entries[index];
        CStr::from_bytes_with_nul(&self.names[entry.start..=entry.start + entry.len])
            .map_err(|_error| TreeError::Changed)
    }

    /// The type of an entry, as far as the directory says.
    pub(super) fn file_type(&self, index: usize) -> FileType {
        self.entries[index].file_type
    }
}

fn compare(names: &[u8], left: &Entry, right: &Entry) -> Ordering {
    left.prefix
        .cmp(&right.prefix)
        .then_with(|| name(names, left).cmp(name(names, right)))
}

fn name<'a>(names: &'a [u8], entry: &Entry) -> &'a [u8] {
    &names[entry.start..entry.start + entry.len]
}

/// A name shorter than eight bytes sorts as if NULs followed, of which a name holds none.
fn prefix(name_with_nul: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = name_with_nul.len().min(8);
    bytes[..len].copy_from_slice(&name_with_nul[..len]);
    u64::from_be_bytes(bytes)
}
