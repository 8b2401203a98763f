//! `samovar workspace open`, `close` and `list`.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail, ensure};
use samovar_workspace::{Root, STATE_DIRECTORY};

use super::local::{changes, empty, read, summary};
use super::pull::pull;
use super::state::{Base, State, Workspace, is_workspace};
use super::{age, registry};
use crate::credentials::Sources;
use crate::disk::{Use, unsuitable};
use crate::notice::notice;
use crate::outcome::Failed;
use crate::push::refuse_public;
use crate::refs::{Generation, RefName, Refs};
use crate::snapshot::Snapshots;
use samovar_storage::PinName;

/// Options of `samovar workspace open`.
#[derive(Debug)]
pub(super) struct Opening<'a> {
    pub(super) name: RefName,
    pub(super) directory: &'a Path,
    /// Whether a directory with files becomes a workspace.
    pub(super) adopts: bool,
    pub(super) may_be_on_network: bool,
    pub(super) is_public: bool,
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
    if is_workspace(&root) {
        return reopen(options, &root, sources, out);
    }
    check_place(options, &root)?;
    let snapshots = Snapshots::open(options.name.remote.clone(), sources)?;
    if !options.is_public {
        refuse_public(&snapshots)?;
    }
    let newest = find(options, &snapshots)?;
    let has_files = has_files(&root)?;
    if has_files && newest.is_some() && !options.adopts {
        bail!(Failed::Refused.because(anyhow!(
            "{root:?} is not empty: choose another directory, or use --adopt to make it a \
             workspace; its files stay as they are"
        )));
    }
    fs::create_dir_all(&root).with_context(|| format!("cannot create {root:?}"))?;
    let mut workspace = Workspace {
        root,
        state: State {
            url: options.name.remote.url().to_owned(),
            name: options.name.name.clone(),
            is_public: options.is_public,
            base: None,
        },
    };
    workspace.create_state_directory()?;
    let _lock = workspace.lock()?;
    let root = &workspace.root.clone();
    let Some(newest) = newest else {
        workspace.set_state(workspace.state.clone())?;
        registry::add(root);
        writeln!(
            out,
            "{root:?} is a workspace of {}, which does not exist yet: samovar workspace push \
             creates it",
            options.name
        )?;
        return Ok(ExitCode::SUCCESS);
    };
    if !has_files {
        // Whenever this process is killed, a pull completes the workspace.
        workspace.set_state(workspace.state.clone())?;
        registry::add(root);
        return pull(&mut workspace, &snapshots, &newest, out);
    }
    let snapshot = snapshots.manifest(&newest.manifest)?;
    workspace.write_base(&snapshot)?;
    workspace.set_state(State {
        base: Some(Base::now(newest.number, &snapshot)),
        ..workspace.state.clone()
    })?;
    registry::add(root);
    let scanned = read(&workspace)?;
    let changes = changes(&snapshot.manifest.entries, &scanned.entries);
    writeln!(
        out,
        "{root:?} is a workspace of {}; compared with it: {}",
        workspace.title(),
        summary(&changes)
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Opens a workspace that is open already.
fn reopen(
    options: &Opening<'_>,
    root: &Path,
    sources: &Sources,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let mut workspace = Workspace::read(root)?;
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
    registry::add(root);
    if workspace.state.base.is_none() {
        // An earlier process may have been killed before it was complete.
        let _lock = workspace.lock()?;
        let snapshots = Snapshots::open(options.name.remote.clone(), sources)?;
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

/// Returns the generation to open. Returns `None` if the ref does not exist.
fn find(options: &Opening<'_>, snapshots: &Snapshots) -> anyhow::Result<Option<Generation>> {
    let name = &options.name.name;
    match options.name.generation {
        Some(number) => {
            let log = snapshots.refs().log(name)?;
            log.generation(name, Some(number)).map(Some)
        }
        None => newest(snapshots.refs(), name),
    }
}

/// Returns the newest generation of a ref. Returns `None` if the ref does not exist.
pub(super) fn newest(refs: &Refs, name: &PinName) -> anyhow::Result<Option<Generation>> {
    let log = refs.get(name)?;
    Ok(log.and_then(|log| log.generations.into_iter().next()))
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

/// Refuses directories that cannot be workspaces.
fn check_place(options: &Opening<'_>, root: &Path) -> anyhow::Result<()> {
    let refuse = |reason: String| Err(Failed::Refused.because(anyhow!(reason)));
    if let Some(outer) = root.ancestors().skip(1).find(|one| is_workspace(one)) {
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
    {
        return refuse(format!(
            "{root:?} is on a network file system ({kind}), where programs would not have the \
             speed of a local disk: choose a directory on a local disk, or confirm by \
             --on-network-disk"
        ));
    }
    Ok(())
}

/// Returns whether a directory has entries, other than the state of a workspace.
pub(super) fn has_files(directory: &Path) -> anyhow::Result<bool> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries.with_context(|| format!("cannot read {directory:?}"))?,
    };
    for entry in entries {
        if entry?.file_name() != STATE_DIRECTORY {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes a workspace an ordinary directory. `discards`: unpushed changes do not matter.
/// `deletes`: the files are removed.
///
/// # Errors
///
/// The workspace has unpushed changes.
pub(super) fn close(
    workspace: &mut Workspace,
    discards: bool,
    deletes: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let _lock = workspace.lock()?;
    let root = workspace.root.clone();
    let mut mounts = 0;
    if !discards || deletes {
        let scanned = read(workspace)?;
        mounts = scanned.skipped.mounts;
        let base = workspace.base()?;
        let base = base.map_or_else(empty, |base| base.manifest.entries);
        let changes = changes(&base, &scanned.entries);
        ensure!(
            discards || changes.is_empty(),
            Failed::Refused.because(anyhow!(
                "{root:?} has unpushed changes ({}): run samovar workspace push first, or use \
                 --discard",
                summary(&changes)
            ))
        );
    }
    ensure!(
        !deletes || mounts == 0,
        Failed::Refused.because(anyhow!(
            "a file system is mounted in {root:?}: unmount it before its files are deleted"
        ))
    );
    workspace.remove_state()?;
    registry::remove(&root);
    if deletes {
        delete(&root).with_context(|| format!("cannot delete all files in {root:?}"))?;
        writeln!(out, "closed and deleted {root:?}")?;
    } else {
        writeln!(out, "closed {root:?}; its files stay")?;
    }
    Ok(())
}

fn delete(root: &Path) -> anyhow::Result<()> {
    use std::os::unix::ffi::OsStrExt as _;
    let directory = Root::open(root)?;
    for entry in fs::read_dir(root)? {
        directory.remove_all(entry?.file_name().as_bytes())?;
    }
    // The current directory and mount points cannot be removed. They are empty.
    fs::remove_dir(root).unwrap_or_default();
    Ok(())
}

/// Lists the workspaces of the user.
pub(super) fn list(is_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for root in registry::list() {
        let row = if is_workspace(&root) {
            match describe(&root) {
                Ok((workspace, state)) => Row {
                    title: workspace.title(),
                    age: workspace
                        .state
                        .base
                        .as_ref()
                        .map(|base| age(base.synced_at)),
                    state,
                    root,
                },
                Err(error) => Row {
                    title: "-".to_owned(),
                    age: None,
                    state: format!("{error:#}"),
                    root,
                },
            }
        } else {
            Row {
                title: "-".to_owned(),
                age: None,
                state: "vanished".to_owned(),
                root,
            }
        };
        rows.push(row);
    }
    if is_json {
        let rows = rows.iter().map(|row| {
            serde_json::json!({
                "directory": row.root.to_string_lossy(),
                "ref": row.title,
                "state": row.state,
                "age": row.age,
            })
        });
        let document = serde_json::json!({ "workspaces": rows.collect::<Vec<_>>() });
        return Ok(writeln!(out, "{document}")?);
    }
    for row in rows {
        let age = row.age.unwrap_or_else(|| "never".to_owned());
        let line = format!(
            "{}  {}, last push or pull: {age}",
            row.root.display(),
            row.title
        );
        writeln!(out, "{line}; {}", row.state)?;
    }
    Ok(())
}

/// A workspace in the list.
struct Row {
    root: PathBuf,
    /// The ref with the generation.
    title: String,
    /// Time since the last push or pull.
    age: Option<String>,
    state: String,
}

fn describe(root: &Path) -> anyhow::Result<(Workspace, String)> {
    let workspace = Workspace::read(root)?;
    let scanned = read(&workspace)?;
    let base = workspace.base()?;
    let base = base.map_or_else(empty, |base| base.manifest.entries);
    Ok((workspace, summary(&changes(&base, &scanned.entries))))
}

/// Sets the mode of the root of a workspace.
pub(super) fn set_root_mode(root: &Path, mode: u16) {
    let set = fs::set_permissions(root, fs::Permissions::from_mode(mode.into()));
    if let Err(error) = set {
        notice(&format!("cannot set the mode of {root:?}: {error}"));
    }
}
