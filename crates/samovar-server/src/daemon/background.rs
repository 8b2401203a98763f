//! `--daemonize`: starts the server in the background, by a launcher that waits until it is ready.
//!
//! A process with threads cannot fork safely, and forking requires unsafe code in any case. The
//! launcher therefore starts its own executable again with the same arguments. The child's standard
//! output is a pipe to the launcher, which waits for the ready line and then exits successfully; if
//! the pipe is closed without that line, the launcher exits with the child's exit code. The child
//! inherits standard error, so errors during the start appear in the operator's terminal.
//!
//! # Source
//!
//! daemon(7), «System V daemons», steps 5, 9, 14 and 15. Unlike here, in `Net::Server` the
//! foreground process exits before the server binds, so `starman -D` succeeds even on a port in
//! use.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// The role of this process when it starts.
#[derive(Debug)]
pub enum Role {
    /// `--daemonize` was not given.
    Foreground,
    /// The process must start the background process: call [`launch`].
    Launcher,
    /// The process is the background process.
    Background(Background),
}

/// Environment variable of the child, with the PID of the launcher. The variable is ignored unless
/// that is the parent process: it was then inherited from elsewhere.
const VARIABLE: &str = "NIX_SERVE_LAUNCHER";

/// The line on standard output by which the child reports to the launcher that it is ready.
const READY: &str = "nix-serve: ready";

impl Role {
    /// Returns the role of this process: `Foreground` without `--daemonize`; `Background` if a
    /// launcher started it; otherwise `Launcher`. A background process also leaves the terminal's
    /// session (setsid(2)).
    ///
    /// # Errors
    ///
    /// The service manager has passed sockets, or setsid(2) fails.
    pub fn of_process(daemonize: bool) -> anyhow::Result<Self> {
        if !daemonize {
            return Ok(Self::Foreground);
        }
        let launcher = env::var(VARIABLE)
            .ok()
            .and_then(|number| number.parse::<u32>().ok());
        if launcher == Some(std::os::unix::process::parent_id()) {
            return Self::background();
        }
        if env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string()) {
            // `LISTEN_PID` names this process only, not a child.
            bail!(
                "--daemonize cannot be combined with sockets from the service manager, which runs \
                 the server in the background itself"
            );
        }
        Ok(Self::Launcher)
    }

    /// Determines the role of the new process of a zero-downtime upgrade.
    ///
    /// # Errors
    ///
    /// setsid(2) fails.
    pub fn of_successor(daemonize: bool) -> anyhow::Result<Self> {
        match daemonize {
            true => Self::background(),
            false => Ok(Self::Foreground),
        }
    }

    fn background() -> anyhow::Result<Self> {
        rustix::process::setsid()
            .map_err(io::Error::from)
            .context("cannot leave the session of the terminal")?;
        Ok(Self::Background(Background(())))
    }
}

/// Starts this executable in the background and waits until it is ready or has failed. `arguments`
/// do not include the program's name.
///
/// Returns the exit code: 0 if the child is ready, otherwise the child's exit code, or 1.
///
/// # Errors
///
/// The executable cannot be started.
pub fn launch(arguments: impl IntoIterator<Item = OsString>) -> anyhow::Result<u8> {
    let cannot_start = "cannot start in the background";
    let executable = env::current_exe().context(cannot_start)?;
    let name = env::args_os()
        .next()
        .unwrap_or_else(|| executable.clone().into());
    let mut child = Command::new(executable)
        // Pass on argv[0]: an upgrade starts the executable at that path.
        .arg0(name)
        .args(arguments)
        .env(VARIABLE, std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context(cannot_start)?;
    if let Some(output) = child.stdout.take()
        && BufReader::new(output)
            .lines()
            .any(|line| line.is_ok_and(|line| line == READY))
    {
        return Ok(0);
    }
    let status = child.wait().context(cannot_start)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.filter(|code| *code != 0).unwrap_or(1))
}

/// A background process that has not reported to its launcher yet.
#[derive(Debug)]
pub struct Background(());

impl Background {
    /// Detaches from the terminal and reports to the launcher that the server is ready.
    ///
    /// Redirects standard error to `error_log`, so that panic messages are not lost, or without one
    /// to `/dev/null`, as the other streams.
    ///
    /// # Errors
    ///
    /// A standard stream cannot be replaced.
    pub fn ready(self, error_log: Option<&Path>) -> anyhow::Result<()> {
        self.replace_streams(error_log)
            .context("cannot replace the standard streams")
    }

    fn replace_streams(self, error_log: Option<&Path>) -> io::Result<()> {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let errors = match error_log {
            Some(path) => File::options().append(true).create(true).open(path)?,
            None => null.try_clone()?,
        };
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stderr(&errors)?;
        // Ignore a write error: the launcher may have been killed. The leading newline ends a line
        // that may be incomplete.
        write!(io::stdout(), "\n{READY}\n")
            .and_then(|()| io::stdout().flush())
            .ok();
        rustix::stdio::dup2_stdout(&null)?;
        Ok(())
    }
}
