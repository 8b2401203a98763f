//! `samovar workspace restore` and `discard`: bring files back from a generation.

use std::collections::HashSet;
use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use samovar_client::workspace::Workspace;
use samovar_client::workspace::begun;
use samovar_text::shown_path;
use samovar_workspace::merge::{Action, ActionKind, merge};
use samovar_workspace::{Entries, Walk};

use super::apply::{Apply, Counts};
use super::delete::{CLOSING, check_complete};
use super::local::{changes, empty, read, summary};
use super::on_server::check_base;
use crate::credentials::Sources;
use crate::outcome::Failed;
use crate::size::{counted, human};
use crate::snapshot::Downloaded;

/// Maximum number of paths that an error names.
const NAMED_COUNT: usize = 5;

/// Makes the files, or those at `path`, like those of an older generation, as local changes.
/// `is_forced`: unpushed changes are overwritten.
///
/// # Errors
///
/// There is no such generation or path, or unpushed changes would be overwritten.
pub(super) fn restore(
    workspace: &mut Workspace,
    generation: u64,
    path: Option<&Path>,
    is_forced: bool,
    sources: &Sources,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let _lock = workspace.lock()?;
    check_complete(workspace)?;
    let path = path.map(|path| below(workspace, path)).transpose()?;
    let snapshots = workspace.snapshots(sources)?;
    if !is_forced {
        check_base(workspace, snapshots.refs())?;
    }
    let name = &workspace.state.name;
    let found = snapshots.refs().log(name)?;
    let found = found.generation(name, Some(generation))?;
    let snapshot = snapshots.manifest(&found.manifest)?;
    let target = &snapshot.manifest;
    let ours = read(workspace, false)?;
    let base = workspace.base()?;
    let base = base.map_or_else(empty, |base| base.manifest.entries);
    let paths: Vec<Vec<u8>> = path.into_iter().collect();
    for path in &paths {
        let is_known = [&target.entries, &ours.entries, &base]
            .iter()
            .any(|entries| find(entries, path).is_some());
        ensure!(
            is_known,
            Failed::Refused.because(anyhow!(
                "generation {generation} of {name} has no {}",
                shown_path(path)
            ))
        );
    }
    let mut actions = actions(&ours.entries, &target.entries, &paths);
    let names = overwritten(&mut actions, &base, &ours.entries);
    let shown = names.get(..NAMED_COUNT).unwrap_or(&names).join(", ");
    ensure!(
        is_forced || names.is_empty(),
        Failed::Refused.because(anyhow!(
            "unpushed changes of {} would be overwritten ({shown}): push them first, or use \
             --force; nothing was changed",
            counted(names.len() as u64, "path")
        ))
    );
    let applied = Apply::run(&workspace.place(), &snapshots, &ours, target, &actions)?;
    writeln!(
        out,
        "restored {} from {name}@{generation}, {} received",
        applied.counts,
        human(applied.received_len)
    )?;
    Ok(())
}

/// Makes the files, or those at `paths`, like those of the base. New files are removed.
/// `is_confirmed`: the user is not asked.
///
/// # Errors
///
/// The user does not confirm, the cache is unavailable, or a path does not exist.
pub(super) fn discard(
    workspace: &mut Workspace,
    paths: &[&PathBuf],
    is_confirmed: bool,
    sources: &Sources,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let _lock = workspace.lock()?;
    let paths = paths.iter().map(|path| below(workspace, path));
    let paths = paths.collect::<anyhow::Result<Vec<_>>>()?;
    let base = workspace.base()?.ok_or_else(|| {
        Failed::Refused.because(anyhow!(
            "nothing was pushed from {:?} yet: there is no state to go back to",
            workspace.root
        ))
    })?;
    let ours = read(workspace, false)?;
    let mut changes = changes(&base.manifest.entries, &ours.entries);
    changes.retain(|change| is_selected(&change.path, &paths));
    let actions = actions(&ours.entries, &base.manifest.entries, &paths);
    if changes.is_empty() {
        if paths.is_empty() {
            fs::remove_file(workspace.path(CLOSING)).unwrap_or_default();
        }
        writeln!(out, "nothing to discard")?;
        return Ok(());
    }
    confirm(&summary(&changes), workspace, is_confirmed)?;
    let applied = apply_base(workspace, &base, &ours, &actions, sources)?;
    if paths.is_empty() {
        // All files are those of the base again.
        begun::end(&workspace.path(""));
        fs::remove_file(workspace.path(CLOSING)).unwrap_or_default();
    }
    writeln!(out, "discarded changes of {applied}")?;
    Ok(())
}

fn apply_base(
    workspace: &Workspace,
    base: &Downloaded,
    ours: &samovar_workspace::Scanned,
    actions: &[Action],
    sources: &Sources,
) -> anyhow::Result<Counts> {
    let snapshots = workspace.snapshots(sources)?;
    let applied = Apply::run(
        &workspace.place(),
        &snapshots,
        ours,
        &base.manifest,
        actions,
    )?;
    Ok(applied.counts)
}

/// Asks the user on a terminal whether to discard changes.
fn confirm(summary: &str, workspace: &Workspace, is_confirmed: bool) -> anyhow::Result<()> {
    if is_confirmed {
        return Ok(());
    }
    ensure!(
        io::stdin().is_terminal() && io::stderr().is_terminal(),
        Failed::Usage.because(anyhow!(
            "unpushed changes would be lost ({summary}): confirm by --yes"
        ))
    );
    let root = &workspace.root;
    write!(
        io::stderr(),
        "discard unpushed changes in {root:?} ({summary})? [y/N] "
    )?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    let is_confirmed = matches!(answer.trim(), "y" | "Y" | "yes");
    ensure!(
        is_confirmed,
        Failed::Refused.because(anyhow!("nothing was discarded"))
    );
    Ok(())
}

/// Returns the changes that make the selected entries of our tree like those of the target. No
/// paths: all entries.
fn actions(ours: &Entries, target: &Entries, paths: &[Vec<u8>]) -> Vec<Action> {
    // With ours as the base, all differences are changes of the other side.
    let mut actions = merge(ours, ours, target, "");
    actions.retain(|action| {
        let is_above = |path: &&Vec<u8>| is_below(path, &action.path);
        is_selected(&action.path, paths)
            || matches!(
                action.kind,
                ActionKind::Create { .. } | ActionKind::Metadata { .. }
            ) && paths.iter().any(|path| is_above(&path))
    });
    actions
}

/// Returns the indices of our entries that differ from the base.
fn unpushed(base: &Entries, ours: &Entries) -> HashSet<usize> {
    let pairs = Walk::new([base, ours]);
    let differing = pairs.filter_map(|[old, new]| {
        let index = new?;
        let entry = ours.get(index)?;
        let old = old.and_then(|old| base.get(old));
        let is_same = old.is_some_and(|old| old.has_same_data(entry) && old.mode == entry.mode);
        (!is_same).then_some(index)
    });
    differing.collect()
}

/// Returns the unpushed changes that a restore would overwrite, for messages. New files are in no
/// generation: removes the actions that would remove them, unless a new file is in the way of
/// another entry.
fn overwritten(actions: &mut Vec<Action>, base: &Entries, ours: &Entries) -> Vec<String> {
    let unpushed = unpushed(base, ours);
    let created = actions.iter();
    let created = created.filter(|action| matches!(action.kind, ActionKind::Create { .. }));
    let created: HashSet<Vec<u8>> = created.map(|action| action.path.clone()).collect();
    actions.retain(|action| match action.kind {
        ActionKind::Remove { .. } => {
            find(base, &action.path).is_some() || is_at_or_below(&action.path, &created)
        }
        _ => true,
    });
    let lost = actions.iter().filter(|action| match action.kind {
        ActionKind::Remove { ours: index } | ActionKind::Replace { ours: index, .. } => {
            // The entries of a new directory are named instead of the directory.
            let is_named =
                ours.children(index).next().is_none() || find(base, &action.path).is_some();
            unpushed.contains(&index) && is_named
        }
        _ => false,
    });
    let mut names: Vec<String> = lost.map(|action| shown_path(&action.path)).collect();
    names.sort();
    names
}

/// Returns whether a path is one of `paths` or below it. No paths: all are selected.
fn is_selected(path: &[u8], paths: &[Vec<u8>]) -> bool {
    paths.is_empty() || paths.iter().any(|selected| is_below(path, selected))
}

/// Returns whether a path or a directory above it is in a set.
fn is_at_or_below(path: &[u8], set: &HashSet<Vec<u8>>) -> bool {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let mut above = ends.filter_map(|(end, _)| path.get(..end));
    set.contains(path) || above.any(|above| set.contains(above))
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/") || directory.is_empty())
}

/// Returns the index of the entry with a path.
fn find(entries: &Entries, path: &[u8]) -> Option<usize> {
    let mut at = 0;
    let names = path.split(|byte| *byte == b'/');
    for name in names.filter(|name| !name.is_empty()) {
        at = entries.children(at).find(|index| {
            entries
                .get(*index)
                .is_some_and(|entry| *entry.name == *name)
        })?;
    }
    Some(at)
}

/// Returns a path of the command line relative to the root of the workspace.
fn below(workspace: &Workspace, path: &Path) -> anyhow::Result<Vec<u8>> {
    let absolute = std::path::absolute(path)?;
    let mut names = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => {
                names.pop();
            }
            other => names.push(other),
        }
    }
    // Resolve only the parent: the file itself may not exist, or be a symbolic link.
    let parent = names.ancestors().skip(1).find(|parent| parent.is_dir());
    let parent = parent.unwrap_or(Path::new("/"));
    let rest = names.strip_prefix(parent)?;
    let full = match names == workspace.root {
        true => names.clone(),
        false => parent
            .canonicalize()
            .context("cannot resolve the path")?
            .join(rest),
    };
    let relative = full.strip_prefix(&workspace.root).map_err(|_error| {
        Failed::Usage.because(anyhow!(
            "{path:?} is not in the workspace {:?}",
            workspace.root
        ))
    })?;
    Ok(relative.as_os_str().as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_a_directory() {
        assert!(is_below(b"a/b", b"a") && is_below(b"a", b"a") && is_below(b"a", b""));
        assert!(!is_below(b"ab", b"a") && !is_below(b"a", b"a/b"));
        assert!(is_selected(b"x", &[]) && !is_selected(b"x", &[b"y".to_vec()]));
    }
}
