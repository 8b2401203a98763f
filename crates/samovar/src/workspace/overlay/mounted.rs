//! Workspaces in overlay mode: the overlay is mounted for all processes, and outlives the command.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use samovar_client::workspace::layers::{OVERLAYS, of_source, state_dir};
use samovar_client::workspace::mode::{Lower, Mode, Overlay};
use samovar_client::workspace::{STATE, State, Workspace};
use samovar_client::workspace::{begun, old, registry};
use samovar_mount::fuse::keep_manifest;
use samovar_mount::overlay::changes::{self, read_upper, reserved};
use samovar_mount::overlay::layers::{LOWER, Layers, unmount_lazily};
use samovar_mount::overlay::users;
use samovar_mount::process::namespace::{Namespace, may_mount};
use samovar_mount::refusal::check_fuse;
use samovar_nix::StoreDir;
use samovar_workspace::scan::Options;
use samovar_workspace::{Entries, Scanned};

use super::super::delete::{check_complete, check_reserved, is_closing, mark_closing};
use super::super::local::{empty, local_changes};
use super::super::on_server::check_stored;
use super::super::open::{has_files, unpushed};
use super::super::repositories;
use super::guard::start_view;
use super::origin::Origin;
use crate::credentials::Sources;
use crate::disk::is_served_by_fuse;
use crate::http::Patience;
use crate::mounts::mounts;
use crate::notice::notice;
use crate::outcome::Failed;
use crate::refs::{Refs, path_names};
use crate::snapshot::Downloaded;

/// Checks that this process may mount overlays that all processes of the machine see.
///
/// # Errors
///
/// The reason why not, and the alternatives.
pub(in super::super) fn check_machine() -> anyhow::Result<()> {
    ensure!(
        may_mount(),
        Failed::Refused.because(anyhow!(
            "--mode overlay mounts the files for all processes of this machine, which only root \
             may do: use samovar workspace run REF -- CMD, which needs no root, or --mode dir"
        ))
    );
    check_fuse()
}

/// Removes the layers that a killed `open` has left in the directory `root`, if that is not a
/// workspace yet.
///
/// # Errors
///
/// Another command makes the directory a workspace, or the layers cannot be removed.
pub(in super::super) fn remove_begun(root: &Path) -> anyhow::Result<()> {
    let begun = registry::find(root).filter(|begun| !begun.dir.join(STATE).exists());
    let Some(begun) = begun else {
        return Ok(());
    };
    let Some(source) = &begun.mount else {
        return Ok(());
    };
    let Some(dir) = of_source(&state_dir()?.join(OVERLAYS), source).filter(|dir| dir.exists())
    else {
        return Ok(());
    };
    let (layers, _) = Layers::open(&dir)?;
    // Changes are never removed.
    let is_unused = fs::read_dir(layers.upper())?.next().is_none() && !layers.is_mounted()?;
    // The other command was faster than this one.
    let is_complete = begun.dir.join(STATE).exists();
    match is_unused && !is_complete {
        true => layers.remove(),
        false => Ok(()),
    }
}

/// Makes the directory `root` a workspace with the snapshot `base` as its lower layer, without
/// mounting it. `state`: the mode in it is replaced.
///
/// # Errors
///
/// The layers cannot be created.
pub(in super::super) fn create(
    root: PathBuf,
    state: State,
    base: Option<(&Downloaded, &StoreDir)>,
) -> anyhow::Result<Workspace> {
    let lower = base.map(|(base, store_dir)| Lower {
        store_dir: store_dir.as_str().to_owned(),
        manifest: base.path.clone(),
    });
    let base = base.map(|(base, _)| base);
    let top = base.and_then(|base| base.manifest.entries.get(0));
    let state_dir = state_dir()?;
    ensure!(
        !state_dir.starts_with(&root),
        Failed::Refused.because(anyhow!("the mount would hide the changes in {state_dir:?}"))
    );
    let origin = origin(&state, lower.as_ref());
    let layers = Layers::create(
        &state_dir.join(OVERLAYS),
        &path_names(&state.name).0,
        &origin.text(),
        top.map_or(0o755, |top| top.mode),
        top.map(|top| top.mtime).unwrap_or_default(),
    )?;
    let overlay = Overlay {
        layers: layers.dir().to_owned(),
        lower,
    };
    let created = create_state(root, overlay, state, base);
    if created.is_err() {
        layers.remove()?;
    }
    created
}

fn create_state(
    root: PathBuf,
    overlay: Overlay,
    state: State,
    base: Option<&Downloaded>,
) -> anyhow::Result<Workspace> {
    let state = State {
        mode: Mode::Overlay(overlay),
        ..state
    };
    let mut workspace = Workspace::create(root, state)?;
    if let Some(base) = base {
        workspace.write_base(base)?;
    }
    workspace.set_state(workspace.state.clone())?;
    Ok(workspace)
}

/// Returns the workspace of a directory that was removed while nothing was mounted.
pub(in super::super) fn find_removed(root: &Path) -> Option<Workspace> {
    let removed = registry::find_removed(root)?;
    Workspace::of(root, removed).ok()
}

/// If the directory `root` was a workspace before it was removed, and has no files now, makes it
/// this workspace again. Otherwise returns `None`.
///
/// # Errors
///
/// The directory cannot be created or read.
pub(in super::super) fn restore_removed(root: &Path) -> anyhow::Result<Option<Workspace>> {
    if has_files(root)? {
        return Ok(None);
    }
    if old::removed(root).is_some() {
        fs::create_dir_all(root).with_context(|| format!("cannot create {root:?}"))?;
        return Workspace::at(root);
    }
    let Some(mut removed) = find_removed(root) else {
        return Ok(None);
    };
    removed.check_based()?;
    check_complete(&removed)?;
    fs::create_dir_all(root).with_context(|| format!("cannot create {root:?}"))?;
    removed.register();
    notice(&format!(
        "{root:?} was a workspace before it was removed: its changes are kept, and mounted again"
    ));
    Ok(Some(removed))
}

/// Returns whether the overlay of a workspace is mounted, and its lower layer is readable. Returns
/// `None` for a workspace without an overlay.
pub(in super::super) fn is_mounted(workspace: &Workspace) -> Option<bool> {
    let overlay = workspace.overlay()?;
    Some(is_served(workspace, overlay))
}

fn is_served(workspace: &Workspace, overlay: &Overlay) -> bool {
    // When the process that serves the lower layer catches a signal and exits, it unmounts this
    // layer. The overlay still lists the layer's directories, from the kernel's cache. So check the
    // layer itself.
    let has_lower = || overlay.lower.is_none() || is_served_by_fuse(&overlay.layers.join(LOWER));
    let list = || fs::read_dir(&workspace.root)?.next().transpose();
    workspace.is_mounted() && has_lower() && list().is_ok()
}

/// Checks that the files of a workspace can be read.
///
/// # Errors
///
/// The reason why not, and the remedy.
fn check_served(workspace: &Workspace, overlay: &Overlay) -> anyhow::Result<()> {
    check_disk(workspace, overlay)?;
    let reason = match (is_served(workspace, overlay), workspace.is_mounted()) {
        (true, _) => return Ok(()),
        (false, true) => "the process that serves the files of the ref has ended",
        (false, false) => "its overlay is not mounted",
    };
    let root = &workspace.root;
    Err(Failed::Unavailable.because(anyhow!(
        "the files of {root:?} cannot be read, because {reason}: run samovar workspace repair \
         --dir {}; unpushed changes are kept",
        root.display()
    )))
}

/// Checks that the directory with the layers exists, and that no `close` was removing it.
fn check_disk(workspace: &Workspace, overlay: &Overlay) -> anyhow::Result<()> {
    check_complete(workspace)?;
    let (layers, root) = (&overlay.layers, &workspace.root);
    ensure!(
        layers.exists(),
        Failed::Unavailable.because(anyhow!(
            "the changes of {root:?} are in {layers:?}, which does not exist: mount the disk of \
             that directory; if the changes there are lost, remove {:?} and open the workspace \
             again",
            workspace.path("")
        ))
    );
    Ok(())
}

/// Mounts the overlay of a workspace, unless it has none, or its files can be read already. Returns
/// whether it was mounted.
///
/// # Errors
///
/// This process may not mount, the snapshot cannot be served, or another command mounts the
/// overlay.
pub(in super::super) fn mount(workspace: &Workspace, sources: &Sources) -> anyhow::Result<bool> {
    let Some(overlay) = workspace.overlay() else {
        return Ok(false);
    };
    let root = &workspace.root;
    check_disk(workspace, overlay)?;
    let (layers, _) = Layers::open(&overlay.layers)?;
    if is_served(workspace, overlay) {
        if !layers.is_offline() || reach(workspace, sources).is_err() {
            return Ok(false);
        }
        unmount_idle(workspace, &layers)?;
    }
    check_machine()?;
    if workspace.is_mounted() {
        unmount_lazily(root);
    }
    ensure!(
        !has_files(root)?,
        Failed::Refused.because(anyhow!(
            "{root:?} is not empty, and the mount would hide its files: move them elsewhere"
        ))
    );
    ensure!(
        !layers.is_mounted()?,
        Failed::Refused.because(anyhow!(
            "the overlay of {root:?} is mounted on another directory: unmount it there first"
        ))
    );
    if let Some(lower) = &overlay.lower {
        serve(workspace, &layers, lower, sources)?;
    }
    layers.mount(Namespace::current()?, root)?;
    Ok(true)
}

/// Starts the process that serves the lower layer. Without the server, it serves what is on this
/// machine.
fn serve(
    workspace: &Workspace,
    layers: &Layers,
    lower: &Lower,
    sources: &Sources,
) -> anyhow::Result<()> {
    let (manifest, url) = (lower.path(), &workspace.state.url);
    let start = |is_offline| start_view(&manifest, url, sources, &layers.lower(), is_offline);
    let started = reach(workspace, sources).and_then(|()| {
        let snapshot = workspace.snapshot(&lower.manifest);
        if let (Ok(snapshot), Ok(dir)) = (snapshot, StoreDir::new(&lower.store_dir)) {
            // If this fails, the manifest is downloaded again.
            keep_manifest(&snapshot, &dir).ok();
        }
        start(false)
    });
    layers.set_offline(started.is_err());
    if let Err(error) = started {
        start(true)?;
        notice(&format!(
            "mounted without the server ({error:#}): reading a file that is not on this machine \
             gives an I/O error, until samovar workspace repair is run with the server"
        ));
    }
    Ok(())
}

/// Checks that the server answers.
fn reach(workspace: &Workspace, sources: &Sources) -> anyhow::Result<()> {
    let http = workspace.http(sources, Patience::SETUP)?;
    Refs::new(&http).get(&workspace.state.name).map(drop)
}

/// Reads the entries of a workspace. Unchanged files have the digests of the lower layer.
///
/// # Errors
///
/// The overlay is not mounted, an entry is unreadable, or a NAR cannot contain it.
pub(in super::super) fn scan(
    workspace: &Workspace,
    overlay: &Overlay,
    options: Options,
) -> anyhow::Result<Scanned> {
    check_served(workspace, overlay)?;
    let lower = lower_entries(workspace, overlay)?;
    let scanned = changes::scan(&workspace.root, &overlay.upper(), &lower, 0, options);
    // Without the lower layer, files may seem to be missing.
    check_served(workspace, overlay)?;
    scanned
}

fn lower_entries(workspace: &Workspace, overlay: &Overlay) -> anyhow::Result<Entries> {
    match &overlay.lower {
        Some(lower) => Ok(workspace.snapshot(&lower.manifest)?.manifest.entries),
        None => Ok(empty()),
    }
}

/// Unmounts the overlay of a workspace, if it is mounted, and its lower layer.
///
/// # Errors
///
/// A program uses the files, or a file system is mounted below.
fn unmount_idle(workspace: &Workspace, layers: &Layers) -> anyhow::Result<()> {
    let root = &workspace.root;
    // The current directory would be in use.
    std::env::set_current_dir("/")?;
    if workspace.is_mounted() {
        match unmount(root, UnmountFlags::NOFOLLOW) {
            Err(Errno::BUSY) => return Err(busy(root)),
            unmounted => unmounted.with_context(|| format!("cannot unmount {root:?}"))?,
        }
    }
    unmount_lazily(&layers.lower());
    old::remove_link(root);
    Ok(())
}

/// Returns the error of a workspace that cannot be unmounted because it is in use.
fn busy(root: &Path) -> anyhow::Error {
    let mounts = mounts().unwrap_or_default();
    let mut points = mounts.iter().map(|mount| &mount.point);
    let below = points.rfind(|point| point.starts_with(root) && *point != root);
    let reason = match below {
        Some(point) => format!("a file system is mounted on {point:?}: unmount it"),
        None => {
            format!("a program uses files in {root:?}, such as a shell in this directory: end it")
        }
    };
    let root = root.display();
    Failed::Refused.because(anyhow!(
        "{reason}, then run the command again with --dir {root}"
    ))
}

/// Unmounts a workspace, and makes its directory an ordinary one, which is empty. Unpushed changes
/// are kept in the directory of the layers. `discards`: unpushed changes do not matter. `deletes`:
/// they are removed.
///
/// # Errors
///
/// The workspace has unpushed changes, or a program uses its files.
pub(in super::super) fn close(
    workspace: &mut Workspace,
    overlay: &Overlay,
    discards: bool,
    deletes: bool,
    sources: &Sources,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let lock = workspace.lock()?;
    let root = workspace.root.clone();
    if is_closing(workspace) {
        Layers::remove_rest(&overlay.layers)?;
        return end(workspace, deletes, out);
    }
    let upper = || read_upper(&overlay.upper()).context("cannot read the changes");
    let before = upper()?;
    let is_stored = || match check_layers(workspace, overlay, sources) {
        Err(error) if !discards => Err(error),
        stored => Ok(stored.is_ok()),
    };
    let reserved = reserved(&before);
    if !discards {
        check_reserved(&root, &reserved)?;
    }
    let is_clean = match local_changes(workspace, false) {
        _ if !reserved.is_empty() => false,
        Ok(changes) if changes.is_empty() => (discards && deletes) || is_stored()?,
        Ok(changes) if !discards => return Err(unpushed(&root, &changes)),
        Err(error) if !discards => return Err(error),
        _ => false,
    };
    drop(lock);
    let (mut layers, _) = Layers::open(&overlay.layers)?;
    if let Some(user) = users::elsewhere(&layers.source()) {
        return Err(Failed::Refused.because(anyhow!(
            "process {} ({:?}) uses files in {root:?}, in another mount namespace, such as that of \
             a container: end it, then run the command again",
            user.pid,
            user.name
        )));
    }
    unmount_idle(workspace, &layers)?;
    if is_clean && upper()? != before {
        drop(layers);
        mount(workspace, sources)?;
        return Err(Failed::Refused.because(anyhow!(
            "a program has changed files in {root:?} meanwhile: run the command again"
        )));
    }
    if !is_clean && !deletes {
        return keep(workspace, overlay, &mut layers, "the unpushed changes", out);
    }
    if !(discards && deletes) && layers.is_in_use() {
        notice(&format!(
            "the files of {root:?} are still mounted in another mount namespace, such as that of a \
             container or of samovar workspace run, whose programs may change them"
        ));
        return keep(workspace, overlay, &mut layers, "such changes", out);
    }
    mark_closing(workspace)?;
    layers.remove()?;
    end(workspace, deletes, out)
}

/// Closes a workspace whose layers are removed.
fn end(workspace: &Workspace, deletes: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let (root, title) = (&workspace.root, workspace.title());
    if deletes {
        workspace.remove()?;
        writeln!(out, "closed and deleted {root:?}")?;
        return Ok(());
    }
    workspace.remove_state()?;
    writeln!(
        out,
        "closed {root:?}, which is empty now; its files are those of {title}"
    )?;
    Ok(())
}

/// Checks that the server has the files of a workspace without changes: the layers may be the only
/// other copy of files that were pushed.
fn check_layers(workspace: &Workspace, overlay: &Overlay, sources: &Sources) -> anyhow::Result<()> {
    let base = workspace.state.base.as_ref().map(|base| &base.manifest);
    let lower = overlay.lower.as_ref().map(|lower| &lower.manifest);
    if base.is_none() || base == lower {
        return Ok(());
    }
    let snapshots = workspace.snapshots(sources)?;
    check_stored(workspace, snapshots.refs())
}

/// Closes a workspace that is unmounted. Its changes stay, for `samovar workspace run --continue`.
/// `changes`: what they are, for the user.
fn keep(
    workspace: &Workspace,
    overlay: &Overlay,
    layers: &mut Layers,
    changes: &str,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    // `samovar workspace run --continue` also goes on with a merge that was cut off.
    let (state, dir) = (workspace.path(""), layers.dir());
    begun::copy(&state, dir).with_context(|| format!("cannot write to {dir:?}"))?;
    repositories::copy(&state, dir);
    layers.set_origin(&origin(&workspace.state, overlay.lower.as_ref()).text())?;
    let root = &workspace.root;
    layers.settle();
    let dir = layers.dir();
    // Without the state, no command finds the changes.
    writeln!(
        out,
        "closed {root:?}, which is empty now; {changes} are kept: push them with samovar workspace \
         run --continue {dir:?} -- true, or discard them with rm -rf {dir:?}"
    )?;
    out.flush()?;
    workspace.remove_state()
}

/// Removes a workspace that could not be mounted, and has no changes yet.
pub(in super::super) fn remove(workspace: &Workspace) -> anyhow::Result<()> {
    if let Some(overlay) = workspace.overlay() {
        let (layers, _) = Layers::open(&overlay.layers)?;
        unmount_idle(workspace, &layers)?;
        mark_closing(workspace)?;
        layers.remove()?;
        workspace.remove_state()?;
    }
    Ok(())
}

/// Returns the description of the lower layer for `samovar workspace run --continue`.
fn origin(state: &State, lower: Option<&Lower>) -> Origin {
    let base = state.base.as_ref().map(|base| &base.manifest);
    let lower = lower.map(|lower| &lower.manifest);
    Origin {
        text: format!("{}#{}", state.url, state.name),
        generation: state.base.as_ref().map(|base| base.version),
        base: base.filter(|base| lower != Some(*base)).cloned(),
        manifest: lower.cloned(),
    }
}
