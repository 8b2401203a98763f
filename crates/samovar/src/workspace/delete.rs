//! Deletion of the files of a workspace, by `samovar workspace close --delete`.
//!
//! Only entries that were scanned are deleted, each if it is still as it was scanned: what a
//! program creates or changes meanwhile stays, and so does each `.samovar`, which no snapshot has.
//! Before the first deletion, the index of the scan is stored, and then the file [`CLOSING`] in the
//! state directory. If the process is killed, the next `close` goes on: it deletes what is in the
//! index and unchanged since. Until then, other commands are refused, because they would take the
//! missing files for removals by the user. The state is removed last, after the directory.
//!
//! In overlay mode, the files are not deleted one by one. The file [`CLOSING`] is created after the
//! overlay was unmounted, then its layers are removed, then the directory and the state.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use samovar_client::push::directory::named;
use samovar_client::workspace::Workspace;
use samovar_workspace::root::{Attributes, is_temporary};
use samovar_workspace::unchanged::{Links, is_as_scanned};
use samovar_workspace::{Index, Kind, Root, STATE_DIRECTORY, Scanned};

use crate::outcome::Failed;
use crate::size::counted;
use crate::user_dirs;

/// File in the state directory that exists while the files are deleted.
pub(super) const CLOSING: &str = "closing";

/// Returns whether the files of a workspace are being deleted, or were until the command was
/// killed.
pub(super) fn is_closing(workspace: &Workspace) -> bool {
    workspace.path(CLOSING).exists()
}

/// Lets the next `close` go on from here if this process is killed.
///
/// # Errors
///
/// The file cannot be written.
pub(super) fn mark_closing(workspace: &Workspace) -> anyhow::Result<()> {
    let marked = fs::File::create(workspace.path(CLOSING)).and_then(|file| file.sync_all());
    marked.with_context(|| format!("cannot write the state of {:?}", workspace.root))
}

/// Refuses a workspace if a `close` that was killed has deleted files of it.
///
/// # Errors
///
/// Files were deleted.
pub(super) fn check_complete(workspace: &Workspace) -> anyhow::Result<()> {
    ensure!(
        workspace.overlay().is_none() || !is_closing(workspace),
        Failed::Refused.because(anyhow!(
            "samovar workspace close of {:?} was interrupted while it removed the files: run it \
             again",
            workspace.root
        ))
    );
    ensure!(
        !is_closing(workspace),
        Failed::Refused.because(anyhow!(
            "files in {:?} are missing, because samovar workspace close --delete was interrupted: \
             run samovar workspace close to delete the others, or samovar workspace discard to \
             restore all of them",
            workspace.root
        ))
    );
    Ok(())
}

/// Deletes the entries of a scan, which are those of the base, or may be lost. Returns the paths of
/// the entries that stay.
///
/// # Errors
///
/// An entry cannot be deleted, or the state cannot be written.
pub(super) fn delete(workspace: &Workspace, scanned: &Scanned) -> anyhow::Result<Kept> {
    let written = Index::of(scanned).write(&workspace.path(""));
    written.with_context(|| format!("cannot write the state of {:?}", workspace.root))?;
    mark_closing(workspace)?;
    delete_entries(workspace, scanned, |_| true)
}

/// Goes on with a deletion that was killed.
///
/// # Errors
///
/// An entry cannot be deleted, or the index is damaged.
pub(super) fn go_on(workspace: &Workspace) -> anyhow::Result<Kept> {
    let index = Index::read(&workspace.path("")).ok().flatten();
    let index = index.with_context(|| {
        format!(
            "the list of the files to delete in {:?} is damaged: delete the directory by rm -r",
            workspace.root
        )
    })?;
    let mut scanned = Scanned::scan(&workspace.root).map_err(super::local::read_error)?;
    index.apply(&mut scanned);
    let known = index.unchanged(&scanned);
    delete_entries(workspace, &scanned, |entry| known[entry])
}

fn delete_entries(
    workspace: &Workspace,
    scanned: &Scanned,
    is_known: impl Fn(usize) -> bool,
) -> anyhow::Result<Kept> {
    fs::remove_dir_all(workspace.incoming()).unwrap_or_default();
    let root = Root::open(&scanned.root)?;
    let mut left_out = Vec::new();
    let mut links = Links::default();
    for (index, entry) in scanned.entries.list().iter().enumerate().rev() {
        let path = scanned.entries.path(index);
        let is_directory = matches!(entry.kind, Kind::Directory { .. });
        let is_deleted =
            is_known(index) && (is_directory || is_as_scanned(&root, scanned, index, &mut links));
        if !is_deleted {
            continue;
        }
        let deleted = match is_directory {
            true => delete_directory(&root, &scanned.root, &path, &mut left_out),
            false => permitted(&root, &path, || root.remove_file(&path)),
        };
        match deleted {
            Err(error) if !is_expected(&error) => {
                return Err(error)
                    .with_context(|| format!("cannot delete {:?}", scanned.path(index)));
            }
            _ => {}
        }
    }
    let rest = Scanned::scan(&scanned.root).map_err(super::local::read_error)?;
    let entries = rest.entries.list().iter().enumerate();
    let kept = entries.filter(|(_, entry)| !matches!(entry.kind, Kind::Directory { .. }));
    left_out.retain(|path| !user_dirs::is_workspaces(path));
    left_out.sort();
    Ok(Kept {
        changed: kept.map(|(index, _)| rest.path(index)).collect(),
        left_out,
    })
}

/// Refuses to delete files that no snapshot has.
///
/// # Errors
///
/// There are such files.
pub(super) fn check_reserved(root: &Path, reserved: &[PathBuf]) -> anyhow::Result<()> {
    ensure!(
        reserved.is_empty(),
        Failed::Refused.because(anyhow!(
            "{root:?} has {} that no snapshot contains, because the name .samovar is reserved: {}. \
             Move them out of the workspace, or use --discard, which keeps them there",
            counted(reserved.len() as u64, "path"),
            named(reserved)
        ))
    );
    Ok(())
}

/// Returns whether another process has removed the entry, or created one in a directory.
fn is_expected(error: &io::Error) -> bool {
    use io::ErrorKind::{DirectoryNotEmpty, NotFound};
    matches!(error.kind(), DirectoryNotEmpty | NotFound)
}

/// Deletes a directory that has no scanned entries any more, and in it what no scan shows: special
/// files, and files that killed processes of Samovar have left. The root itself stays. Directories
/// that no scan shows stay as well, and are added to `left_out`.
fn delete_directory(
    root: &Root,
    top: &Path,
    path: &[u8],
    left_out: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let is_root = path.is_empty();
    if !is_root {
        match permitted(root, path, || root.remove_directory(path)) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            removed => return removed,
        }
    }
    let full = top.join(std::ffi::OsStr::from_bytes(path));
    for entry in fs::read_dir(full)? {
        let entry = entry?;
        let name = entry.file_name();
        let below = match path {
            b"" => name.as_bytes().to_vec(),
            path => [path, b"/", name.as_bytes()].concat(),
        };
        let kind = entry.file_type()?;
        let is_left_over = is_temporary(name.as_bytes());
        let is_special =
            kind.is_socket() || kind.is_fifo() || kind.is_char_device() || kind.is_block_device();
        if is_special || is_left_over && !kind.is_dir() {
            permitted(root, &below, || root.remove_file(&below))?;
        } else if is_left_over || name == STATE_DIRECTORY {
            left_out.push(entry.path());
        }
    }
    match is_root {
        true => Ok(()),
        false => permitted(root, path, || root.remove_directory(path)),
    }
}

/// Calls an operation on an entry. If the directory of the entry does not permit the operation,
/// changes the mode of the directory first.
fn permitted(root: &Root, path: &[u8], operation: impl Fn() -> io::Result<()>) -> io::Result<()> {
    match (operation(), path.iter().rposition(|byte| *byte == b'/')) {
        (Err(error), Some(at)) if error.kind() == io::ErrorKind::PermissionDenied => {
            let attributes = Attributes {
                mode: 0o700,
                mtime: None,
            };
            root.set_attributes(&path[..at], attributes)?;
            operation()
        }
        (done, _) => done,
    }
}

/// Paths of what a deletion has kept.
#[derive(Debug)]
pub(super) struct Kept {
    /// Files that have appeared or changed since the scan.
    changed: Vec<PathBuf>,
    /// Directories that no scan shows.
    left_out: Vec<PathBuf>,
}

impl Kept {
    pub(super) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.left_out.is_empty()
    }

    /// Returns the error of a workspace that was closed, but of which some entries stay.
    pub(super) fn error(&self, root: &Path) -> anyhow::Error {
        let mut text = format!("closed {root:?}, and deleted what was pushed");
        for (paths, noun, reason) in [
            (
                &self.changed,
                "file",
                "programs have created or changed meanwhile",
            ),
            (&self.left_out, "path", "no snapshot has"),
        ] {
            if !paths.is_empty() {
                let count = counted(paths.len() as u64, noun);
                text.push_str(&format!("; {count} stay, which {reason}: {}", named(paths)));
            }
        }
        Failed::Refused.because(anyhow!(text))
    }
}
