//! `--daemonize`: a server in the background, started by a launcher that waits until it is ready.
//!
//! A process cannot fork safely once it has threads, and not at all without unsafe code; so the
//! launcher starts its own executable again with the same arguments. What is written to the child's
//! standard output goes through a pipe to the launcher, which waits for the line `ready` and ends
//! with success; if the pipe closes without it, the launcher ends with the child's exit code.
//! Errors until then appear on the standard error that both share, so the operator sees them where
//! the command was given.
//!
//! # Source
//!
//! daemon(7), «System V daemons», steps 5, 9, 14 and 15. `Net::Server` ends its foreground process
//! before it binds, so that `starman -D` succeeds on a port that is taken.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// The role of this process.
#[derive(Debug)]
pub enum Role {
    /// `--daemonize` is not given.
    Foreground,
    /// Starts the background process: call [`launch`].
    Launcher,
    /// Runs in the background.
    Background(Background),
}

/// An error while starting in the background.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// `LISTEN_FDS` is for one PID only, not for a child.
    #[error(
        "--daemonize cannot be combined with sockets from the service manager, which runs the \
         server in the background itself"
    )]
    SocketActivation,
    /// The executable could not be started.
    #[error("cannot start in the background")]
    Start(#[source] io::Error),
    /// setsid(2) failed.
    #[error("cannot leave the session of the terminal")]
    Session(#[source] io::Error),
    /// A standard stream could not be replaced.
    #[error("cannot replace the standard streams")]
    Streams(#[source] io::Error),
}

/// Environment variable of the child: the PID of the launcher, so that an inherited variable is
/// ignored.
const VARIABLE: &str = "NIX_SERVE_LAUNCHER";

/// The line with which the child reports that it is ready.
const READY: &str = "nix-serve: ready";

impl Role {
    /// The role of this process; in the background, leaves the session of the terminal.
    ///
    /// # Errors
    ///
    /// [`DaemonError::SocketActivation`], [`DaemonError::Session`].
    pub fn of_process(daemonize: bool) -> Result<Self, DaemonError> {
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
            return Err(DaemonError::SocketActivation);
        }
        Ok(Self::Launcher)
    }

    /// The role of the new process of an upgrade.
    ///
    /// # Errors
    ///
    /// [`DaemonError::Session`].
    pub fn of_successor(daemonize: bool) -> Result<Self, DaemonError> {
        match daemonize {
            true => Self::background(),
            false => Ok(Self::Foreground),
        }
    }

    fn background() -> Result<Self, DaemonError> {
        rustix::process::setsid().map_err(|errno| DaemonError::Session(errno.into()))?;
        Ok(Self::Background(Background { _private: () }))
    }
}

/// Starts this executable in the background with `arguments`, the program's name not among them,
/// and waits until it is ready or has failed.
///
/// Returns the exit code: 0 if the child is ready, otherwise that of the child, or 1.
///
/// # Errors
///
/// [`DaemonError::Start`]
pub fn launch(arguments: impl IntoIterator<Item = OsString>) -> Result<u8, DaemonError> {
    let executable = env::current_exe().map_err(DaemonError::Start)?;
    let name = env::args_os()
        .next()
        .unwrap_or_else(|| executable.clone().into());
    let mut child = Command::new(executable)
        // An upgrade starts the executable at this path.
        .arg0(name)
        .args(arguments)
        .env(VARIABLE, std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(DaemonError::Start)?;
    if let Some(output) = child.stdout.take()
        && BufReader::new(output)
            .lines()
            .any(|line| line.is_ok_and(|line| line == READY))
    {
        return Ok(0);
    }
    let status = child.wait().map_err(DaemonError::Start)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.filter(|code| *code != 0).unwrap_or(1))
}

/// A process in the background that is not ready yet.
#[derive(Debug)]
pub struct Background {
    _private: (),
}

impl Background {
    /// Closes the terminal and tells the launcher that the server is ready.
    ///
    /// Standard error becomes `error_log`, so that the message of a panic is not lost, or
    /// `/dev/null` like the other streams.
    ///
    /// # Errors
    ///
    /// [`DaemonError::Streams`]
    pub fn ready(self, error_log: Option<&Path>) -> Result<(), DaemonError> {
        self.replace_streams(error_log)
            .map_err(DaemonError::Streams)
    }

    fn replace_streams(self, error_log: Option<&Path>) -> io::Result<()> {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        let errors = match error_log {
            Some(path) => File::options().append(true).create(true).open(path)?,
            None => null.try_clone()?,
        };
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stderr(&errors)?;
        // The launcher may have been killed: no reason to exit.
        // The newline ends a line that may be incomplete.
        write!(io::stdout(), "\n{READY}\n")
            .and_then(|()| io::stdout().flush())
            .ok();
        rustix::stdio::dup2_stdout(&null)?;
        Ok(())
    }
}
