//! `samovar workspace run`: runs a command in a writable tree with the files of a ref.
//!
//! # Processes
//!
//! ```text
//! samovar workspace run        creates the private namespaces, waits
//! └── samovar workspace run    the first process of the PID namespace: mounts, waits, pushes
//!     ├── samovar mount        serves the snapshot, the lower layer
//!     └── CMD                  writes to the upper layer, a local directory
//! ```
//!
//! The mounts exist in a mount namespace that vanishes with these processes. The kernel kills the
//! second process with the first one, and all others with the second one. Where a PID namespace is
//! not possible, the first process does the work of the second one, and `samovar workspace
//! run-guard` kills all others if that process is killed.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, ExitCode, ExitStatus};
use std::time::Instant;

use anyhow::{Context as _, anyhow, ensure};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use samovar_client::machine::host;
use samovar_client::push::directory::{named, refuse_public, report_skipped};
use samovar_client::push::{LocalTree, upload};
use samovar_client::workspace::layers::{OVERLAYS, VARIABLE, state_dir};
use samovar_mount::fuse::keep_manifest;
use samovar_mount::overlay::DIRECTORY_MODE;
use samovar_mount::overlay::changes::reserved_in;
use samovar_mount::overlay::layers::{Layers, unmount_lazily};
use samovar_mount::process::first;
use samovar_mount::process::namespace::{Namespace, end_members, unshare_processes};
use samovar_mount::process::signals::Signals;
use samovar_mount::refusal::check_fuse;
use samovar_workspace::modes;
use samovar_workspace::scan::Options;

use super::super::local::{changes, empty, read_error, summary};
use super::guard::{Guard, View};
use super::origin::{Origin, find, report_kept};
use crate::arguments::{credentials, keys_of, option, sources, switch, trusted_keys};
use crate::credential::{move_token, seal, without_token};
use crate::credentials::Sources;
use crate::notice::notice;
use crate::outcome::Failed;
use crate::push::{KEEP, message};
use crate::refs::{Expected, RefName, Update, Updated, path_names};
use crate::size::human;
use crate::snapshot::{Downloaded, Snapshots};
use crate::user_dirs::create_private;

/// Name of the directory with the layers of all runs.
const RUNS: &str = "runs";

/// Maximum number of attempts to push while other clients push.
const ATTEMPT_COUNT_MAX: usize = 20;

/// Exit codes besides those of the command, like those of `env`.
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Defines the subcommand `run`.
pub(crate) fn command() -> Command {
    Command::new("run")
        .about("Runs a command in a writable tree with the files of a ref, and pushes its changes")
        .after_help(
            "The command runs in the root of the tree. The files of the ref are read from the \
             server when they are used, and changes are written to a local directory. Other \
             processes do not see the tree. Needs no root, but user namespaces, overlayfs and \
             /dev/fuse. If the command succeeds, its changes are pushed as the next generation; \
             otherwise they are kept, and a message names their directory. What others have pushed \
             meanwhile is merged first, as by samovar workspace pull; after conflicts, nothing is \
             pushed. Processes that the \
             command leaves in the background are terminated. The exit code is that of the \
             command, 128 plus the number of the signal that killed it, 127 if it was not found, \
             126 if it cannot be run, or 125 if the tree cannot be prepared or pushed.",
        )
        .args(credentials())
        .arg(trusted_keys())
        .arg(
            switch("no-push")
                .conflicts_with("discard")
                .help("Keep the changes of a successful command on this machine"),
        )
        .arg(switch("discard").help("Discard the changes in any case"))
        .arg(
            option("continue", "DIR")
                .value_parser(value_parser!(PathBuf))
                .help("Start with the changes that an earlier command has left in DIR"),
        )
        .arg(
            option("at", "DIR")
                .value_parser(value_parser!(PathBuf))
                .help("Existing directory where the command sees the tree"),
        )
        .arg(message())
        .arg(
            option("keep", "NUMBER")
                .value_parser(value_parser!(u32).range(1..))
                .help(format!(
                    "Keep only this number of newest generations, including the new one [default: \
                     {KEEP}]"
                )),
        )
        .arg(switch("force").help("Set the ref even if it has a newer generation, without merging"))
        .arg(
            switch("public")
                .help("Accept a cache that everybody can read; the files will be public"),
        )
        .arg(
            Arg::new("ref")
                .value_name("REF")
                .required_unless_present("continue")
                .conflicts_with("continue")
                .help("Ref, as [URL#]NAME[@GENERATION]; a new one begins with an empty tree"),
        )
        .arg(
            Arg::new("command")
                .value_name("CMD")
                .value_parser(value_parser!(OsString))
                .action(ArgAction::Append)
                .num_args(1..)
                .last(true)
                .required(true)
                .help("Command with its arguments"),
        )
}

/// Runs the command. Errors are printed, because the exit code of the command says nothing about
/// them.
pub(crate) fn run(matches: &ArgMatches) -> ExitCode {
    match try_run(matches) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let text = crate::without_logins(&format!("{error:#}"));
            notice(&format!("error: {text}"));
            ExitCode::from(FAILED)
        }
    }
}

/// What happens with the changes of a successful command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Push,
    Keep,
    Discard,
}

fn try_run(matches: &ArgMatches) -> anyhow::Result<u8> {
    let (namespace, signals) = if first::is_first() {
        let signals = Signals::catch()?;
        first::settle(signals.parent())?;
        (Namespace::current()?, signals)
    } else {
        move_token()?;
        // Enter the namespaces while the process has one thread.
        let namespace = Namespace::enter()?;
        let signals = Signals::catch()?;
        if unshare_processes(namespace)? {
            return Ok(code_of(first::start(&signals)?));
        }
        (namespace, signals)
    };
    seal()?;
    let wanted = Wanted::of(matches)?;
    let snapshots = Snapshots::open(
        wanted.name.remote.clone(),
        &wanted.sources,
        &keys_of(matches),
    )?;
    let will_push = wanted.then == Then::Push;
    if will_push && !matches.get_flag("public") {
        refuse_public(&snapshots)?;
    }
    let is_forced = matches.get_flag("force");
    let origin = match &wanted.continued {
        Some((_, origin)) => origin.clone(),
        None => find(&snapshots, &wanted.name, will_push && !is_forced)?,
    };
    let push = Push {
        name: wanted.name.clone(),
        message: matches.get_one::<String>("message").map(String::as_str),
        keep: matches.get_one("keep").copied().unwrap_or(KEEP),
        is_forced,
    };
    let then = wanted.then;
    let run = wanted.prepare(namespace, &snapshots, origin)?;
    let words: Vec<&OsString> = matches.get_many("command").into_iter().flatten().collect();
    run.run(&words, then, &signals, &snapshots, &push)
}

/// What the command line asks for.
struct Wanted {
    name: RefName,
    /// URL of the cache, if the ref has one.
    url: Option<String>,
    then: Then,
    sources: Sources,
    /// Directory for changes and mount points.
    state: PathBuf,
    /// Mount point of the tree.
    target: PathBuf,
    /// Changes of an earlier command.
    continued: Option<(Layers, Origin)>,
}

impl Wanted {
    fn of(matches: &ArgMatches) -> anyhow::Result<Self> {
        let path = |id: &str| {
            let path = matches.get_one::<PathBuf>(id);
            path.map(std::path::absolute).transpose()
        };
        // Make the paths absolute, because mounting changes the current directory.
        let mut sources = sources(matches);
        let files = [&mut sources.token_file, &mut sources.netrc_file];
        for file in files.into_iter().flatten() {
            *file = std::path::absolute(&*file)?;
        }
        let state = state_dir()?;
        let mut continued = None;
        if let Some(dir) = path("continue")? {
            let (layers, text) = Layers::open(&dir)?;
            // A directory that came with a clone or an archive could name the server of an
            // attacker, who would get the token.
            let own = [OVERLAYS, RUNS].map(|name| state.join(name));
            let parent = layers.dir().parent();
            ensure!(
                own.iter().any(|own| parent == Some(own)),
                "{dir:?} is not in {state:?}, where commands keep changes: name a directory in it, \
                 or set {VARIABLE} to the value that it had for that command"
            );
            let origin = Origin::parse(&text);
            continued = Some((
                layers,
                origin.with_context(|| format!("{dir:?} is damaged"))?,
            ));
        }
        let text = match &continued {
            Some((_, origin)) => &origin.text,
            None => matches.get_one("ref").context("REF is missing")?,
        };
        let name = RefName::parse_new(text)?;
        let url = text.split_once('#').map(|(url, _)| url.to_owned());
        let target = match path("at")? {
            Some(target) => target.canonicalize().with_context(|| on(&target))?,
            None => state.join("trees").join(path_names(&name.name).0),
        };
        create_private(&target).with_context(|| on(&target))?;
        sources.is_recorded = continued.is_some();
        Ok(Self {
            name,
            url: url.filter(|url| url.contains("://")),
            then: match (matches.get_flag("no-push"), matches.get_flag("discard")) {
                (_, true) => Then::Discard,
                (true, _) => Then::Keep,
                _ => Then::Push,
            },
            sources,
            state,
            target,
            continued,
        })
    }

    /// Mounts the snapshot, and prepares the directories for changes.
    fn prepare(
        self,
        namespace: Namespace,
        snapshots: &Snapshots,
        origin: Origin,
    ) -> anyhow::Result<Run> {
        let mut base = None;
        if let Some(path) = &origin.manifest {
            check_fuse()?;
            base = Some(snapshots.manifest(path)?);
        }
        let joined = origin.base.as_ref().map(|path| snapshots.manifest(path));
        let layers = match self.continued {
            Some((layers, _)) => layers,
            None => {
                let runs = self.state.join(RUNS);
                let prefix = path_names(&self.name.name).0;
                report_kept(&runs, &prefix);
                let root = base.as_ref().map(|base| &base.manifest.entries.list()[0]);
                let mode = root.map_or(0o755, |root| root.mode | DIRECTORY_MODE);
                let mtime = root.map(|root| root.mtime).unwrap_or_default();
                Layers::create(&runs, &prefix, &origin.text(), mode, mtime)?
            }
        };
        let mut run = Run {
            guard: match first::is_first() {
                true => None,
                false => Some(Guard::start()?),
            },
            view: None,
            namespace,
            layers,
            target: self.target,
            base,
            joined: joined.transpose()?,
            origin,
        };
        let Some(base) = &run.base else {
            return Ok(run);
        };
        // If this fails, the manifest is downloaded again.
        keep_manifest(base, snapshots.store_dir()).ok();
        let manifest = base.path.full(snapshots.store_dir());
        let lower = run.layers.lower();
        match View::start(&manifest, self.url.as_deref(), &self.sources, &lower) {
            Ok(view) => run.view = Some(view),
            Err(error) => {
                let is_removed = run.is_untouched();
                run.end(is_removed);
                return Err(error);
            }
        }
        Ok(run)
    }
}

fn on(target: &Path) -> String {
    format!("cannot mount on {target:?}")
}

struct Push<'a> {
    name: RefName,
    message: Option<&'a str>,
    keep: u32,
    /// Whether to displace what other clients have pushed.
    is_forced: bool,
}

/// A tree in which a command can run.
pub(super) struct Run {
    /// `None`: the kernel does the work of the guard.
    guard: Option<Guard>,
    /// `None`: the ref does not exist yet.
    view: Option<View>,
    namespace: Namespace,
    pub(super) layers: Layers,
    /// Mount point of the tree.
    pub(super) target: PathBuf,
    /// The snapshot below the changes. `None`: the ref does not exist yet.
    pub(super) base: Option<Downloaded>,
    /// The snapshot on which the tree is based, if it is not the one below.
    pub(super) joined: Option<Downloaded>,
    pub(super) origin: Origin,
}

impl Run {
    fn run(
        mut self,
        words: &[&OsString],
        then: Then,
        signals: &Signals,
        snapshots: &Snapshots,
        push: &Push<'_>,
    ) -> anyhow::Result<u8> {
        let ended = self.run_command(words, signals);
        let code = match &ended {
            Ok(status) => code_of(*status),
            Err(_) => FAILED,
        };
        let pushed = match ended {
            Ok(_) if code == 0 && then == Then::Push => {
                self.publish(snapshots, push).map(|()| true)
            }
            Ok(_) => Ok(then == Then::Discard),
            Err(error) => Err(error),
        };
        let is_done = matches!(pushed, Ok(true)) || self.is_untouched();
        let reserved = match is_done && then != Then::Discard {
            true => reserved_in(&self.layers.upper()),
            false => Vec::new(),
        };
        if !reserved.is_empty() {
            // Ignore errors: without the new description, the next command merges with an older
            // generation.
            self.layers.set_origin(&self.origin.text()).ok();
        }
        let is_removed = is_done && reserved.is_empty();
        let dir = self.layers.dir().to_owned();
        self.end(is_removed);
        if !reserved.is_empty() {
            notice(&format!(
                "{dir:?} is kept, because snapshots leave out the name .samovar: move {} \
                 elsewhere, then remove the rest with rm -rf {dir:?}",
                named(&reserved)
            ));
        } else if !is_removed {
            let reason = match code {
                0 if pushed.is_ok() => String::new(),
                0 => "nothing was published; ".to_owned(),
                code => format!("exit code {code}; "),
            };
            notice(&format!(
                "{reason}the changes are kept: push them with samovar workspace run --continue \
                 {dir:?} -- true, or discard them with rm -rf {dir:?}"
            ));
        }
        match pushed {
            Ok(_) => Ok(code),
            Err(error) => match error.downcast::<NotStarted>() {
                Ok(NotStarted { error, code }) => {
                    notice(&format!("error: {error}"));
                    Ok(code)
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Runs the command and ends the processes that it leaves behind.
    fn run_command(
        &mut self,
        words: &[&OsString],
        signals: &Signals,
    ) -> anyhow::Result<ExitStatus> {
        self.layers.mount(self.namespace, &self.target)?;
        modes::complete(&self.target, self.layers.dir());
        let (program, arguments) = words.split_first().context("a command is missing")?;
        let mut command = Program::new(program);
        first::without_parent(&mut command)
            .args(arguments)
            .current_dir(&self.target)
            .env("PWD", &self.target);
        without_token(&mut command);
        let child = signals.start(Some(self.layers.dir().to_owned()), || {
            let spawned = command.spawn();
            Ok(spawned.map_err(|error| NotStarted::new(program, &error))?)
        })?;
        let status = first::wait_for(&child).context("cannot wait for the command");
        signals.stop();
        let status = status?;
        let mut others: Vec<_> = self.guard.iter().map(Guard::pid).collect();
        others.extend(self.view.as_ref().map(View::pid));
        let ended_count = end_members(&others)?;
        if ended_count > 0 {
            notice(&format!(
                "terminated {} that the command had left in the background",
                crate::size::counted(ended_count as u64, "process")
            ));
        }
        Ok(status)
    }

    /// Returns the snapshot on which the tree is based.
    pub(super) fn based_on(&self) -> Option<&Downloaded> {
        self.joined.as_ref().or(self.base.as_ref())
    }

    /// Merges what other clients have pushed since, and pushes the tree.
    fn publish(&mut self, snapshots: &Snapshots, push: &Push<'_>) -> anyhow::Result<()> {
        for _ in 0..ATTEMPT_COUNT_MAX {
            if !push.is_forced {
                self.join(snapshots, &push.name)?;
            }
            if self.push(snapshots, push)? {
                return Ok(());
            }
        }
        Err(Failed::Unavailable.because(anyhow!(
            "other clients keep setting {}: run the command again",
            push.name.name
        )))
    }

    /// Pushes the tree. Returns false if another client has set the ref meanwhile.
    fn push(&mut self, snapshots: &Snapshots, push: &Push<'_>) -> anyhow::Result<bool> {
        let started_at = Instant::now();
        let name = &push.name.name;
        let none = empty();
        let scanned = self.scan(Options::WRITING);
        self.check_view()?;
        let scanned = scanned.map_err(read_error)?;
        report_skipped(&scanned);
        let needs_nar_hash = self.based_on().is_none();
        let rescan = |options| self.scan(options);
        let tree = LocalTree::new(scanned, needs_nar_hash, false, &rescan);
        let tree = tree.map_err(read_error)?;
        let base = self.based_on();
        let base_entries = base.map_or(&none, |base| &base.manifest.entries);
        let changes = changes(base_entries, &tree.scanned().entries);
        if changes.is_empty() && base.is_some() {
            notice(&format!("the command has changed nothing in {name}"));
            return Ok(true);
        }
        let summary = summary(&changes);
        let uploaded = upload(snapshots, name, &tree, base, false)?;
        self.check_view()?;
        let update = Update {
            manifest: &uploaded.snapshot.path,
            expected: match (push.is_forced, self.origin.generation) {
                (true, _) => Expected::Any,
                (false, Some(version)) => Expected::Generation(version),
                (false, None) => Expected::Absent,
            },
            keep: Some(push.keep),
            host: Some(&host()),
            message: push.message,
        };
        let version = match snapshots.refs().put(name, &update)? {
            Updated::Done(version) => version,
            Updated::Conflict(_) => return Ok(false),
        };
        let generation = version.number;
        self.origin.generation = Some(version);
        self.origin.base = Some(uploaded.snapshot.path.clone());
        let seconds = started_at.elapsed().as_secs_f64();
        notice(&format!(
            "{name}@{generation} is {}: {summary}; {} sent in {seconds:.1} s",
            uploaded.snapshot.manifest.tree.full(snapshots.store_dir()),
            human(uploaded.sent_len)
        ));
        Ok(true)
    }

    /// Checks that the process that serves the snapshot is running. Without it, files may seem to
    /// be missing.
    pub(super) fn check_view(&mut self) -> anyhow::Result<()> {
        match self.view.as_mut().is_none_or(View::is_alive) {
            true => Ok(()),
            false => Err(Failed::Unavailable.because(anyhow!(
                "the process that serves the files of the ref has ended"
            ))),
        }
    }

    /// Returns whether the upper directory is empty.
    fn is_untouched(&self) -> bool {
        let entries = fs::read_dir(self.layers.upper());
        entries.is_ok_and(|mut entries| entries.next().is_none())
    }

    /// Unmounts, and removes the changes if wanted.
    fn end(self, is_removed: bool) {
        // Leave the current directory, which is the directory of the layers.
        std::env::set_current_dir("/").ok();
        unmount_lazily(&self.target);
        unmount_lazily(&self.layers.lower());
        drop(self.view);
        drop(self.guard);
        self.layers.settle();
        if is_removed && let Err(error) = self.layers.remove() {
            notice(&format!("{error:#}"));
        }
    }
}

/// The command could not be started.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
struct NotStarted {
    error: String,
    code: u8,
}

impl NotStarted {
    fn new(program: &OsString, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::NotFound => NOT_FOUND,
            _ => NOT_EXECUTABLE,
        };
        Self {
            error: format!("cannot run {program:?}: {error}"),
            code,
        }
    }
}

/// Returns the exit code of a command, as shells do.
fn code_of(status: ExitStatus) -> u8 {
    let signal = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(signal).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_of_commands() {
        for (raw, expected) in [(0, 0), (7 << 8, 7), (9, 128 + 9)] {
            assert_eq!(code_of(ExitStatus::from_raw(raw)), expected);
        }
    }
}
