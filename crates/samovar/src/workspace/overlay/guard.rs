//! Processes beside an overlay. The guard, which `samovar workspace run` needs without a PID
//! namespace, kills the other processes if `samovar workspace run` is killed. The view serves the
//! snapshot.

use std::io::{BufRead as _, BufReader, PipeReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};
use samovar_mount::process::namespace::{Permission, kill_members, mount_namespace};

use crate::arguments::required;
use crate::credential::{pass_token, without_token};
use crate::credentials::Sources;
use crate::outcome::Failed;
use crate::remote::{Remote, URL_VARIABLE};

/// Name of the hidden subcommand that runs the guard.
const COMMAND: &str = "run-guard";

/// Time that the view has to end after TERM.
const PATIENCE: Duration = Duration::from_secs(5);

/// Defines the hidden subcommand that runs the guard.
pub(crate) fn command() -> clap::Command {
    clap::Command::new(COMMAND)
        .hide(true)
        .arg(required("namespace", "NAMESPACE"))
}

/// Process that kills all others in the mount namespace when this process ends without a farewell.
/// In a PID namespace, the kernel does this.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
    /// Closed by the kernel if this process is killed.
    lifeline: ChildStdin,
}

impl Guard {
    /// # Errors
    ///
    /// The process cannot be started.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut command = own_program();
        command.args(["workspace", COMMAND]).arg(mount_namespace()?);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().context("cannot start a process")?;
        let lifeline = child.stdin.take().context("a process has no input")?;
        Ok(Self { child, lifeline })
    }

    pub(crate) fn pid(&self) -> Pid {
        pid_of(&self.child)
    }
}

impl Drop for Guard {
    /// Ends the process without harm to others.
    fn drop(&mut self) {
        // Errors: the guard was killed.
        self.lifeline.write_all(b"x").ok();
        self.child.wait().ok();
    }
}

/// Runs the guard: waits for the end of the process that has started it, and kills all others in
/// the mount namespace, unless that process has sent a byte before. `namespace`: the mount
/// namespace in which the guard must be.
///
/// # Errors
///
/// The guard is in another namespace.
pub(crate) fn run(namespace: &str) -> anyhow::Result<()> {
    ensure!(
        mount_namespace()? == namespace,
        "this command is for internal use"
    );
    let farewell = std::io::stdin().read(&mut [0]);
    if !farewell.is_ok_and(|len| len > 0) {
        kill_members()?;
    }
    Ok(())
}

/// Process that serves a snapshot on a mount point.
#[derive(Debug)]
pub(crate) struct View {
    child: Child,
    /// Kept open, so that the process can write.
    _stdout: BufReader<ChildStdout>,
}

impl View {
    /// Mounts the snapshot with this manifest. `url`: the cache, if it is not that of
    /// `SAMOVAR_CACHE`.
    ///
    /// # Errors
    ///
    /// The snapshot cannot be mounted. The process has printed the reason.
    pub(crate) fn start(
        manifest: &str,
        url: Option<&str>,
        sources: &Sources,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let (mut command, _pipe) = mount_command(manifest, url, sources, directory)?;
        command.arg("--writable-directories").stdout(Stdio::piped());
        let mut child = {
            let _permission = Permission::mount()?;
            command.spawn().context("cannot start a process")?
        };
        let stdout = child.stdout.take().context("a process has no output")?;
        let mut stdout = BufReader::new(stdout);
        // The line comes once the snapshot is mounted.
        let mut line = String::new();
        if stdout.read_line(&mut line).unwrap_or(0) == 0 {
            child.wait().ok();
            anyhow::bail!("the snapshot cannot be mounted");
        }
        Ok(Self {
            child,
            _stdout: stdout,
        })
    }

    pub(crate) fn pid(&self) -> Pid {
        pid_of(&self.child)
    }

    /// Returns whether the process still serves the snapshot.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

/// Returns a command that mounts the snapshot with this manifest. `url`: the cache, if it differs
/// from `SAMOVAR_CACHE`. Keep the pipe, which has the token, until the command was started.
///
/// # Errors
///
/// The current directory does not exist.
fn mount_command(
    manifest: &str,
    url: Option<&str>,
    sources: &Sources,
    directory: &Path,
) -> anyhow::Result<(Command, Option<PipeReader>)> {
    let mut command = own_program();
    let remote = url.map(Remote::of_cache).transpose()?;
    let pipe = match remote.is_none_or(|remote| sources.may_send_variable(&remote)) {
        true => pass_token(&mut command)?,
        false => {
            without_token(&mut command);
            None
        }
    };
    command.arg("mount");
    for (option, file) in [
        ("--token-file", &sources.token_file),
        ("--netrc-file", &sources.netrc_file),
    ] {
        if let Some(file) = file {
            command.arg(option).arg(std::path::absolute(file)?);
        }
    }
    command.arg(manifest).arg(directory).stdin(Stdio::null());
    // The URL may contain a login, which other users could read in the arguments.
    if let Some(url) = url {
        command.env(URL_VARIABLE, url);
    }
    Ok((command, pipe))
}

/// Mounts the snapshot with this manifest. A process in the background serves it, until it is
/// unmounted. `is_offline`: only what is on this machine is read.
///
/// # Errors
///
/// The snapshot cannot be mounted. The process has printed the reason.
pub(crate) fn start_view(
    manifest: &str,
    url: &str,
    sources: &Sources,
    directory: &Path,
    is_offline: bool,
) -> anyhow::Result<()> {
    let (mut command, _pipe) = mount_command(manifest, Some(url), sources, directory)?;
    command.arg("--background").stdout(Stdio::null());
    if is_offline {
        command.arg("--offline");
    }
    // The current directory of the user may be on a mount, which the process must not keep busy.
    command.current_dir("/");
    let _permission = Permission::mount()?;
    let status = command.status().context("cannot start a process")?;
    ensure!(
        status.success(),
        Failed::Unavailable.because(anyhow!("the snapshot cannot be mounted"))
    );
    Ok(())
}

impl Drop for View {
    /// Ends the process.
    fn drop(&mut self) {
        kill_process(self.pid(), Signal::TERM).ok();
        let started_at = Instant::now();
        while self.is_alive() {
            if started_at.elapsed() >= PATIENCE {
                self.child.kill().ok();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Returns a command that runs this program in a process group of its own, so that Ctrl-C does not
/// reach it.
fn own_program() -> Command {
    // The file may have been replaced since this process was started, by an upgrade.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("samovar").process_group(0);
    without_token(&mut command);
    command
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}
