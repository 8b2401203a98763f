//! `--daemonize`: the server in the background, and somebody in the foreground who knows whether it
//! started.
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

/// Which part this process has.
#[derive(Debug)]
pub enum Role {
    /// `--daemonize` is not given.
    Foreground,
    /// It is to be started in the background: call [`launch`].
    Launcher,
    /// It was started in the background.
    Background(Background),
}

/// Why there is no server in the background.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// `LISTEN_FDS` is meant for one process only, by its number, which a child does not have.
    #[error(
        "--daemonize does not go with sockets from the service manager, which looks after the \
         background itself"
    )]
    SocketActivation,
    /// The executable could not be started again.
    #[error("cannot start in the background")]
    Start(#[source] io::Error),
    /// The session could not be left.
    #[error("cannot leave the session of the terminal")]
    Session(#[source] io::Error),
    /// A standard stream could not be replaced.
    #[error("cannot replace the standard streams")]
    Streams(#[source] io::Error),
}

/// Tells a child that it is one: the launcher's process number, so that a variable left over from
/// elsewhere does not count.
const VARIABLE: &str = "NIX_SERVE_LAUNCHER";

/// What the child says when it answers requests.
const READY: &str = "nix-serve: ready";

impl Role {
    /// Finds the part of this process; in the background, leaves the terminal's session.
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

    /// The part of a process that takes over from a running one.
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
/// Returns the code to end with: 0 if it is ready, otherwise the child's own, or 1.
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
        // An upgrade starts what is at this path by then.
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

/// The process in the background, until it is ready.
#[derive(Debug)]
pub struct Background {
    _private: (),
}

impl Background {
    /// Lets go of the terminal and tells the launcher that requests are answered.
    ///
    /// Standard error goes to `error_log` from here on, so that a panic's message is not lost;
    /// without one it goes to `/dev/null`, as do the other streams.
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
        // The launcher may be gone, killed by an impatient script: no reason to end as well.
        // The line's end in front: somebody may have left a line open.
        write!(io::stdout(), "\n{READY}\n")
            .and_then(|()| io::stdout().flush())
            .ok();
        rustix::stdio::dup2_stdout(&null)?;
        Ok(())
    }
}
