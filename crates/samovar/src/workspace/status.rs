//! `samovar workspace status`, `diff` and `log`.

use std::io::Write;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::anyhow;
use samovar_client::push::directory::report_left_out;
use samovar_client::workspace::{State, Workspace};
use samovar_text::shown_path;
use samovar_workspace::diff::ChangeKind;
use serde_json::json;

use super::age;
use super::local::{beside, changes, counts, empty, read_visible, summary, word};
use super::on_server::{OnServer, missing};
use crate::credentials::Sources;
use crate::http::{Http, Patience, printable};
use crate::refs::{Refs, write_log};

/// Maximum wait for the server. The state of the files does not depend on it.
const SERVER_TIME: Duration = Duration::from_secs(1);

/// Requests the newest generation of a ref on another thread, without waiting longer than
/// [`SERVER_TIME`].
struct Query(mpsc::Receiver<anyhow::Result<OnServer>>);

impl Query {
    fn start(http: Http, state: State) -> Self {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let refs = Refs::trusting(&http, &state.keys);
            let found = refs.and_then(|refs| OnServer::of(&refs, &state));
            // The receiver is gone if nobody waits any more.
            sender.send(found).unwrap_or_default();
        });
        Self(receiver)
    }

    fn finish(self) -> anyhow::Result<OnServer> {
        let timeout = |_| Err(anyhow!("the server does not answer"));
        self.0.recv_timeout(SERVER_TIME).unwrap_or_else(timeout)
    }
}

/// Shows the state of a workspace. `is_offline`: no request is sent.
///
/// # Errors
///
/// The files or the state cannot be read. An unreachable server is not an error.
pub(super) fn status(
    workspace: &Workspace,
    sources: &Sources,
    is_offline: bool,
    is_json: bool,
    out: &mut dyn Write,
) -> anyhow::Result<ExitCode> {
    let query = match is_offline {
        true => None,
        false => {
            let http = workspace.http(sources, Patience::QUERY)?;
            Some(Query::start(http, workspace.state.clone()))
        }
    };
    let (scanned, base) = beside(|| read_visible(workspace, is_json), &|| workspace.base());
    let scanned = scanned?;
    let base = base?.map_or_else(empty, |base| base.manifest.entries);
    let changes = changes(&base, &scanned.entries);
    report_left_out(&scanned);
    let found = query.map(Query::finish);
    let state = &workspace.state;
    let answer = found.as_ref().and_then(|found| found.as_ref().ok());
    let newest = answer.and_then(|answer| answer.newest());
    let lost = answer.and_then(|answer| answer.lost(state));
    // Nobody knows whether what cannot be read was changed.
    let is_known = scanned.skipped.unreadable.is_empty();
    let is_clean = changes.is_empty() && lost.is_none() && is_known;
    let code = exit_code(is_clean);
    if is_json {
        let document = json!({
            "directory": workspace.root.to_string_lossy(),
            "url": state.url,
            "ref": state.name.as_str(),
            "generation": state.generation(),
            "newestGeneration": newest.map(|newest| newest.number),
            "isServerReachable": found.as_ref().map(Result::is_ok),
            "lastSync": state.base.as_ref().map(|base| base.synced_at),
            "isBaseLost": lost.is_some(),
            "isClean": is_clean,
            "changes": counts(&changes),
        });
        writeln!(out, "{document}")?;
        return Ok(code);
    }
    let since = match &state.base {
        Some(base) => format!("last push or pull: {}", age(base.synced_at)),
        None => "nothing was pushed yet".to_owned(),
    };
    writeln!(
        out,
        "{} in {:?}: {}; {since}",
        workspace.title(),
        workspace.root,
        summary(&changes)
    )?;
    if let Some(Err(error)) = &found {
        writeln!(out, "the newest generation is not known: {error:#}")?;
    } else if let Some(error) = lost {
        writeln!(out, "{error:#}")?;
    } else if let Some(newest) = newest.filter(|newest| newest.number != state.generation()) {
        writeln!(
            out,
            "the server has generation {}, pushed by {}: run samovar workspace pull",
            newest.number,
            printable(newest.host.as_deref().unwrap_or("an unknown machine"))
        )?;
    }
    Ok(code)
}

/// Lists the paths that differ from the base.
///
/// # Errors
///
/// The files or the state cannot be read.
pub(super) fn diff(workspace: &Workspace, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let base = workspace.base()?;
    let base = base.map_or_else(empty, |base| base.manifest.entries);
    let scanned = read_visible(workspace, false)?;
    report_left_out(&scanned);
    let changes = changes(&base, &scanned.entries);
    for change in &changes {
        let path = shown_path(&change.path);
        match (change.kind, change.old) {
            (ChangeKind::Renamed, Some(old)) => {
                let old = shown_path(&base.path(old));
                writeln!(out, "{:8} {old} -> {path}", word(change.kind))?;
            }
            _ => writeln!(out, "{:8} {path}", word(change.kind))?,
        }
    }
    if !changes.is_empty() {
        writeln!(out, "{}", summary(&changes))?;
    }
    let is_known = scanned.skipped.unreadable.is_empty();
    Ok(exit_code(changes.is_empty() && is_known))
}

fn exit_code(is_clean: bool) -> ExitCode {
    match is_clean {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Lists the generations of the ref, with a mark at the one on which the files are based.
///
/// # Errors
///
/// The cache is unavailable, or the ref does not exist.
pub(super) fn log(
    workspace: &Workspace,
    sources: &Sources,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let http = workspace.http(sources, Patience::SETUP)?;
    let refs = Refs::trusting(&http, &workspace.state.keys)?;
    let log = refs.get(&workspace.state.name)?;
    let log = log.ok_or_else(|| missing(&workspace.state))?;
    let base = workspace.state.generation();
    let mark = |number| match number > 0 && number == base {
        true => "* ",
        false => "  ",
    };
    write_log(&log.generations, mark, out)
}
