//! The mark of the base: tells whether the files of a workspace are those that its state describes.
//!
//! A machine that was cloned has the same directories as the other one, down to their inode
//! numbers and marks. If both have their home directory on one network file system, they also have
//! one state. After one of them has pulled or pushed, the state does not fit the older files of the
//! other, which would count as changes: the next push would revert what the first machine did.
//!
//! So the extended attribute [`MARK`] of the files' directory names two generations: the base
//! before and after the last change of the state. It is written before the state, and a process
//! that is killed in between leaves the former base in the state. If the files are on a local disk,
//! and the state is on a network file system, commands refuse a state whose base is neither of
//! these generations. Where the file system has no such attributes, nothing is refused.

use std::path::Path;

use anyhow::{anyhow, ensure};
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use samovar_workspace::disk::{Use, unsuitable};

use crate::failed::Failed;
use crate::refs::Version;

/// Extended attribute with two generations, or `-` for none.
const MARK: &str = "user.samovar.base";

/// Maximum length of the attribute, in bytes: two numbers with their lineages.
const LEN_MAX: usize = 2 * (20 + 1 + 32) + 1;

/// Marks the directory of the files before the base in the state changes from `old` to `new`.
/// Ignores errors: then nothing is refused.
pub(super) fn mark(files: &Path, old: Option<Version>, new: Option<Version>) {
    let value = format!("{} {}", text(old), text(new));
    if setxattr(files, MARK, value.as_bytes(), XattrFlags::empty()).is_err() {
        unmark(files);
    }
}

/// Removes the mark. Ignores errors: without a state, it means nothing.
pub(super) fn unmark(files: &Path) {
    removexattr(files, MARK).unwrap_or_default();
}

/// Checks that the files of the workspace `root`, which are in the directory `files`, are based on
/// the generation that the state in `dir` names.
///
/// # Errors
///
/// Another machine has changed the state.
pub(super) fn check(
    files: &Path,
    root: &Path,
    dir: &Path,
    base: Option<Version>,
) -> anyhow::Result<()> {
    let mut value = [0; LEN_MAX];
    let Ok(len) = getxattr(files, MARK, &mut value) else {
        return Ok(());
    };
    let marked = String::from_utf8_lossy(value.get(..len).unwrap_or_default()).into_owned();
    let base = text(base);
    // A file system that cannot be examined counts as local.
    let is_shared = |path| matches!(unsuitable(path, Use::Workspace), Ok(Some(_)));
    let is_foreign =
        !marked.split(' ').any(|one| one == base) && is_shared(dir) && !is_shared(files);
    ensure!(
        !is_foreign,
        Failed::Refused.because(anyhow!(
            "the state of {root:?}, in {dir:?} on a network file system, was changed by another \
             machine: the files here are older. If this machine was cloned from the other one, set \
             XDG_STATE_HOME to a local disk, and run samovar workspace open --adopt REF {}. If the \
             files were restored from a backup, and must replace what was pushed since then, run \
             samovar workspace repair",
            root.display()
        ))
    );
    Ok(())
}

fn text(version: Option<Version>) -> String {
    version.map_or_else(|| "-".to_owned(), Version::text)
}
