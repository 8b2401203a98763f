//! `samovar workspace open` and `close`.

use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, anyhow, bail, ensure};
use samovar_client::push::directory::{refuse_public, reserved};
use samovar_client::workspace::mode::Mode;
use samovar_client::workspace::{Base, STATE, State, Workspace, is_workspace};
use samovar_client::workspace::{old, registry};
use samovar_nix::PublicKey;
use samovar_workspace::diff::Change;
use samovar_workspace::root::is_temporary;
use samovar_workspace::{Kind, STATE_DIRECTORY, Scanned, scan};

use super::adopt::adopt;
use super::delete::{CLOSING, check_complete, check_reserved, delete, go_on, is_closing};
use super::local::{changes, empty, local_changes, read_error, read_with, steady, summary};
use super::on_server::{OnServer, check_stored};
use super::overlay;
use super::pull::pull;
use crate::credentials::Sources;
use crate::disk::{Use, unsuitable};
use crate::notice::notice;
use crate::outcome::Failed;
use crate::refs::{Generation, RefName, check_snapshot};
use crate::remote::Remote;
use crate::size::counted;
use crate::snapshot::Snapshots;

/// Options of `samovar workspace open`.
#[derive(Debug)]
pub(super) struct Opening<'a> {
    pub(super) name: RefName,
    pub(super) directory: &'a Path,
    /// Whether a directory with files becomes a workspace.
    pub(super) adopts: bool,
    pub(super) may_be_on_network: bool,
    pub(super) is_public: bool,
    /// Keys of which one must have signed the ref. Empty: those of the workspace, if it is open
    /// already.
    pub(super) keys: Vec<PublicKey>,
    /// Whether the files are those of the snapshot, with the changes in another directory.
    pub(super) is_overlay: bool,
}

/// Makes a directory a workspace.
///
/// # Errors
///
/// The directory is unsuitable, or the cache is unavailable or lacks the generation.
pub(super) fn open(
    options: &Opening<'_>,
    sources: &Sources,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let root = absolute(options.directory)?;
    close_deleted(&root, out)?;
    let is_set_aside = options.adopts && old::is_unproved(&root);
    if !is_set_aside && let Some(workspace) = Workspace::at(&root)? {
        return reopen(options, workspace, sources, out);
    }
    if options.is_overlay
        && let Some(workspace) = overlay::restore_removed(&root)?
    {
        return reopen(options, workspace, sources, out);
    }
    check_place(options, &root)?;
    overlay::remove_begun(&root)?;
    if options.is_overlay {
        overlay::check_machine()?;
    }
    let snapshots = Snapshots::open(options.name.remote.clone(), sources, &options.keys)?;
    if !options.is_public {
        refuse_public(&snapshots)?;
    }
    let newest = find(options, &snapshots)?;
    match &newest {
        Some(newest) => check_snapshot(&options.name.name, &newest.manifest, "open another ref")?,
        None => {
            let checked = options.name.check_absent();
            checked.map_err(|error| Failed::Usage.because(error))?;
        }
    }
    match options.is_overlay {
        true => open_overlay(options, root, &snapshots, newest.as_ref(), sources, out),
        false => open_directory(options, root, &snapshots, newest, out),
    }
}

fn open_directory(
    options: &Opening<'_>,
    root: PathBuf,
    snapshots: &Snapshots,
    newest: Option<Generation>,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let has_files = has_files(&root)?;
    if has_files && newest.is_some() && !options.adopts {
        bail!(Failed::Refused.because(anyhow!(
            "{root:?} is not empty: choose another directory, or use --adopt to make it a \
             workspace; its files stay as they are"
        )));
    }
    let new = create_directories(&root)?;
    let mut workspace = Workspace::create(root, state(options))?;
    let _lock = workspace.lock()?;
    let is_first = !workspace.path(STATE).exists();
    let opened = fill_or_adopt(options, &mut workspace, snapshots, newest, has_files, out);
    if opened.is_err() && is_first {
        undo(&workspace, has_files, &new);
    } else {
        old::finish(&workspace.root);
    }
    opened
}

/// Creates a directory. Returns the directories that did not exist, the innermost first.
fn create_directories(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let new = root.ancestors().take_while(|one| !one.exists());
    let new = new.map(Path::to_owned).collect();
    fs::create_dir_all(root).with_context(|| format!("cannot create {root:?}"))?;
    Ok(new)
}

/// Removes directories that are empty.
fn remove_directories(directories: &[PathBuf]) {
    for directory in directories {
        // The directory may have files of other programs meanwhile.
        fs::remove_dir(directory).unwrap_or_default();
    }
}

/// Removes what a failed command has made, unless files, or a part of a large download, were
/// received: then a later command can complete the workspace. `had_files`: whether the directory
/// had files before. `new`: the directories that did not exist.
fn undo(workspace: &Workspace, had_files: bool, new: &[PathBuf]) {
    let root = &workspace.root;
    let has_received = has_files(root).unwrap_or(true) != had_files
        || has_files(&workspace.incoming()).unwrap_or(true);
    if has_received {
        return;
    }
    if let Err(error) = workspace.remove_state() {
        notice(&format!("{error:#}"));
        return;
    }
    remove_directories(new);
}

/// Downloads the files of a new workspace, or compares those that it has.
fn fill_or_adopt(
    options: &Opening<'_>,
    workspace: &mut Workspace,
    snapshots: &Snapshots,
    newest: Option<Generation>,
    has_files: bool,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let root = &workspace.root.clone();
    let Some(newest) = newest else {
        workspace.set_state(workspace.state.clone())?;
        writeln!(
            out,
            "{root:?} is a workspace of {}, which does not exist yet: samovar workspace push \
             creates it",
            options.name
        )?;
        return Ok(ExitCode::SUCCESS);
    };
    if !has_files {
        // From here on, a pull completes the workspace if this process is killed.
        workspace.set_state(workspace.state.clone())?;
        return pull(workspace, snapshots, &newest, out);
    }
    adopt(&options.name, workspace, snapshots, out)
}

fn state(options: &Opening<'_>) -> State {
    State {
        url: options.name.remote.url().to_owned(),
        name: options.name.name.clone(),
        mode: Mode::Directory,
        is_public: options.is_public,
        keys: options.keys.clone(),
        base: None,
    }
}

/// Makes an empty directory a workspace in overlay mode.
fn open_overlay(
    options: &Opening<'_>,
    root: PathBuf,
    snapshots: &Snapshots,
    newest: Option<&Generation>,
    sources: &Sources,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let started_at = Instant::now();
    ensure!(
        !has_files(&root)?,
        Failed::Refused.because(anyhow!(
            "{root:?} is not empty, and the mount would hide its files: choose another directory, \
             or use --mode dir"
        ))
    );
    let base = newest.map(|newest| snapshots.manifest(&newest.manifest));
    let base = base.transpose()?;
    let new = create_directories(&root)?;
    let state = State {
        base: newest
            .zip(base.as_ref())
            .map(|(newest, base)| Base::now(newest.version(), base)),
        ..state(options)
    };
    let lower = base.as_ref().map(|base| (base, snapshots.store_dir()));
    let workspace = overlay::create(root, state, lower)?;
    if let Err(error) = overlay::mount(&workspace, sources) {
        overlay::remove(&workspace)?;
        remove_directories(&new);
        return Err(error);
    }
    let root = &workspace.root;
    let Some(base) = base else {
        writeln!(
            out,
            "{root:?} is a workspace of {}, which does not exist yet: samovar workspace push \
             creates it",
            options.name
        )?;
        return Ok(ExitCode::SUCCESS);
    };
    let entries = base.manifest.entries.list().iter();
    let files = entries.filter(|entry| matches!(entry.kind, Kind::File { .. }));
    writeln!(
        out,
        "mounted {} on {root:?} in {:.1} s: {}, received when they are read",
        workspace.title(),
        started_at.elapsed().as_secs_f64(),
        counted(files.count() as u64, "file")
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Opens a workspace that is open already.
fn reopen(
    options: &Opening<'_>,
    mut workspace: Workspace,
    sources: &Sources,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let root = &workspace.root.clone();
    workspace.check_based()?;
    check_complete(&workspace)?;
    let state = &workspace.state;
    let generation = options.name.generation;
    let is_same = state.url == options.name.remote.url() && state.name == options.name.name;
    let is_same =
        is_same && (state.base.is_none() || generation.is_none_or(|one| one == state.generation()));
    ensure!(
        is_same,
        Failed::Refused.because(anyhow!(
            "{root:?} is a workspace of {} in {} already: close it first, or choose another \
             directory",
            workspace.title(),
            state.url
        ))
    );
    ensure!(
        !options.is_overlay || workspace.overlay().is_some(),
        Failed::Refused.because(anyhow!(
            "{root:?} is a workspace without an overlay already: close it first"
        ))
    );
    trust(
        &mut workspace,
        options.name.remote.clone(),
        &options.keys,
        sources,
    )?;
    workspace.register();
    overlay::mount(&workspace, sources)?;
    if workspace.state.base.is_none() {
        // An earlier process may have been killed before the workspace was complete.
        let _lock = workspace.lock()?;
        let remote = options.name.remote.clone();
        let snapshots = Snapshots::open(remote, sources, &workspace.state.keys)?;
        let snapshots = snapshots.with_remembered_keys();
        if options.adopts && generation.is_some() && has_files(root)? {
            return adopt(&options.name, &mut workspace, &snapshots, out);
        }
        if let Some(newest) = find(options, &snapshots)? {
            return pull(&mut workspace, &snapshots, &newest, out);
        }
    }
    writeln!(
        out,
        "{root:?} is a workspace of {} already",
        workspace.title()
    )?;
    Ok(ExitCode::SUCCESS)
}

/// If there are keys, and one of them has signed the newest generation, requires signatures by one
/// of these keys from now on.
pub(super) fn trust(
    workspace: &mut Workspace,
    remote: Remote,
    keys: &[PublicKey],
    sources: &Sources,
) -> anyhow::Result<()> {
    if keys.is_empty() || keys == workspace.state.keys {
        return Ok(());
    }
    let snapshots = Snapshots::open(remote, sources, keys)?;
    if let Some(newest) = OnServer::of(snapshots.refs(), &workspace.state)?.newest() {
        snapshots.signed_narinfo(&newest.manifest)?;
    }
    let _lock = workspace.lock()?;
    workspace.set_state(State {
        keys: keys.to_vec(),
        ..workspace.state.clone()
    })
}

/// Returns the generation to open. Returns `None` if the ref does not exist.
fn find(options: &Opening<'_>, snapshots: &Snapshots) -> anyhow::Result<Option<Generation>> {
    let name = &options.name.name;
    match options.name.generation {
        Some(number) => {
            let log = snapshots.refs().log(name)?;
            log.generation(name, Some(number)).map(Some)
        }
        None => {
            let log = snapshots.refs().get(name)?;
            Ok(log.and_then(|log| log.generations.into_iter().next()))
        }
    }
}

/// Returns the absolute path, without symbolic links as far as it exists.
fn absolute(directory: &Path) -> anyhow::Result<PathBuf> {
    let path = std::path::absolute(directory)?;
    let existing = path.ancestors().find(|one| one.exists());
    let existing = existing.context("the root directory does not exist")?;
    let rest = path.strip_prefix(existing).unwrap_or(Path::new(""));
    let existing = existing
        .canonicalize()
        .with_context(|| format!("cannot open {existing:?}"))?;
    Ok(match rest.as_os_str().is_empty() {
        true => existing,
        false => existing.join(rest),
    })
}

/// Refuses directories that cannot be workspaces, and prints a notice about unsuitable ones.
fn check_place(options: &Opening<'_>, root: &Path) -> anyhow::Result<()> {
    let refuse = |reason: String| Err(Failed::Refused.because(anyhow!(reason)));
    if let Some(outer) = root
        .ancestors()
        .skip(1)
        .find(|one| is_workspace(one) || old::is_workspace(one))
    {
        return refuse(format!(
            "{root:?} is inside the workspace {outer:?}, whose snapshots contain it: choose \
             another directory"
        ));
    }
    if root.exists() && !root.is_dir() {
        return refuse(format!("{root:?} is not a directory"));
    }
    // The directory may not exist yet; a file system that cannot be examined counts as local.
    let existing = root.ancestors().find(|path| path.exists());
    let kind = existing.and_then(|path| unsuitable(path, Use::Workspace).ok().flatten());
    if let Some(kind) = kind
        && !options.may_be_on_network
        && !options.is_overlay
    {
        return refuse(format!(
            "{root:?} is on a network file system ({kind}), where programs would not have the \
             speed of a local disk: choose a directory on a local disk, or confirm by \
             --on-network-disk"
        ));
    }
    if root.file_name().is_some_and(|name| name == "node_modules") {
        notice(
            "npm ci removes everything in node_modules, which counts as a change: the directory \
             that contains node_modules is a better workspace",
        );
    }
    Ok(())
}

/// Returns whether a directory has entries that snapshots contain.
pub(super) fn has_files(directory: &Path) -> anyhow::Result<bool> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries.with_context(|| format!("cannot read {directory:?}"))?,
    };
    for entry in entries {
        let name = entry?.file_name();
        if name != STATE_DIRECTORY && !is_temporary(name.as_bytes()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes a workspace an ordinary directory. `discards`: unpushed changes do not matter. `deletes`:
/// the files are removed.
///
/// # Errors
///
/// The workspace has unpushed changes.
pub(super) fn close(
    workspace: &mut Workspace,
    discards: bool,
    deletes: bool,
    sources: &Sources,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    if let Some(overlay) = workspace.overlay().cloned() {
        return overlay::close(workspace, &overlay, discards, deletes, sources, out);
    }
    let _lock = workspace.lock()?;
    let root = workspace.root.clone();
    let kept = match is_closing(workspace) {
        true => Some(go_on(workspace)?),
        false if deletes => {
            let scanned = scan_to_delete(workspace, discards, sources)?;
            Some(delete(workspace, &scanned)?)
        }
        false => {
            let changes = if discards {
                Vec::new()
            } else {
                local_changes(workspace, false)?
            };
            ensure!(changes.is_empty(), unpushed(&root, &changes));
            None
        }
    };
    match kept {
        None => {
            workspace.remove_state()?;
            writeln!(out, "closed {root:?}; its files stay")?;
        }
        Some(kept) if kept.is_empty() => {
            workspace.remove()?;
            writeln!(out, "closed and deleted {root:?}")?;
        }
        Some(kept) => {
            workspace.remove_state()?;
            return Err(kept.error(&root));
        }
    }
    Ok(())
}

/// Goes on with a `close --delete` that was killed after it had removed the directory. Returns
/// whether there was such a workspace.
///
/// # Errors
///
/// The state cannot be removed.
pub(super) fn close_deleted(directory: &Path, out: &mut dyn Write) -> anyhow::Result<bool> {
    let root = absolute(directory)?;
    let Some(deleted) = registry::find_deleted(&root, CLOSING) else {
        return Ok(false);
    };
    let removed = registry::remove(&deleted.dir, &root);
    removed.with_context(|| format!("cannot remove {:?}", deleted.dir))?;
    writeln!(out, "closed and deleted {root:?}")?;
    Ok(true)
}

/// Scans the files of a workspace that are to be deleted. `discards`: also those that are not on
/// the server.
fn scan_to_delete(
    workspace: &Workspace,
    discards: bool,
    sources: &Sources,
) -> anyhow::Result<Scanned> {
    let root = &workspace.root;
    let scanned = if discards {
        Scanned::scan(root).map_err(read_error)?
    } else {
        // Ask the server before the files are read: a program may change files while the server is
        // slow.
        if workspace.state.base.is_some() {
            let snapshots = workspace.snapshots(sources)?;
            check_stored(workspace, snapshots.refs())?;
        }
        let scanned = read_with(workspace, false, scan::Options::WRITING)?;
        let tree = steady(workspace, scanned, false, false, scan::Options::WRITING)?;
        let scanned = tree.scanned();
        let base = workspace.base()?;
        let base = base.map_or_else(empty, |base| base.manifest.entries);
        let changes = changes(&base, &scanned.entries);
        ensure!(changes.is_empty(), unpushed(root, &changes));
        check_reserved(root, &reserved(scanned))?;
        scanned.clone()
    };
    ensure!(
        scanned.skipped.mounts.is_empty(),
        Failed::Refused.because(anyhow!(
            "a file system is mounted in {root:?}: unmount it before its files are deleted"
        ))
    );
    Ok(scanned)
}

/// Returns the error of a workspace with unpushed changes.
pub(super) fn unpushed(root: &Path, changes: &[Change]) -> anyhow::Error {
    Failed::Refused.because(anyhow!(
        "{root:?} has unpushed changes ({}): run samovar workspace push first, or use --discard",
        summary(changes)
    ))
}
