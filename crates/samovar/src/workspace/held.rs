//! [`Held`]: git's own lock in the repositories that a command changes.
//!
//! Without it, a command of git could read the index before a pull has replaced it, and the branch
//! afterwards: the commit would revert what the pull has brought.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::anyhow;
use samovar_text::shown_path;
use samovar_workspace::repository::is_git_repository;
use samovar_workspace::{Entries, Root};

use crate::outcome::Failed;

/// Name of the file that a command of git creates before it changes an index.
const NAME: &[u8] = b"/index.lock";

/// Content of the file. By this content, a later command recognizes the file of a killed one.
const CONTENT: &[u8] = b"samovar workspace\n";

/// Locks of git repositories. They are released on drop.
#[derive(Debug)]
pub(super) struct Held {
    root: Root,
    /// Paths of the repositories.
    repositories: BTreeSet<Vec<u8>>,
}

impl Held {
    /// Takes the locks of all repositories in `ours` that have one of these paths.
    ///
    /// # Errors
    ///
    /// A command of git is changing one of them.
    pub(super) fn take<'a>(
        root: &Path,
        ours: &Entries,
        paths: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> anyhow::Result<Self> {
        let mut held = Self {
            root: Root::open(root)?,
            repositories: BTreeSet::new(),
        };
        let files: BTreeSet<&[u8]> = paths.clone().filter(|path| path.ends_with(NAME)).collect();
        for repository in repositories(ours, paths) {
            let path = [&repository, NAME].concat();
            if files.contains(&*path) {
                continue;
            }
            let create = || held.root.create_file(&path, 0o600);
            let created = match create() {
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists
                        && remove_stale(&root.join(OsStr::from_bytes(&path))) =>
                {
                    create()
                }
                created => created,
            };
            match created {
                Ok(mut file) => {
                    held.repositories.insert(repository);
                    file.write_all(CONTENT)?;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(Failed::Refused.because(anyhow!(
                        "{} exists: another command is changing the repository, or was killed. Run \
                         this command again when that command has ended; if none is running, \
                         remove the file first. Nothing was changed",
                        shown_path(&path)
                    )));
                }
                // Git cannot create the file either.
                Err(_) => {}
            }
        }
        Ok(held)
    }

    /// Releases the lock in a directory that is about to be removed.
    pub(super) fn release(&mut self, directory: &[u8]) {
        if let Some(repository) = self.repositories.take(directory) {
            self.remove(&repository);
        }
    }

    fn remove(&self, repository: &[u8]) {
        let removed = self.root.remove_file(&[repository, NAME].concat());
        removed.unwrap_or_default();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for repository in &self.repositories {
            self.remove(repository);
        }
    }
}

/// Returns the paths of the git repositories that have one of these paths.
fn repositories<'a>(ours: &Entries, paths: impl Iterator<Item = &'a [u8]>) -> BTreeSet<Vec<u8>> {
    let mut known: HashMap<&[u8], bool> = HashMap::new();
    for path in paths {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (end, _) in ends {
            let directory = path.get(..end).unwrap_or_default();
            known.entry(directory).or_insert_with(|| {
                let index = ours.find(directory);
                index.is_some_and(|index| is_git_repository(ours, index))
            });
        }
    }
    let found = known
        .into_iter()
        .filter(|(_, is_repository)| *is_repository);
    found.map(|(path, _)| path.to_vec()).collect()
}

/// Removes a lock that a killed command has left. Returns false if the file is another one. The
/// workspace must be locked.
pub(super) fn remove_stale(path: &Path) -> bool {
    let mut content = Vec::new();
    let read = File::open(path).and_then(|file| file.take(64).read_to_end(&mut content));
    // A process that was killed may have written nothing yet.
    read.is_ok() && content == CONTENT && fs::remove_file(path).is_ok()
}
