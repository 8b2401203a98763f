//! `samovar workspace pull`, and the download of a workspace that is opened.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use samovar_workspace::{Entries, Kind, Root, Scanned, Walk};

use super::local::write_index;
use super::open::set_root_mode;
use super::state::{Base, INCOMING, State, Workspace};
use crate::outcome::Failed;
use crate::pull::download;
use crate::refs::Generation;
use crate::size::{counted, human};
use crate::snapshot::{Downloaded, Snapshots};

/// Name of the directory of a whole tree that was received.
const TREE: &str = "tree";

/// Downloads all files of a generation into a workspace without files.
pub(super) fn fill(
    workspace: &mut Workspace,
    snapshots: &Snapshots,
    newest: &Generation,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let started_at = Instant::now();
    let snapshot = snapshots.manifest(&newest.manifest)?;
    let manifest = &snapshot.manifest;
    let narinfo = snapshots.narinfo(&manifest.tree)?;
    let received = Arc::new(AtomicU64::new(0));
    let incoming = new_incoming(workspace)?;
    let tree = incoming.join(TREE);
    let file_count = download(snapshots, &narinfo, Some(manifest), &tree, &received)?;
    let root = workspace.root.clone();
    move_entries(&tree, &root)?;
    fs::remove_dir_all(&incoming).unwrap_or_default();
    if let Some(entry) = manifest.entries.get(0) {
        set_root_mode(&root, entry.mode);
    }
    Root::open(&root)?.sync()?;
    finish(workspace, newest, &snapshot)?;
    let scanned = Scanned::scan(&root);
    if let Ok(mut scanned) = scanned {
        copy_digests(&manifest.entries, &mut scanned);
        write_index(workspace, &scanned);
    }
    writeln!(
        out,
        "opened {} in {root:?}: {}, {} received in {:.1} s",
        workspace.title(),
        counted(file_count, "file"),
        human(received.load(Ordering::Relaxed)),
        started_at.elapsed().as_secs_f64()
    )?;
    Ok(())
}

/// Creates the empty directory for files that are received.
fn new_incoming(workspace: &Workspace) -> anyhow::Result<std::path::PathBuf> {
    let incoming = workspace.path(INCOMING);
    match fs::remove_dir_all(&incoming) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {incoming:?}"));
        }
        _ => {}
    }
    fs::create_dir(&incoming).with_context(|| format!("cannot create {incoming:?}"))?;
    Ok(incoming)
}

/// Moves all entries of a directory. Replaces nothing.
fn move_entries(from: &Path, to: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {from:?}"))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let source = entry.path();
        match rename_new(&source, &target) {
            // A directory can be moved only by a user who may change it.
            Err(Errno::ACCESS) if entry.file_type()?.is_dir() => {
                let mode = entry.metadata()?.permissions();
                fs::set_permissions(&source, fs::Permissions::from_mode(0o700))?;
                let moved = rename_new(&source, &target);
                moved.with_context(|| format!("cannot create {target:?}"))?;
                fs::set_permissions(&target, mode)?;
            }
            Err(Errno::EXIST) => {
                return Err(Failed::Refused.because(anyhow!(
                    "{target:?} was created by another program meanwhile: run samovar workspace \
                     pull to complete the workspace"
                )));
            }
            moved => moved.with_context(|| format!("cannot create {target:?}"))?,
        }
    }
    Ok(())
}

/// Renames an entry, if the new name does not exist.
fn rename_new(from: &Path, to: &Path) -> Result<(), Errno> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system does not know the flag.
        Err(Errno::INVAL) if to.symlink_metadata().is_err() => {
            rustix::fs::renameat(CWD, from, CWD, to)
        }
        Err(Errno::INVAL) => Err(Errno::EXIST),
        renamed => renamed,
    }
}

/// Makes a snapshot the base.
pub(super) fn finish(
    workspace: &mut Workspace,
    newest: &Generation,
    snapshot: &Downloaded,
) -> anyhow::Result<()> {
    workspace.write_base(snapshot)?;
    workspace.set_state(State {
        base: Some(Base::now(newest.number, snapshot)),
        ..workspace.state.clone()
    })
}

/// Sets the digests of files that were just written from a manifest, and are unchanged since: size
/// and time are those of the manifest.
pub(super) fn copy_digests(entries: &Entries, scanned: &mut Scanned) {
    let mut known = Vec::new();
    for [old, new] in Walk::new([entries, &scanned.entries]) {
        let (Some(old), Some(new)) = (old, new) else {
            continue;
        };
        let (Some(old), Some(entry)) = (entries.get(old), scanned.entries.get(new)) else {
            continue;
        };
        match (&old.kind, &entry.kind) {
            (
                Kind::File {
                    size,
                    digest: Some(digest),
                    ..
                },
                Kind::File {
                    size: found,
                    digest: None,
                    ..
                },
            ) if size == found && old.mtime == entry.mtime => known.push((new, *digest)),
            _ => {}
        }
    }
    for (index, digest) in known {
        scanned.entries.set_digest(index, digest);
    }
}
