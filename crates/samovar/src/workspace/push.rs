//! `samovar workspace push`.

use std::collections::HashSet;
use std::io::Write;
use std::time::Instant;

use anyhow::{anyhow, ensure};
use samovar_client::machine::host;
use samovar_client::push::directory::{named, refuse_public, report_skipped};
use samovar_client::push::upload;
use samovar_client::workspace::{Base, Lock, State, Workspace};
use samovar_workspace::repository::Contents;
use samovar_workspace::{Entries, Entry, Kind, Skipped, Walk, scan};
use serde_json::json;

use super::delete::check_complete;
use super::local::{beside, changes, empty, read_error, steady, summary, write_index};
use super::on_server::{OnServer, RECREATE, check_base};
use super::repositories;
use crate::credentials::Sources;
use crate::http::printable;
use crate::outcome::Failed;
use crate::refs::{Expected, Generation, Update, Updated, Version};
use crate::size::{counted, human};
use crate::snapshot::{Downloaded, Snapshots};

/// Options of `samovar workspace push`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Options<'a> {
    pub(super) message: Option<&'a str>,
    pub(super) keep: u32,
    /// Whether to set the ref even if it has a newer generation.
    pub(super) is_forced: bool,
    pub(super) is_json: bool,
    /// Whether to leave out what the user may not read.
    pub(super) skips_unreadable: bool,
    /// Maximum share of the files of the base that may be gone, in percent. `None`: any.
    pub(super) max_delete: Option<u64>,
}

/// The outcome of a push.
#[derive(Debug)]
pub(super) enum Pushed {
    /// The files have not changed since the last push or pull.
    Unchanged,
    Done {
        /// Number of bytes sent.
        sent_len: u64,
        /// Full store path of the tree.
        path: String,
        /// Summary of the changes.
        summary: String,
    },
    /// Another machine or directory has pushed this generation.
    Conflict(Box<Generation>),
}

/// Pushes the files of a workspace as the next generation, and prints the outcome.
///
/// # Errors
///
/// The tree cannot be read or changes, the cache is unavailable or refuses the push, or the ref has
/// a newer generation.
pub(super) fn run(
    workspace: &mut Workspace,
    options: Options<'_>,
    sources: &Sources,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let started_at = Instant::now();
    let lock = workspace.lock()?;
    let pushed = push(workspace, &lock, options, sources)?;
    let title = workspace.title();
    let seconds = started_at.elapsed().as_secs_f64();
    if options.is_json {
        let (sent_len, path) = match &pushed {
            Pushed::Done { sent_len, path, .. } => (*sent_len, Some(path)),
            Pushed::Unchanged => (0, None),
            Pushed::Conflict(newest) => return Err(conflict(workspace, newest)),
        };
        let document = json!({
            "ref": workspace.state.name.as_str(),
            "generation": workspace.state.generation(),
            "path": path,
            "sentSize": sent_len,
            "seconds": seconds,
            "isUnchanged": path.is_none(),
        });
        return Ok(writeln!(out, "{document}")?);
    }
    match pushed {
        Pushed::Unchanged => writeln!(out, "nothing to push: the files are those of {title}")?,
        Pushed::Done {
            sent_len,
            path,
            summary,
        } => writeln!(
            out,
            "{title} is {path}: {summary}; {} sent in {seconds:.1} s",
            human(sent_len)
        )?,
        Pushed::Conflict(newest) => return Err(conflict(workspace, &newest)),
    }
    Ok(())
}

/// Returns the error of a push that came too late.
pub(super) fn conflict(workspace: &Workspace, newest: &Generation) -> anyhow::Error {
    let by = newest.host.as_deref().map(|host| {
        let host = printable(host);
        format!(" by {host}")
    });
    Failed::Refused.because(anyhow!(
        "generation {} of {} was pushed{} after generation {}, on which these files are based: run \
         samovar workspace pull, then push again; nothing was published",
        newest.number,
        workspace.state.name,
        by.unwrap_or_default(),
        workspace.state.generation()
    ))
}

/// Pushes the files of a workspace as the next generation.
pub(super) fn push(
    workspace: &mut Workspace,
    _lock: &Lock,
    options: Options<'_>,
    sources: &Sources,
) -> anyhow::Result<Pushed> {
    check_complete(workspace)?;
    let snapshots = workspace.snapshots(sources)?;
    let on_server = match options.is_forced {
        true => OnServer::of(snapshots.refs(), &workspace.state)?,
        false => check_base(workspace, snapshots.refs())?,
    };
    let scan = scan::Options {
        writes: true,
        skips_unreadable: options.skips_unreadable,
    };
    let read = || repositories::read_settled(workspace, options.is_json, scan);
    let (scanned, base) = beside(read, &|| workspace.base());
    let (scanned, base) = (scanned?, base?);
    let none = empty();
    let base_entries = base.as_ref().map_or(&none, |base| &base.manifest.entries);
    if base.is_some() && !options.is_forced && changes(base_entries, &scanned.entries).is_empty() {
        return Ok(Pushed::Unchanged);
    }
    if let Some(max_delete) = options.max_delete {
        check_deleted(base_entries, &scanned.entries, max_delete)?;
    }
    report_skipped(&scanned);
    // A difference to a base that the server lacks would be useless.
    let may_have_base = !options.is_forced || on_server.has_base;
    let base_there = base.as_ref().filter(|_| may_have_base);
    if !workspace.state.is_public {
        refuse_public(&snapshots)?;
    }
    let tree = steady(workspace, scanned, base.is_none(), options.is_json, scan)?;
    let name = &workspace.state.name;
    let uploaded = upload(&snapshots, name, &tree, base_there, options.is_json).map_err(changed)?;
    let snapshot = uploaded.snapshot;
    let message = message(options.message, &tree.scanned().skipped);
    let options = Options {
        message: message.as_deref(),
        ..options
    };
    let outcome = publish(workspace, &snapshots, &snapshot, options)?;
    let generation = match outcome {
        Ok(generation) => generation,
        Err(newest) => return Ok(Pushed::Conflict(newest)),
    };
    let summary = summary(&changes(base_entries, &snapshot.manifest.entries));
    workspace.set_state(State {
        base: Some(Base::now(generation, &snapshot)),
        ..workspace.state.clone()
    })?;
    write_index(workspace, tree.scanned());
    repositories::remember(
        &workspace.place(),
        &snapshot.manifest.entries,
        &Contents::default(),
    );
    Ok(Pushed::Done {
        sent_len: uploaded.sent_len,
        path: snapshot.manifest.tree.full(snapshots.store_dir()),
        summary,
    })
}

/// Adds to the message of a generation which files it lacks because the user could not read them.
fn message(message: Option<&str>, skipped: &Skipped) -> Option<String> {
    let unreadable = &skipped.unreadable;
    if unreadable.is_empty() {
        return message.map(str::to_owned);
    }
    let mut text = message.map_or_else(String::new, |message| format!("{message}; "));
    let count = counted(unreadable.len() as u64, "unreadable path");
    text.push_str(&format!("without {count}: {}", named(unreadable)));
    Some(text)
}

/// Refuses a tree in which more than `max_delete` percent of the files of the base are gone. A file
/// is gone if its path does not exist, and no other file has its contents.
fn check_deleted(base: &Entries, new: &Entries, max_delete: u64) -> anyhow::Result<()> {
    let digest = |entry: &Entry| match entry.kind {
        Kind::File { digest, .. } => Some(digest.unwrap_or_default()),
        _ => None,
    };
    let file_count = base.list().iter().filter_map(digest).count() as u64;
    let removed = Walk::new([base, new]).filter_map(|pair| match pair {
        [Some(old), None] => base.get(old).and_then(digest),
        _ => None,
    });
    let removed: Vec<[u8; 32]> = removed.collect();
    let is_too_many = |count: usize| count as u64 * 100 > file_count * max_delete;
    if !is_too_many(removed.len()) {
        return Ok(());
    }
    let there: HashSet<[u8; 32]> = new.list().iter().filter_map(digest).collect();
    let gone = removed.iter().filter(|digest| !there.contains(*digest));
    let gone_count = gone.count();
    ensure!(
        !is_too_many(gone_count),
        Failed::Refused.because(anyhow!(
            "{gone_count} of {} are gone, more than {max_delete} % (--max-delete): to remove them \
             everywhere, run samovar workspace push; to restore them, run samovar workspace \
             discard",
            counted(file_count, "file")
        ))
    );
    Ok(())
}

/// Adds advice to the error of a tree that changed.
fn changed(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<samovar_workspace::ReadError>() {
        Ok(error) => read_error(error),
        Err(error) => error,
    }
}

/// Sets the ref to a snapshot. Returns the generation, or the newer generation of another machine.
fn publish(
    workspace: &mut Workspace,
    snapshots: &Snapshots,
    snapshot: &Downloaded,
    options: Options<'_>,
) -> anyhow::Result<Result<Version, Box<Generation>>> {
    loop {
        // If the response to the next request is lost, this file shows which snapshot was pushed.
        workspace.write_base(snapshot)?;
        let update = Update {
            manifest: &snapshot.path,
            expected: match (&workspace.state.base, options.is_forced) {
                (_, true) => Expected::Any,
                (None, _) => Expected::Absent,
                (Some(base), _) => Expected::Generation(base.version),
            },
            keep: Some(options.keep),
            host: Some(&host()),
            message: options.message,
        };
        let sentence = match snapshots.refs().put(&workspace.state.name, &update)? {
            Updated::Done(generation) => return Ok(Ok(generation)),
            Updated::Conflict(sentence) => sentence,
        };
        let found = OnServer::of(snapshots.refs(), &workspace.state)?;
        let Some(newest) = found.newest().cloned() else {
            workspace.remove_base(snapshot);
            return Err(Failed::Refused.because(anyhow!(
                "the cache refused the push, because the ref was removed ({sentence}): {RECREATE}"
            )));
        };
        // If the response to an earlier push of this workspace was lost, the files are based on the
        // generation of that push.
        let base = workspace.state.base.as_ref().map(|base| base.version);
        let is_own = base != Some(newest.version()) && workspace.adopt_base(&newest)?;
        if !is_own {
            workspace.remove_base(snapshot);
            return Ok(Err(Box::new(newest)));
        }
    }
}
