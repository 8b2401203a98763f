//! `samovar workspace pull`, and the download of a workspace that is opened.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use samovar_client::workspace::begun::Begun;
use samovar_client::workspace::{Base, State, Workspace};
use samovar_workspace::merge::ActionKind;
use samovar_workspace::repository::Contents;
use samovar_workspace::{Action, Entries, Kind, Root, Scanned, Walk, merge_with};

use super::adopt::{self, Origin};
use super::apply::{Apply, set_root_mode};
use super::conflicts::{Conflict, Report};
use super::delete::check_complete;
use super::local::{VISIBLE, empty, write_index};
use super::on_server::{OnServer, missing};
use super::open::has_files;
use super::repositories;
use crate::credentials::Sources;
use crate::http::printable;
use crate::outcome::Failed;
use crate::pull::download;
use crate::refs::{Generation, Log};
use crate::size::{counted, human};
use crate::snapshot::{Downloaded, Snapshots};
use crate::token::date;

/// Merges the newest generation of the ref into the files of a workspace.
///
/// # Errors
///
/// The cache is unavailable or lacks the ref, a file cannot be written, or a program changes files
/// meanwhile.
pub(super) fn run(
    workspace: &mut Workspace,
    sources: &Sources,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let _lock = workspace.lock()?;
    check_complete(workspace)?;
    let snapshots = workspace.snapshots(sources)?;
    let found = OnServer::of(snapshots.refs(), &workspace.state)?;
    // For a merge, only the snapshot of the base counts, not the number of its generation.
    let is_lost = found.lost(&workspace.state).is_some() && !found.has_base;
    let newest = found.newest().cloned();
    let newest = newest.ok_or_else(|| missing(&workspace.state))?;
    if is_lost && !workspace.adopt_base(&newest)? {
        find_base(workspace, &snapshots, &found.log, out)?;
    }
    pull(workspace, &snapshots, &newest, out)
}

/// Replaces a base that the server has lost by the generation from which the files can have come.
/// If there is none, the workspace has no base, and each difference becomes a conflict.
fn find_base(
    workspace: &mut Workspace,
    snapshots: &Snapshots,
    log: &Log,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let lost = workspace.state.generation();
    let ours = repositories::read_settled(workspace, false, VISIBLE)?;
    let found = adopt::find(snapshots, &log.generations, &ours.entries)?;
    let (base, what) = match found {
        Origin::Known(generation, snapshot) => {
            workspace.write_base(&snapshot)?;
            let what = format!("they have come from generation {}", generation.number);
            (Some(Base::now(generation.version(), &snapshot)), what)
        }
        _ => (None, "each difference is a conflict".to_owned()),
    };
    writeln!(
        out,
        "the server has lost generation {lost} of {}, on which these files are based: {what}",
        workspace.state.name
    )?;
    workspace.set_state(State {
        base,
        ..workspace.state.clone()
    })
}

/// Merges a generation into the files of a workspace, which is locked.
pub(super) fn pull(
    workspace: &mut Workspace,
    snapshots: &Snapshots,
    newest: &Generation,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let base = &workspace.state.base;
    let is_newest = base
        .as_ref()
        .is_some_and(|base| base.version == newest.version() && base.manifest == newest.manifest);
    // If the response to a push of this workspace was lost, the files are based on the generation
    // of that push.
    if is_newest || workspace.adopt_base(newest)? {
        writeln!(out, "{} is the newest generation", workspace.title())?;
        return Ok(ExitCode::SUCCESS);
    }
    if workspace.state.base.is_none() && !has_files(&workspace.root)? {
        fill(workspace, snapshots, newest, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let started_at = Instant::now();
    let snapshot = snapshots.manifest(&newest.manifest)?;
    let theirs = &snapshot.manifest;
    let ours = repositories::read_settled(workspace, false, VISIBLE)?;
    let state = workspace.path("");
    let (base, begun) = merge_base(workspace, &state, newest, &ours.entries)?;
    let is_based = workspace.state.base.is_some() || !begun.is_empty();
    repositories::check_root([&base, &ours.entries, &theirs.entries])?;
    let host = newest.host.as_deref().unwrap_or("server");
    let label = format!("{host}-{}", date(newest.created_at));
    let contents = repositories::contents(&workspace.place(), snapshots, &base, &ours, theirs)?;
    let mut actions = merge_with(&base, &ours.entries, &theirs.entries, &label, &contents);
    let conflicts = conflicts(&mut actions, &ours.entries, &theirs.entries);
    let name = workspace.state.name.clone();
    let mut doubts = Vec::new();
    if !is_based {
        let trees = [&ours.entries, &theirs.entries];
        doubts = adopt::doubts(snapshots, &name, trees, &conflicts)?;
    }
    begun.begin(&snapshot)?;
    let applied = Apply::run(&workspace.place(), snapshots, &ours, theirs, &actions)?;
    // Report before the base changes, because the next pull does not report conflicts of this one.
    let report = Report {
        ours: &ours.entries,
        theirs: &theirs.entries,
        contents: &contents,
        host: &printable(host),
    };
    report_all(&report, &conflicts, &workspace.root, out)?;
    for doubt in &doubts {
        doubt.report(name.as_str(), newest.number, out)?;
    }
    out.flush()?;
    finish(workspace, newest, &snapshot)?;
    repositories::remember(&workspace.place(), &theirs.entries, &contents);
    writeln!(
        out,
        "merged {}: {} changed, {} received in {:.1} s",
        workspace.title(),
        applied.counts,
        human(applied.received_len),
        started_at.elapsed().as_secs_f64()
    )?;
    Ok(match conflicts.is_empty() && doubts.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Returns the base of a merge, and what earlier pulls have begun. `state`: the directory of the
/// state.
fn merge_base<'a>(
    workspace: &Workspace,
    state: &'a Path,
    newest: &Generation,
    ours: &Entries,
) -> anyhow::Result<(Entries, Begun<'a>)> {
    let base = workspace.base()?;
    let path = base.as_ref().map(|base| &base.path);
    let begun = Begun::read(state, path, newest.version());
    let base = base.map_or_else(empty, |base| base.manifest.entries);
    Ok((begun.advance(base, ours)?, begun))
}

fn report_all(
    report: &Report<'_>,
    conflicts: &[Conflict],
    root: &Path,
    out: &mut dyn Write,
) -> io::Result<()> {
    for conflict in conflicts {
        report.conflict(conflict, root, out)?;
    }
    report.copies(out)
}

/// Returns the conflicts of a merge. Removes the actions whose copy an earlier pull, which was
/// killed, has made.
pub(super) fn conflicts(
    actions: &mut Vec<Action>,
    ours: &Entries,
    theirs: &Entries,
) -> Vec<Conflict> {
    let mut conflicts = Vec::new();
    // Paths of our entries that do not stay as they are.
    let changed = actions.iter().filter(|action| {
        matches!(
            action.kind,
            ActionKind::Remove { .. } | ActionKind::Replace { .. }
        )
    });
    let changed: BTreeSet<Vec<u8>> = changed.map(|action| action.path.clone()).collect();
    // Beginning of the paths of a copy that is there already.
    let mut existing: Option<Vec<u8>> = None;
    actions.retain(|action| {
        if existing
            .as_ref()
            .is_some_and(|path| action.path.starts_with(path))
        {
            return false;
        }
        let ActionKind::Conflict {
            ours: kept,
            theirs: index,
        } = action.kind
        else {
            return true;
        };
        let copy = existing_copy(ours, kept, theirs, index, &changed);
        let is_new = copy.is_none();
        if !is_new {
            existing = Some([&action.path, &b"/"[..]].concat());
        }
        conflicts.push(Conflict {
            ours: kept,
            theirs: index,
            copy: copy.unwrap_or_else(|| action.path.clone()),
        });
        is_new
    });
    conflicts
}

/// Returns the path of the conflict copy of their entry that an earlier pull, which was killed, has
/// made beside our entry. An entry that this pull changes (`changed`) does not count: the other
/// machine may have removed a copy that was published.
fn existing_copy(
    ours: &Entries,
    kept: usize,
    theirs: &Entries,
    index: usize,
    changed: &BTreeSet<Vec<u8>>,
) -> Option<Vec<u8>> {
    let kept = ours.get(kept)?;
    let prefix = [&kept.name[..], b".conflict-"].concat();
    let is_copy = |found: &usize| {
        let entry = ours.get(*found);
        entry.is_some_and(|entry| entry.name.starts_with(&prefix))
            && has_same_entries(ours, *found, theirs, index)
            && stays(&ours.path(*found), changed)
    };
    ours.children(kept.parent)
        .find(is_copy)
        .map(|copy| ours.path(copy))
}

/// Returns whether an entry and those below it are not among these paths.
fn stays(path: &[u8], changed: &BTreeSet<Vec<u8>>) -> bool {
    let below = [path, b"/"].concat();
    let next = changed.range(below.clone()..).next();
    !changed.contains(path) && next.is_none_or(|next| !next.starts_with(&below))
}

/// Returns whether two entries, and the entries below them, have the same contents. The file that
/// hides the copy of a repository from git does not count.
fn has_same_entries(ours: &Entries, copy: usize, theirs: &Entries, index: usize) -> bool {
    let below = |entries: &Entries, top: usize| match entries.get(top).map(|entry| &entry.kind) {
        Some(Kind::Directory { end }) => top..*end,
        _ => top..top + 1,
    };
    let is_counted = |at: &usize| {
        let entry = ours.get(*at);
        !entry.is_some_and(|entry| entry.parent == copy && *entry.name == *b".gitignore")
    };
    let mut copied = below(ours, copy).filter(is_counted);
    let is_same = |at: usize| {
        let both = copied
            .next()
            .and_then(|found| ours.get(found))
            .zip(theirs.get(at));
        both.is_some_and(|(found, entry)| {
            let is_top = at == index;
            found.has_same_data(entry) && (is_top || found.name == entry.name)
        })
    };
    below(theirs, index).all(is_same) && copied.next().is_none()
}

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
    let state = workspace.path("");
    Begun::read(&state, None, newest.version()).begin(&snapshot)?;
    move_entries(&tree, &root)?;
    fs::remove_dir_all(&incoming).unwrap_or_default();
    if let Some(entry) = manifest.entries.get(0) {
        set_root_mode(&root, entry.mode);
    }
    Root::open(&root)?.sync()?;
    finish(workspace, newest, &snapshot)?;
    repositories::remember(&workspace.place(), &manifest.entries, &Contents::default());
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

/// Creates the directory for files that are received. The directory may have the download of a
/// command that was killed, but no tree.
fn new_incoming(workspace: &Workspace) -> anyhow::Result<std::path::PathBuf> {
    let incoming = workspace.incoming();
    let tree = incoming.join(TREE);
    match fs::remove_dir_all(&tree) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {tree:?}"));
        }
        _ => {}
    }
    fs::create_dir_all(&incoming).with_context(|| format!("cannot create {incoming:?}"))?;
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
        base: Some(Base::now(newest.version(), snapshot)),
        ..workspace.state.clone()
    })
}

/// Sets the digests of files that were just written from a manifest, and are unchanged since: size
/// and time are those of the manifest.
fn copy_digests(entries: &Entries, scanned: &mut Scanned) {
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
