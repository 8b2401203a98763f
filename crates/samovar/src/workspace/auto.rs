//! `samovar workspace auto`: pushes whenever no program has changed the files for some time.
//!
//! The tree is scanned at intervals of a second, or of 20 times the duration of a scan if that is
//! longer: scans take at most 5 % of a processor.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use samovar_client::workspace::{Base, STATE, Workspace, is_workspace};
use samovar_workspace::{ReadError, Scanned};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::delete::is_closing;
use super::push::{Options, Pushed, conflict, push};
use crate::credentials::Sources;
use crate::notice::notice;
use crate::outcome::{Failed, TreeChanges, reason};
use crate::size::human;

/// Minimum time between two scans.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Time between two scans, in durations of a scan.
const INTERVAL_SCANS: u32 = 20;

/// Time in which further signals count as the first one: shells and `timeout` send one both to the
/// process and to its group.
const SAME_SIGNAL_TIME: Duration = Duration::from_secs(1);

/// Minimum and maximum pause after a failed push.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Pushes until a signal arrives, then once more; or until the workspace is closed.
///
/// # Errors
///
/// The last push has failed, or the files cannot be read.
pub(super) fn auto(
    workspace: &mut Workspace,
    idle: Duration,
    options: Options<'_>,
    sources: &Sources,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let stop = signals()?;
    writeln!(
        out,
        "pushing {:?} to {} after changes",
        workspace.root, workspace.state.name
    )?;
    out.flush()?;
    let mut auto = Auto {
        options,
        sources,
        pushed: None,
        failure: None,
        pause: PAUSE_MIN,
        conflict_base: None,
        is_disturbed: false,
    };
    let mut seen = None;
    let mut quiet_since = Instant::now();
    let mut retry_at = quiet_since;
    loop {
        let started_at = Instant::now();
        let found = fingerprint(workspace);
        if !is_workspace(&workspace.root) {
            return auto.end(workspace, seen, out);
        }
        if is_closing(workspace) {
            // Files that `close` is deleting are missing. They must not count as removed by the
            // user.
            match stop.recv_timeout(INTERVAL_MIN) {
                Err(RecvTimeoutError::Timeout) => continue,
                _ => return Ok(()),
            }
        }
        let found = found?;
        let scan_time = started_at.elapsed();
        if found != seen {
            seen = found;
            quiet_since = Instant::now();
        }
        let is_quiet = seen.is_some() && quiet_since.elapsed() >= idle;
        if is_quiet && auto.pushed != seen && Instant::now() >= retry_at {
            let is_done = auto.push(workspace, seen, out)?;
            if !is_done {
                retry_at = Instant::now() + auto.pause;
            }
            if auto.is_disturbed {
                quiet_since = Instant::now();
            }
        }
        let interval = INTERVAL_MIN.max(scan_time * INTERVAL_SCANS);
        match stop.recv_timeout(interval) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => break,
        }
    }
    writeln!(out, "stopping")?;
    auto.last(workspace, out)
}

/// The state of `samovar workspace auto`.
struct Auto<'a> {
    options: Options<'a>,
    sources: &'a Sources,
    /// Fingerprint of the tree that was pushed.
    pushed: Option<u64>,
    /// The last error, which is printed once.
    failure: Option<String>,
    pause: Duration,
    /// The base at the last conflict: pushing again is useless until a pull. The inner `None`: the
    /// workspace had no base.
    conflict_base: Option<Option<Base>>,
    /// Whether programs have changed the files during the last push.
    is_disturbed: bool,
}

impl Auto<'_> {
    /// Pushes the tree with this fingerprint. Returns whether the push need not be repeated.
    /// Failures are printed.
    fn push(
        &mut self,
        workspace: &mut Workspace,
        seen: Option<u64>,
        out: &mut dyn Write,
    ) -> anyhow::Result<bool> {
        if self.conflict_base.is_some() {
            // A pull by another process changes the base.
            if let Ok(current) = Workspace::read(&workspace.root) {
                *workspace = current;
            }
            if self.conflict_base.as_ref() == Some(&workspace.state.base) {
                return Ok(false);
            }
            self.conflict_base = None;
        }
        let pushed = self.try_push(workspace, out);
        self.is_disturbed = pushed
            .as_ref()
            .is_err_and(|error| error.is::<TreeChanges>());
        match pushed {
            Err(_) if self.is_disturbed => Ok(false),
            Ok(()) => {
                self.pushed = seen;
                self.failure = None;
                self.pause = PAUSE_MIN;
                Ok(true)
            }
            Err(error) => {
                let text = format!("{error:#}");
                if self.failure.as_ref() != Some(&text) {
                    notice(&format!("not pushed, trying again: {text}"));
                }
                self.failure = Some(text);
                self.pause = (self.pause * 2).min(PAUSE_MAX);
                Ok(false)
            }
        }
    }

    fn try_push(&mut self, workspace: &mut Workspace, out: &mut dyn Write) -> anyhow::Result<()> {
        let started_at = Instant::now();
        let lock = workspace.lock()?;
        match push(workspace, &lock, self.options, self.sources)? {
            Pushed::Unchanged => {}
            Pushed::Done {
                sent_len, summary, ..
            } => {
                writeln!(
                    out,
                    "{}: {summary}; {} sent in {:.1} s",
                    workspace.title(),
                    human(sent_len),
                    started_at.elapsed().as_secs_f64()
                )?;
                out.flush()?;
            }
            Pushed::Conflict(newest) => {
                self.conflict_base = Some(workspace.state.base.clone());
                return Err(conflict(workspace, &newest));
            }
        }
        Ok(())
    }

    /// Ends because the workspace is gone. `seen`: fingerprint of the last tree that was scanned.
    fn end(
        &self,
        workspace: &Workspace,
        seen: Option<u64>,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let root = &workspace.root;
        // `close` removes the state, after it has looked for unpushed changes.
        let is_closed = !workspace.path(STATE).exists();
        if is_closed {
            writeln!(out, "{root:?} was closed: stopping")?;
            return Ok(());
        }
        ensure!(
            self.pushed.is_some() && self.pushed == seen,
            Failed::Unavailable.because(anyhow!(
                "{root:?} is not a workspace any more, and changes were not pushed: stopping; if \
                 the files are there, run samovar workspace open --adopt"
            ))
        );
        writeln!(out, "{root:?} is not a workspace any more: stopping")?;
        Ok(())
    }

    /// Pushes before the process ends.
    fn last(&mut self, workspace: &mut Workspace, out: &mut dyn Write) -> anyhow::Result<()> {
        if self.pushed.is_some() && fingerprint(workspace)? == self.pushed {
            return Ok(());
        }
        let pushed = self.try_push(workspace, out);
        pushed.map_err(|error| {
            let failed = reason(&error).unwrap_or(Failed::Unavailable);
            failed.because(anyhow!("there are unpushed changes: {error:#}"))
        })
    }
}

/// Returns a number that differs whenever a file has changed. Returns `None` if the tree changes
/// meanwhile.
fn fingerprint(workspace: &Workspace) -> anyhow::Result<Option<u64>> {
    let scanned = match Scanned::scan(&workspace.root) {
        Ok(scanned) => scanned,
        Err(ReadError::Changed(_)) => return Ok(None),
        Err(error) => return Err(Failed::Unavailable.because(error)),
    };
    let mut hasher = DefaultHasher::new();
    for (entry, state) in scanned.entries.list().iter().zip(&scanned.states).skip(1) {
        (&entry.name, entry.depth, entry.mode).hash(&mut hasher);
        (state.size, state.mtime, state.ctime, state.inode).hash(&mut hasher);
    }
    Ok(Some(hasher.finish()))
}

/// Returns a receiver that gets a message with the first signal that is to end the process. A
/// second signal ends the process at once.
fn signals() -> anyhow::Result<Receiver<()>> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot handle signals")?;
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut first_at = None;
            for signal in &mut signals {
                let first_at = *first_at.get_or_insert_with(Instant::now);
                if sender.send(()).is_err() || first_at.elapsed() > SAME_SIGNAL_TIME {
                    std::process::exit(128 + signal);
                }
            }
        })
        .context("cannot start a thread")?;
    Ok(receiver)
}
