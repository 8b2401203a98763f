//! Walks a tree and counts its [`Facts`].

use std::collections::HashSet;
use std::path::Path;

use samovar_store::{EntryType, Metadata, Scan, TreeError, Visit};

use super::contents::{ContentNumbers, Contents};
use super::facts::{Facts, File};
use super::sizes::Frames;

/// Maximum number of files with several names that are remembered: about 40 MB. Names of further
/// files count as files of their own.
const KNOWN_MAX: usize = 1_000_000;

/// Number of unreadable entries whose paths are kept.
const PROBLEM_COUNT_MAX: usize = 10;

/// Options of a walk.
#[derive(Debug, Clone, Copy)]
pub struct WalkOptions {
    /// The network for which sizes are counted.
    pub frames: Frames,
    /// Number of directories in the list of those with the most files.
    pub top_count: usize,
    /// Whether mounted file systems below the tree are entered.
    pub crosses_mounts: bool,
    /// Whether the contents of all files are read.
    pub reads_contents: bool,
}

/// A counted tree.
#[derive(Debug)]
pub struct Walked {
    /// The numbers of its entries.
    pub facts: Facts,
    /// The numbers of the contents, if they were read.
    pub contents: Option<ContentNumbers>,
    /// Number of entries that could not be read.
    pub unreadable: u64,
    /// Number of entries that were deleted while the tree was walked.
    pub vanished: u64,
    /// Paths of the first unreadable entries, with the reasons.
    pub problems: Vec<(Vec<u8>, String)>,
}

/// Counts the tree at `root`. Entries that cannot be read are counted as such.
///
/// # Errors
///
/// The root cannot be read.
pub fn walk(root: &Path, options: WalkOptions) -> Result<Walked, TreeError> {
    let mut scan = Scan::open(root, options.crosses_mounts)?;
    let mut walked = Walked {
        facts: Facts::new(options.frames, options.top_count, scan.root().allocated()),
        contents: None,
        unreadable: 0,
        vanished: 0,
        problems: Vec::new(),
    };
    let mut contents = match options.reads_contents {
        true => Some(Contents::new().map_err(TreeError::Io)?),
        false => None,
    };
    let mut known = HashSet::new();
    loop {
        match scan.step() {
            Ok(None) => break,
            Ok(Some(Visit::Enter { name, metadata })) => {
                let name = name.to_vec();
                let facts = &mut walked.facts;
                facts.enter(&name, metadata.allocated(), |file| scan.has_beside(file));
            }
            Ok(Some(visit)) => {
                let counted = walked.count(&visit, &mut known);
                let counted = counted.filter(|_| contents.is_some()).map(<[u8]>::to_vec);
                if let (Some(name), Some(contents)) = (counted, &mut contents) {
                    walked.read(&name, &scan, contents);
                }
            }
            // A directory was moved while the scan was deep below it: the scan has ended.
            Err(error) => {
                walked.note(b"", &error);
                break;
            }
        }
    }
    let contents = contents.map(Contents::finish).transpose();
    walked.contents = contents.map_err(TreeError::Io)?;
    Ok(walked)
}

impl Walked {
    /// Counts an entry that is not entered. Returns its name if it is a regular file that was not
    /// counted before.
    fn count<'name>(
        &mut self,
        visit: &Visit<'name>,
        known: &mut HashSet<(u64, u64)>,
    ) -> Option<&'name [u8]> {
        match visit {
            Visit::Enter { .. } => {}
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
                    return (!is_known).then_some(name);
                }
                EntryType::Symlink => self.facts.symlink(name, metadata.size()),
                EntryType::Directory => self.facts.mount(),
                EntryType::Special => self.facts.special(),
            },
        }
        None
    }

    /// Reads the contents of the file that was counted last.
    fn read(&mut self, name: &[u8], scan: &Scan, contents: &mut Contents) {
        let read = scan
            .open_last()
            .and_then(|file| contents.add(file).map_err(TreeError::Io));
        match read {
            Ok(()) => {}
            Err(TreeError::Vanished) => self.vanished += 1,
            Err(error) => self.note(name, &error),
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
