//! The files of a workspace, and how they differ from a snapshot.

use std::io;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread;

use anyhow::anyhow;
use samovar_client::push::LocalTree;
use samovar_client::workspace::Workspace;
use samovar_workspace::diff::{Change, ChangeKind, diff};
use samovar_workspace::entries::Builder;
use samovar_workspace::pack::{default_threads, hash};
use samovar_workspace::scan::Options;
use samovar_workspace::{Entries, Index, Kind, Mtime, ReadError, Scanned, prepare_clock};
use serde_json::{Value, json};

use super::overlay;
use crate::hashing;
use crate::outcome::{Failed, TreeChanges};

/// Options of a scan that leaves out what the user may not read.
pub(super) const VISIBLE: Options = Options {
    writes: false,
    skips_unreadable: true,
};

/// Number of attempts to read a tree that changes meanwhile.
const ATTEMPT_COUNT: usize = 3;

/// Reads the files of a workspace: their metadata, and the digests of those that have changed since
/// the index was written. `is_quiet`: no progress is shown.
///
/// # Errors
///
/// A file cannot be read, or the tree changes all the time.
pub(super) fn read(workspace: &Workspace, is_quiet: bool) -> anyhow::Result<Scanned> {
    read_with(workspace, is_quiet, Options::default())
}

/// Like [`read`], but leaves out what the user may not read. That counts as unchanged.
///
/// # Errors
///
/// Those of [`read`].
pub(super) fn read_visible(workspace: &Workspace, is_quiet: bool) -> anyhow::Result<Scanned> {
    match try_read(workspace, is_quiet, Options::default()).map_err(anyhow::Error::downcast) {
        Ok(scanned) => Ok(scanned),
        Err(Ok(ReadError::Io { ref reason, .. }))
            if reason.kind() == io::ErrorKind::PermissionDenied =>
        {
            read_with(workspace, is_quiet, VISIBLE)
        }
        Err(_) => read(workspace, is_quiet),
    }
}

/// Like [`read`], with options.
///
/// # Errors
///
/// Those of [`read`].
pub(super) fn read_with(
    workspace: &Workspace,
    is_quiet: bool,
    options: Options,
) -> anyhow::Result<Scanned> {
    let mut attempt = 1;
    loop {
        match try_read(workspace, is_quiet, options).map_err(anyhow::Error::downcast) {
            Ok(scanned) => return Ok(scanned),
            Err(Ok(ReadError::Changed(_))) if attempt < ATTEMPT_COUNT => attempt += 1,
            Err(Ok(error)) => return Err(read_error(error)),
            Err(Err(error)) => return Err(error),
        }
    }
}

fn try_read(workspace: &Workspace, is_quiet: bool, options: Options) -> anyhow::Result<Scanned> {
    // Ignore errors: without it, more files are hashed.
    prepare_clock(&workspace.root).unwrap_or_default();
    // Without a usable index, all files are hashed.
    let read_index = || Index::read(&workspace.path("")).ok().flatten();
    let (scanned, index) = beside(|| scan(workspace, options), &read_index);
    let mut scanned = scanned?;
    let missing_count = match index {
        Some(index) => index.apply(&mut scanned).len(),
        None => usize::MAX,
    };
    if missing_count > 0 && !options.writes {
        // The index must stay right if programs store to mapped files afterwards. Files that are in
        // the index already were written to the disk before.
        let options = Options {
            writes: true,
            ..options
        };
        return try_read(workspace, is_quiet, options);
    }
    if missing_count > 0 {
        let progress = hashing::progress(&scanned, false, is_quiet);
        let report = |len| progress.add(len, 0);
        let hashed = hash(&mut scanned, false, default_threads(), &report);
        progress.end();
        write_index(workspace, &scanned);
        hashed?;
    }
    Ok(scanned)
}

/// Scans the files of a workspace. Adds the entries of the base that cannot be scanned, because
/// they are below a mount point or unreadable.
///
/// # Errors
///
/// An entry cannot be read, or the tree changes meanwhile.
fn scan(workspace: &Workspace, options: Options) -> anyhow::Result<Scanned> {
    let mut scanned = match workspace.overlay() {
        None => Scanned::scan_with(&workspace.root, options)?,
        Some(overlay) => overlay::scan(workspace, overlay, options)?,
    };
    if scanned.skipped.hidden().next().is_some()
        && let Some(base) = workspace.base()?
    {
        scanned.carry(&base.manifest.entries)?;
    }
    Ok(scanned)
}

/// Makes sure that all files were in the scanned state at one moment. If files have changed since
/// the scan, reads them again. `needs_nar_hash`: whether to compute the hash of the NAR in the same
/// pass. `options`: the options of the scan.
///
/// # Errors
///
/// A file cannot be read, or the tree changes all the time.
pub(super) fn steady(
    workspace: &Workspace,
    scanned: Scanned,
    needs_nar_hash: bool,
    is_quiet: bool,
    options: Options,
) -> anyhow::Result<LocalTree> {
    let rescan = |again: Options| {
        let options = Options {
            writes: again.writes,
            ..options
        };
        let scanned = scan(workspace, options);
        scanned.map_err(|error| as_read_error(error, &workspace.root))
    };
    LocalTree::new(scanned, needs_nar_hash, is_quiet, &rescan).map_err(read_error)
}

/// Stores the digests. Ignores errors: without them, the next command hashes the files again.
pub(super) fn write_index(workspace: &Workspace, scanned: &Scanned) {
    Index::of(scanned)
        .write(&workspace.path(""))
        .unwrap_or_default();
}

/// Returns the error of a tree that cannot be read, with advice.
pub(super) fn read_error(error: ReadError) -> anyhow::Error {
    match error {
        ReadError::Changed(_) => TreeChanges(error).into(),
        ReadError::Io { ref reason, .. } if reason.kind() == io::ErrorKind::PermissionDenied => {
            Failed::Refused.because(anyhow!(
                "{error}: permit reading it by chmod u+r, or leave it out by samovar workspace \
                 push --skip-unreadable"
            ))
        }
        other => other.into(),
    }
}

/// Returns an error that contains a [`ReadError`] as such, others as errors of reading `root`.
pub(super) fn as_read_error(error: anyhow::Error, root: &Path) -> ReadError {
    error.downcast().unwrap_or_else(|error| ReadError::Io {
        path: root.to_owned(),
        reason: io::Error::other(format!("{error:#}")),
    })
}

/// Returns the entries of an empty directory.
pub(super) fn empty() -> Entries {
    let mut builder = Builder::new(0o755, Mtime::default());
    let entries = builder.leave().and_then(|_| builder.finish());
    entries.unwrap_or_else(|_| unreachable!("an empty directory is a tree"))
}

/// Returns the differences that matter: not the times of directories, which change whenever a
/// program creates a temporary file, nor those of symbolic links, which a merge does not set, and
/// not the attributes of the root.
pub(super) fn changes(base: &Entries, new: &Entries) -> Vec<Change> {
    let is_file = |change: &Change| {
        let entry = change.new.and_then(|index| new.get(index));
        entry.is_some_and(|entry| matches!(entry.kind, Kind::File { .. }))
    };
    let mut changes = diff(base, new);
    changes.retain(|change| {
        let is_time = change.kind == ChangeKind::Touched && !is_file(change);
        !is_time && !change.path.is_empty()
    });
    changes
}

/// Returns the differences between the files of a workspace and its base. `is_quiet`: no progress
/// is shown.
///
/// # Errors
///
/// The files or the state cannot be read.
pub(super) fn local_changes(workspace: &Workspace, is_quiet: bool) -> anyhow::Result<Vec<Change>> {
    let read = match workspace.overlay() {
        None => read_visible,
        // The caller may delete the changes.
        Some(_) => read,
    };
    let (scanned, base) = beside(|| read(workspace, is_quiet), &|| workspace.base());
    let base = base?.map_or_else(empty, |base| base.manifest.entries);
    Ok(changes(&base, &scanned?.entries))
}

/// Calls both functions at the same time, the second one on another thread.
pub(super) fn beside<A, B: Send>(
    here: impl FnOnce() -> A,
    there: &(dyn Fn() -> B + Sync),
) -> (A, B) {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, there);
        let here = here();
        let there = match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // The system has no thread to spare.
            Err(_) => there(),
        };
        (here, there)
    })
}

/// Returns the word for a kind of change.
pub(super) fn word(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "added",
        ChangeKind::Removed => "removed",
        ChangeKind::Modified => "modified",
        ChangeKind::TypeChanged => "replaced",
        ChangeKind::ModeChanged => "mode",
        ChangeKind::Touched => "touched",
        ChangeKind::Renamed => "renamed",
    }
}

const KINDS: [ChangeKind; 7] = [
    ChangeKind::Added,
    ChangeKind::Modified,
    ChangeKind::Removed,
    ChangeKind::Renamed,
    ChangeKind::TypeChanged,
    ChangeKind::ModeChanged,
    ChangeKind::Touched,
];

fn count(changes: &[Change], kind: ChangeKind) -> usize {
    changes.iter().filter(|change| change.kind == kind).count()
}

/// Summarizes changes, as `2 added, 1 modified`.
pub(super) fn summary(changes: &[Change]) -> String {
    let counts = KINDS.into_iter().filter_map(|kind| {
        let count = count(changes, kind);
        (count > 0).then(|| format!("{count} {}", word(kind)))
    });
    match changes.is_empty() {
        true => "no changes".to_owned(),
        false => counts.collect::<Vec<_>>().join(", "),
    }
}

/// Returns the number of changes of each kind.
pub(super) fn counts(changes: &[Change]) -> Value {
    let counts = KINDS.map(|kind| (word(kind).to_owned(), json!(count(changes, kind))));
    Value::Object(counts.into_iter().collect())
}
