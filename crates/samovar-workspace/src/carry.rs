//! [`Scanned::carry`]: entries of an earlier tree in place of those that cannot be scanned.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::entries::{Entries, Kind, TreeError};
use crate::scan::{FileState, Scanned, Skipped};
use crate::walk::Walk;

impl Skipped {
    /// Returns the paths of what is in the tree and could not be scanned: mounted file systems, and
    /// entries that cannot be read.
    pub fn hidden(&self) -> impl Iterator<Item = &Path> {
        let paths = self.mounts.iter().chain(&self.unreadable);
        paths.map(|path| &**path)
    }

    /// Returns this path if it is hidden, or the hidden directory that contains it.
    #[must_use]
    pub fn hides(&self, path: &[u8]) -> Option<&Path> {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        self.hidden().find(|hidden| path.starts_with(hidden))
    }
}

impl Scanned {
    /// Adds the entries that `base` has at and below [hidden](Skipped::hidden) paths: nobody has
    /// removed these entries. Their files cannot be read.
    ///
    /// # Errors
    ///
    /// The entries do not form a tree, which only a damaged base can cause.
    pub fn carry(&mut self, base: &Entries) -> Result<(), TreeError> {
        let hidden = self.skipped.hidden();
        let found = hidden.filter_map(|path| base.find(path.as_os_str().as_bytes()));
        let ranges = found.filter_map(|index| match base.get(index)?.kind {
            Kind::Directory { end } => Some(index..end),
            _ => Some(index..index + 1),
        });
        let ranges: Vec<_> = ranges.collect();
        if ranges.is_empty() {
            return Ok(());
        }
        let mut entries = Vec::with_capacity(self.states.len());
        let mut states = Vec::with_capacity(self.states.len());
        for pair in Walk::new([base, &self.entries]) {
            let (entry, state) = match pair {
                [_, Some(new)] => (self.entries.get(new), self.states.get(new).copied()),
                [Some(old), None] if ranges.iter().any(|range| range.contains(&old)) => {
                    (base.get(old), Some(FileState::default()))
                }
                _ => continue,
            };
            let (Some(entry), Some(state)) = (entry, state) else {
                continue;
            };
            entries.push(entry);
            states.push(state);
        }
        self.entries = Entries::of(entries)?;
        self.states = states;
        self.is_carrying = true;
        Ok(())
    }
}
