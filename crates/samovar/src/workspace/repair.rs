//! `samovar workspace repair`.

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt as _;

use anyhow::anyhow;
use samovar_client::workspace::Workspace;
use samovar_workspace::root::is_temporary;
use samovar_workspace::{CLOCK, Index, Kind, Root, Scanned};

use super::local::read;
use super::overlay;
use crate::credentials::Sources;
use crate::outcome::{Failed, reason};
use crate::size::counted;

/// Removes what killed processes have left, and restores damaged files of the state. Changes none
/// of the user's files.
///
/// # Errors
///
/// The files cannot be read, or the base must be downloaded and the cache is unavailable or has
/// deleted it.
pub(super) fn repair(
    workspace: &mut Workspace,
    sources: &Sources,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    if workspace.check_based().is_err() {
        workspace.mark_based();
        writeln!(
            out,
            "the files of {:?} belong to this state now",
            workspace.root
        )?;
    }
    if overlay::mount(workspace, sources)? {
        writeln!(out, "mounted {:?} again", workspace.root)?;
    }
    let _lock = workspace.lock()?;
    let root = workspace.root.clone();
    if let (Some(base), Err(error)) = (workspace.state.base.clone(), workspace.base()) {
        let snapshots = workspace.snapshots(sources)?;
        let snapshot = snapshots.manifest(&base.manifest).map_err(|download| {
            reason(&download)
                .unwrap_or(Failed::Unavailable)
                .because(anyhow!(
                    "{error:#}; it cannot be downloaded either ({download:#}): if the server has \
                     deleted generation {}, run samovar workspace close --discard, then open \
                     --adopt",
                    base.version.number
                ))
        })?;
        workspace.write_base(&snapshot)?;
        writeln!(
            out,
            "downloaded the manifest of {} again",
            workspace.title()
        )?;
    }
    let lower = workspace
        .overlay()
        .and_then(|overlay| overlay.lower.as_ref());
    if let Some(lower) = lower
        && workspace.snapshot(&lower.manifest).is_err()
    {
        let snapshot = workspace.snapshots(sources)?.manifest(&lower.manifest)?;
        workspace.write_base(&snapshot)?;
        writeln!(out, "downloaded the manifest of the mounted files again")?;
    }
    if !matches!(Index::read(&workspace.path("")), Ok(Some(_))) {
        // All files are hashed below.
        fs::remove_file(workspace.path("index")).unwrap_or_default();
        writeln!(out, "made a new index of the files")?;
    }
    let scanned = read(workspace, false)?;
    let count = workspace.remove_leftovers() + remove_temporary_files(&scanned)?;
    if count > 0 {
        let files = counted(count as u64, "temporary file");
        writeln!(out, "removed {files} of processes that were killed")?;
    }
    writeln!(out, "{root:?} is a workspace of {}", workspace.title())?;
    Ok(())
}

/// Removes the temporary files of killed processes in all directories of a scan, which leaves them
/// out. Returns their number.
fn remove_temporary_files(scanned: &Scanned) -> anyhow::Result<usize> {
    let directory = Root::open(&scanned.root)?;
    let mut count = 0;
    for (index, entry) in scanned.entries.list().iter().enumerate() {
        if !matches!(entry.kind, Kind::Directory { .. }) {
            continue;
        }
        let parent = scanned.entries.path(index);
        let found = fs::read_dir(scanned.path(index)).into_iter().flatten();
        for found in found.flatten() {
            let name = found.file_name();
            let path = match &parent[..] {
                b"" => name.as_bytes().to_vec(),
                parent => [parent, b"/", name.as_bytes()].concat(),
            };
            let is_removed = || directory.remove_file(&path).is_ok();
            let is_left = name != CLOCK && is_temporary(name.as_bytes());
            count += usize::from(is_left && is_removed());
        }
    }
    Ok(count)
}
