//! Uploads a directory as the next generation of a ref.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use samovar_workspace::{ReadError, Scanned, scan};

use super::local_tree::LocalTree;
use super::snapshot::upload;
use crate::credentials::Sources;
use crate::failed::Failed;
use crate::machine::host;
use crate::notice::notice;
use crate::refs::{Expected, Generation, RefName, Update, Updated, check_snapshot, is_manifest};
use crate::snapshot::{Downloaded, Snapshots};
use crate::user_dirs;

/// Maximum number of paths that a message names.
const NAMED_COUNT: usize = 5;

/// A pushed directory.
#[derive(Debug)]
pub struct Pushed {
    /// Full store path of the tree.
    pub path: String,
    /// Full store path of the manifest.
    pub manifest: String,
    /// Length of the tree's NAR, in bytes.
    pub nar_size: u64,
    /// Number of the ref's generation.
    pub generation: u64,
    /// Whether the generation was there before.
    pub is_unchanged: bool,
    /// Number of bytes sent for NARs and recipes.
    pub sent_len: u64,
    /// Number of requests.
    pub request_count: u64,
}

/// Options of a push of a directory.
#[derive(Debug)]
pub struct Options<'a> {
    /// Path of the directory.
    pub directory: &'a Path,
    /// The ref to set.
    pub name: RefName,
    /// What the user writes about the new generation.
    pub message: Option<&'a str>,
    /// Number of generations to keep.
    pub keep: u32,
    /// Whether to set the ref even if another client has changed it meanwhile.
    pub is_forced: bool,
    /// Whether the snapshot may be readable by everybody.
    pub is_public: bool,
    /// Whether no progress is shown.
    pub is_quiet: bool,
}

/// Pushes a directory.
///
/// # Errors
///
/// The directory cannot be read, or the cache is unavailable or refuses the push.
pub fn push(options: &Options<'_>, sources: &Sources) -> anyhow::Result<Pushed> {
    let snapshots = Snapshots::open(options.name.remote.clone(), sources, &[])?;
    if !options.is_public {
        refuse_public(&snapshots)?;
    }
    let name = &options.name.name;
    let log = snapshots.refs().get(name)?.unwrap_or_default();
    let newest = log.generations.first();
    let base = base(options, &snapshots, newest)?;
    let rescan = |scan| read(options.directory, base.as_ref(), scan);
    let scanned = rescan(scan::Options::WRITING)?;
    check_skipped(&scanned, newest, base.as_ref())?;
    let tree = LocalTree::new(scanned, base.is_none(), options.is_quiet, &rescan)?;
    let uploaded = upload(&snapshots, name, &tree, base.as_ref(), options.is_quiet)?;
    let update = Update {
        manifest: &uploaded.snapshot.path,
        expected: match (newest, options.is_forced) {
            (_, true) => Expected::Any,
            (None, _) => Expected::Absent,
            (Some(newest), _) => Expected::Generation(newest.version()),
        },
        keep: Some(options.keep),
        host: Some(&host()),
        message: options.message,
    };
    let generation = match snapshots.refs().put(name, &update)? {
        Updated::Done(version) => version.number,
        Updated::Conflict(sentence) => {
            let error = anyhow!(
                "another client has set {name} during this push ({sentence}): look at samovar ref \
                 log, then push again, or use --force"
            );
            return Err(Failed::Refused.because(error));
        }
    };
    Ok(Pushed {
        path: uploaded.snapshot.manifest.tree.full(snapshots.store_dir()),
        manifest: uploaded.snapshot.path.full(snapshots.store_dir()),
        nar_size: uploaded.snapshot.manifest.entries.nar_size(),
        generation,
        is_unchanged: newest.is_some_and(|newest| newest.number == generation),
        sent_len: uploaded.sent_len,
        request_count: snapshots.http().request_count(),
    })
}

/// Downloads the snapshot on which a push is based. Without it, the whole tree is sent.
fn base(
    options: &Options<'_>,
    snapshots: &Snapshots,
    newest: Option<&Generation>,
) -> anyhow::Result<Option<Downloaded>> {
    let Some(newest) = newest else {
        return Ok(None);
    };
    if !options.is_forced {
        let name = &options.name.name;
        check_snapshot(name, &newest.manifest, "use another name, or --force")?;
    }
    if !is_manifest(newest.manifest.name()) {
        return Ok(None);
    }
    let downloaded = snapshots.manifest(&newest.manifest).inspect_err(|error| {
        notice(&format!(
            "the whole tree is sent, because the newest generation cannot be read: {error:#}"
        ));
    });
    Ok(downloaded.ok())
}

/// Scans a directory. What the snapshot `base` has below mount points does not count as removed.
fn read(
    directory: &Path,
    base: Option<&Downloaded>,
    options: scan::Options,
) -> Result<Scanned, ReadError> {
    let mut scanned = Scanned::scan_with(directory, options)?;
    if let Some(base) = base {
        let carried = scanned.carry(&base.manifest.entries);
        carried.map_err(|reason| ReadError::Entry {
            path: directory.to_owned(),
            reason,
        })?;
    }
    Ok(scanned)
}

/// What is left out because of its name, in messages.
const RESERVED: &str = "reserved name";

/// What is left out because the user may not read it, in messages.
const UNREADABLE: &str = "unreadable path";

/// Reports what is left out. Refuses a tree with mount points if the files that were pushed from
/// below them are not known.
fn check_skipped(
    scanned: &Scanned,
    newest: Option<&Generation>,
    base: Option<&Downloaded>,
) -> anyhow::Result<()> {
    report_skipped(scanned);
    let is_snapshot = newest.is_some_and(|newest| is_manifest(newest.manifest.name()));
    let mut hidden = scanned.skipped.hidden();
    match hidden.next().filter(|_| is_snapshot && base.is_none()) {
        None => Ok(()),
        Some(path) => Err(Failed::Unavailable.because(anyhow!(
            "{path:?} is a mounted file system, and the newest generation, which may have files \
             there, cannot be read: unmount the file system, or push again when the cache can be \
             read; nothing was published"
        ))),
    }
}

/// Refuses a cache that everybody can read: refs and snapshots are private unless their owner
/// decides otherwise.
///
/// # Errors
///
/// Everybody can read it, or it is unavailable.
pub fn refuse_public(snapshots: &Snapshots) -> anyhow::Result<()> {
    let http = snapshots.http().without_login();
    if http.get(crate::cache::INFO_PATH)?.status() != 200 {
        return Ok(());
    }
    let error = anyhow!(
        "everybody can read the cache at {}: restrict access on the server, see the \
         options access.*, or confirm by --public that everybody may read this tree",
        http.remote()
    );
    Err(Failed::Refused.because(error))
}

/// Prints what a snapshot leaves out.
pub fn report_skipped(scanned: &Scanned) {
    let skipped = &scanned.skipped;
    let reserved = reserved(scanned);
    report(&[
        (&skipped.special, "special file"),
        (&skipped.mounts, "mounted file system"),
        (&skipped.unreadable, UNREADABLE),
        (&reserved, RESERVED),
    ]);
}

/// Reports files that are left out because of their name, or because the user may not read them.
pub fn report_left_out(scanned: &Scanned) {
    report(&[
        (&scanned.skipped.unreadable, UNREADABLE),
        (&reserved(scanned), RESERVED),
    ]);
}

/// Returns what is left out because of its name, without the states of this user's workspaces.
pub fn reserved(scanned: &Scanned) -> Vec<PathBuf> {
    let paths = scanned.skipped.reserved.iter();
    let is_shown = |path: &&PathBuf| !user_dirs::is_workspaces(&scanned.root.join(path));
    paths.filter(is_shown).cloned().collect()
}

fn report(kinds: &[(&Vec<PathBuf>, &str)]) {
    let kinds = kinds.iter().filter(|(paths, _)| !paths.is_empty());
    let kinds: Vec<String> = kinds
        .map(|(paths, noun)| {
            format!(
                "{}: {}",
                samovar_text::counted(paths.len() as u64, noun),
                named(paths)
            )
        })
        .collect();
    if !kinds.is_empty() {
        notice(&format!("left out {}", kinds.join(", and ")));
    }
}

/// Names the first few of some paths.
pub fn named(paths: &[PathBuf]) -> String {
    let first = paths.iter().take(NAMED_COUNT);
    let first: Vec<String> = first.map(|path| format!("{path:?}")).collect();
    let more = if paths.len() > NAMED_COUNT {
        ", …"
    } else {
        ""
    };
    format!("{}{more}", first.join(", "))
}
