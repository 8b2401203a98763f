//! Follows the roots of policies to store paths.

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};

use samovar_nix::{StoreDir, StorePath};

use super::{DEPTH_MAX, HOP_COUNT_MAX, RootsError, RuleRoots};

impl RuleRoots {
    /// Returns the store paths to which the roots of this rule lead.
    pub(super) fn store_paths(&self, dir: &StoreDir) -> Result<BTreeSet<StorePath>, RootsError> {
        let mut found = BTreeSet::new();
        for root in &self.roots {
            let outcome = match follow(root, dir) {
                Ok(LinkTarget::StorePath(path)) => {
                    found.insert(path);
                    Ok(())
                }
                Ok(LinkTarget::Directory(directory)) => {
                    let mut search = Search {
                        dir,
                        denies: self.denies,
                        found: &mut found,
                    };
                    search.directory(&directory, DEPTH_MAX)
                }
                Ok(LinkTarget::Other) => Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "leads to no store path and is no folder of links to store paths",
                )),
                Err(error) if error.kind() == io::ErrorKind::NotFound && !self.denies => Ok(()),
                Err(error) => Err(error),
            };
            outcome.map_err(|error| RootsError {
                path: root.clone(),
                error,
            })?;
        }
        Ok(found)
    }
}

/// A search for links to store paths in a directory tree.
struct Search<'a> {
    dir: &'a StoreDir,
    denies: bool,
    found: &'a mut BTreeSet<StorePath>,
}

impl Search<'_> {
    /// Adds the store paths to which links in a directory tree lead. A link to a directory is
    /// ignored under an allow rule, as Nix does. A deny rule must not miss a path, so the links in
    /// that directory are followed too, but not the directories in it: it may be any directory.
    /// Links that do not lead to a store path are ignored.
    fn directory(&mut self, directory: &Path, depth: usize) -> io::Result<()> {
        for entry in directory.read_dir()? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let outcome = if kind.is_symlink() {
                self.link(&entry.path(), true)
            } else if !kind.is_dir() {
                Ok(())
            } else if depth > 0 {
                self.directory(&entry.path(), depth - 1)
            } else {
                Err(io::Error::other("too many nested directories"))
            };
            self.check(outcome)?;
        }
        Ok(())
    }

    fn link(&mut self, link: &Path, follows_directory: bool) -> io::Result<()> {
        match follow(link, self.dir)? {
            LinkTarget::StorePath(path) => {
                self.found.insert(path);
            }
            LinkTarget::Directory(directory) if self.denies && follows_directory => {
                for entry in directory.read_dir()? {
                    let entry = entry?;
                    if entry.file_type()?.is_symlink() {
                        let outcome = self.link(&entry.path(), false);
                        self.check(outcome)?;
                    }
                }
            }
            LinkTarget::Directory(_) | LinkTarget::Other => {}
        }
        Ok(())
    }

    /// Ignores the errors that do not make a search incomplete.
    fn check(&self, outcome: io::Result<()>) -> io::Result<()> {
        match outcome {
            // A dangling link, or an entry that was removed during the search.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // Links may point into home directories, which the server may not read. A deny rule
            // must not miss a store path.
            Err(_) if !self.denies => Ok(()),
            outcome => outcome,
        }
    }
}

/// The final target of a chain of links.
pub(in crate::reader::policy) enum LinkTarget {
    StorePath(StorePath),
    Directory(PathBuf),
    Other,
}

/// Follows a chain of links up to a path in the logical store directory. The files of the store may
/// be in another directory.
pub(in crate::reader::policy) fn follow(start: &Path, dir: &StoreDir) -> io::Result<LinkTarget> {
    let mut path = start.to_owned();
    for _ in 0..=HOP_COUNT_MAX {
        if let Some(found) = within(&path, dir) {
            return Ok(LinkTarget::StorePath(found));
        }
        if path.components().any(|one| one == Component::ParentDir) {
            path = resolve_parents(&path)?;
            if let Some(found) = within(&path, dir) {
                return Ok(LinkTarget::StorePath(found));
            }
        }
        let kind = path.symlink_metadata()?.file_type();
        if kind.is_dir() {
            return Ok(LinkTarget::Directory(path));
        }
        if !kind.is_symlink() {
            return Ok(LinkTarget::Other);
        }
        let target = path.read_link()?;
        // A relative target is relative to the link's directory; an absolute one replaces the path.
        path.pop();
        path.push(target);
    }
    Err(io::Error::other("too many links in a row"))
}

/// Resolves each `..` as the kernel does. Components after the last `..` need not exist, because
/// the files of the store may be in another directory.
fn resolve_parents(path: &Path) -> io::Result<PathBuf> {
    let components: Vec<Component<'_>> = path.components().collect();
    let is_parent = |one: &Component<'_>| *one == Component::ParentDir;
    let behind = components
        .iter()
        .rposition(is_parent)
        .map_or(0, |last| last + 1);
    let (parents, rest) = components.split_at(behind);
    let mut resolved = parents.iter().collect::<PathBuf>().canonicalize()?;
    resolved.extend(rest);
    Ok(resolved)
}

/// Returns the store path that contains the file at `path`; `None` if the file is not in the store
/// directory.
fn within(path: &Path, dir: &StoreDir) -> Option<StorePath> {
    let rest = path.strip_prefix(dir.as_str()).ok()?;
    let first = rest.components().next()?;
    StorePath::from_base_name(first.as_os_str().to_str()?).ok()
}
