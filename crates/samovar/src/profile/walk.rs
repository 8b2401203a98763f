//! Walks a tree and counts its [`Facts`].

use std::collections::HashSet;
use std::path::Path;

use samovar_store::{EntryType, Metadata, Scan, TreeError, Visit};

use super::facts::{Facts, File};
use super::sizes::Frames;

/// Maximum number of files with several names that are remembered: about 40 MB. Names of further
/// files count as files of their own.
const KNOWN_MAX: usize = 1_000_000;

/// Number of unreadable entries whose paths are kept.
const PROBLEM_COUNT_MAX: usize = 10;

/// Options of a walk.
#[derive(Debug, Clone, Copy)]
pub(super) struct WalkOptions {
    pub(super) frames: Frames,
    /// Number of directories in the list of those with the most files.
    pub(super) top_count: usize,
    pub(super) crosses_mounts: bool,
}

/// A counted tree.
#[derive(Debug)]
pub(super) struct Walked {
    pub(super) facts: Facts,
    /// Number of entries that could not be read.
    pub(super) unreadable: u64,
    /// Number of entries that were deleted while the tree was walked.
    pub(super) vanished: u64,
    /// Paths of the first unreadable entries, with the reasons.
    pub(super) problems: Vec<(Vec<u8>, String)>,
}

/// Counts the tree at `root`. Entries that cannot be read are counted as such.
///
/// # Errors
///
/// The root cannot be read.
pub(super) fn walk(root: &Path, options: WalkOptions) -> Result<Walked, TreeError> {
    let mut scan = Scan::open(root, options.crosses_mounts)?;
    let mut walked = Walked {
        facts: Facts::new(options.frames, options.top_count, scan.root().allocated()),
        unreadable: 0,
        vanished: 0,
        problems: Vec::new(),
    };
    let mut known = HashSet::new();
    loop {
        match scan.step() {
            Ok(None) => break,
            Ok(Some(visit)) => walked.count(&visit, &mut known),
            // A directory was moved while the scan was deep below it: the scan has ended.
            Err(error) => {
                walked.note(b"", &error);
                break;
            }
        }
    }
    Ok(walked)
}

impl Walked {
    fn count(&mut self, visit: &Visit<'_>, known: &mut HashSet<(u64, u64)>) {
        match visit {
            Visit::Enter { name, metadata } => self.facts.enter(name, metadata.allocated()),
            Visit::Leave => self.facts.leave(),
            Visit::Unreadable {
                error: TreeError::Vanished,
                ..
            } => self.vanished += 1,
            Visit::Unreadable { name, error } => self.note(name, error),
            Visit::Entry { name, metadata } => match metadata.entry_type() {
                EntryType::File => {
                    let is_known = is_known(metadata, known);
                    self.facts.file(name, file(metadata), is_known);
                }
                EntryType::Symlink => self.facts.symlink(name, metadata.size()),
                EntryType::Directory => self.facts.mount(),
                EntryType::Special => self.facts.special(),
            },
        }
    }

    fn note(&mut self, name: &[u8], error: &TreeError) {
        self.unreadable += 1;
        if self.problems.len() < PROBLEM_COUNT_MAX {
            let path = self.facts.path_of(name);
            self.problems.push((path, error.to_string()));
        }
    }
}

/// Returns whether the file was counted under another name, and remembers it.
fn is_known(metadata: &Metadata, known: &mut HashSet<(u64, u64)>) -> bool {
    let id = metadata.file_id();
    match metadata.link_count() {
        0 | 1 => false,
        _ if known.len() < KNOWN_MAX => !known.insert(id),
        _ => known.contains(&id),
    }
}

fn file(metadata: &Metadata) -> File {
    File {
        size: metadata.size(),
        allocated: metadata.allocated(),
        is_executable: metadata.is_executable(),
    }
}
