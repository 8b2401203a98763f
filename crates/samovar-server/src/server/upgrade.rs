//! USR2: upgrades the server without downtime.
//!
//! The old process starts the executable at the path of its own command line, with the same
//! arguments and environment. The standard input of the new process is a socket, through which it
//! receives the listening sockets and reports that it serves; until then the old process continues
//! to serve. See `docs/decisions/0020-upgrades-in-place.md`.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use samovar_cache::Site;
use samovar_http::{Listener, Server, handover};

use crate::config::Configuration;
use crate::signals::Signal;

/// Maximum time until the new process must serve.
pub const START_TIME: Duration = Duration::from_secs(10);

/// Time that a failed new process gets to log the cause and exit.
const LAST_WORDS_TIME: Duration = Duration::from_secs(1);

/// Environment variable of the new process: the PID of its parent, and one letter per listener. The
/// PID shows whether the variable was inherited from elsewhere, and must be ignored.
const VARIABLE: &str = "NIX_SERVE_PREDECESSOR";

/// Environment variable of the new process: the PID of its parent, if the service manager has
/// passed the sockets to the parent.
const MANAGED: &str = "NIX_SERVE_MANAGED_SOCKETS";

/// Environment variable of the new process: the PID of its parent, if the parent is the main
/// process of a systemd service; the new process then becomes the main process.
const MAIN: &str = "NIX_SERVE_MAIN_PROCESS";

/// Environment variable of the new process: the storage directory of the old one.
const STORAGE: &str = "NIX_SERVE_STORAGE";

/// Variables that are not passed on: they apply to one process only, by its PID or its open files.
const NOT_INHERITED: [&str; 7] = [
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "WATCHDOG_PID",
    MANAGED,
    MAIN,
    STORAGE,
];

/// An event that the main thread waits for.
#[derive(Debug)]
pub(super) enum Event {
    Signal(Signal),
    /// The outcome of an upgrade: whether the new process serves, or an error if that is uncertain.
    Successor(io::Result<bool>),
}

/// The kind of a listener, which cannot be determined from its socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Secure,
    /// A Unix socket whose file the server removes at exit.
    OwnFile,
}

impl Kind {
    const LETTERS: [(Self, char); 3] = [
        (Self::Plain, 'p'),
        (Self::Secure, 's'),
        (Self::OwnFile, 'f'),
    ];

    fn letter(self) -> char {
        let found = Self::LETTERS.iter().find(|(kind, _)| *kind == self);
        found.map_or('?', |(_, letter)| *letter)
    }

    fn of_letter(letter: char) -> Option<Self> {
        let found = Self::LETTERS.iter().find(|(_, one)| *one == letter);
        found.map(|(kind, _)| *kind)
    }
}

/// The running server that passes its sockets to this process.
#[derive(Debug)]
pub struct Predecessor {
    pid: u32,
    kinds: String,
    stream: UnixStream,
    /// Whether the service manager has bound its sockets.
    pub(super) is_managed: bool,
    /// Whether it is the main process of a service.
    pub(super) is_main: bool,
    /// Its storage directory.
    pub(super) storage: Option<PathBuf>,
}

impl Predecessor {
    /// Finds the predecessor of this process, if it has one.
    ///
    /// # Errors
    ///
    /// Standard input is not the socket of the predecessor.
    pub fn of_process() -> anyhow::Result<Option<Self>> {
        let text = env::var(VARIABLE).unwrap_or_default();
        let parent = std::os::unix::process::parent_id();
        let parts = text.split_once(' ');
        let Some((_, kinds)) = parts.filter(|(pid, _)| pid.parse() == Ok(parent)) else {
            return Ok(None);
        };
        let stream = take_stdin().context("cannot connect to the running server")?;
        let is_set = |name| env::var(name).is_ok_and(|pid| pid.parse() == Ok(parent));
        Ok(Some(Self {
            pid: parent,
            kinds: kinds.to_owned(),
            stream,
            is_managed: is_set(MANAGED),
            is_main: is_set(MAIN),
            storage: env::var_os(STORAGE).map(PathBuf::from),
        }))
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Receives the predecessor's sockets, without TLS. `is_secure`: whether this process uses TLS.
    /// The predecessor continues to serve until it is released.
    pub(super) fn take(
        self,
        is_secure: bool,
    ) -> anyhow::Result<(Vec<(Listener, Kind)>, handover::Predecessor)> {
        let (listeners, release) = handover::take(self.stream)
            .context("cannot receive the sockets of the running server")?;
        let kinds: Option<Vec<Kind>> = self.kinds.chars().map(Kind::of_letter).collect();
        let kinds = kinds.filter(|kinds| kinds.len() == listeners.len());
        let kinds = kinds.context(
            "the running server is of an incompatible version: stop it and start this one",
        )?;
        if kinds.contains(&Kind::Secure) && !is_secure {
            bail!("the running server uses TLS, and this one has no certificate")
        }
        Ok((listeners.into_iter().zip(kinds).collect(), release))
    }
}

/// Takes the socket from standard input, and replaces standard input by `/dev/null`.
fn take_stdin() -> io::Result<UnixStream> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(UnixStream::from(socket))
}

/// The new process of an upgrade.
#[derive(Debug)]
pub(super) struct Successor(Child);

impl Successor {
    /// Starts the process. Its outcome is sent as an [`Event::Successor`].
    pub(super) fn start(
        server: &Arc<Server<Site>>,
        kinds: &[Kind],
        (is_managed, is_main): (bool, bool),
        config: &Configuration,
        events: Sender<Event>,
    ) -> anyhow::Result<Self> {
        let own_pid = std::process::id();
        if own_pid == 1 {
            bail!("cannot upgrade PID 1 of a container: the container would end with this process");
        }
        let (ours, theirs) = UnixStream::pair().context("cannot make a socket")?;
        ours.set_read_timeout(Some(START_TIME))?;
        let letters: String = kinds.iter().map(|kind| kind.letter()).collect();
        let mut command = Command::new(program()?);
        for name in NOT_INHERITED {
            command.env_remove(name);
        }
        command
            .args(env::args_os().skip(1))
            .envs(config.successor_environment.clone())
            .env(VARIABLE, format!("{own_pid} {letters}"))
            .stdin(Stdio::from(OwnedFd::from(theirs)));
        if let Some(storage) = &config.storage {
            command.env(STORAGE, storage);
        }
        for (name, is_set) in [(MANAGED, is_managed), (MAIN, is_main)] {
            if is_set {
                command.env(name, own_pid.to_string());
            }
        }
        let storage = server.service().storage();
        storage.inspect(|storage| storage.pause_mirror());
        let child = command.spawn().with_context(|| {
            storage.inspect(|storage| storage.resume_mirror());
            format!("cannot start {:?}", command.get_program())
        })?;
        let mut successor = Self(child);
        let handed = Arc::clone(server);
        let thread = std::thread::Builder::new().name("handover".to_owned());
        let waits = thread.spawn(move || {
            let storage = handed.service().storage();
            storage.inspect(|storage| storage.set_shared(true));
            let outcome = handover::give(&ours, &handed);
            // The storage stays shared after an error, because the successor may have served
            // already.
            if matches!(outcome, Ok(false)) {
                storage.inspect(|storage| storage.set_shared(false));
            }
            // Ignore an error: the receiver is gone if the server has ended.
            events.send(Event::Successor(outcome)).ok();
        });
        if let Err(error) = waits {
            successor.end();
            storage.inspect(|storage| storage.resume_mirror());
            return Err(error).context("cannot start a thread");
        }
        Ok(successor)
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Kills the process; returns how it ended.
    pub(super) fn end(&mut self) -> String {
        // This fails if the process has already exited, which does no harm.
        self.0.kill().ok();
        match self.0.wait().ok().and_then(|status| status.code()) {
            Some(code) => format!("it ended with exit code {code}"),
            None => {
                let seconds = START_TIME.as_secs();
                format!("it was not ready within {seconds} seconds, or was killed")
            }
        }
    }

    /// Waits for the process to exit, and kills it if it does not; returns how it ended.
    pub(super) fn fail(&mut self) -> String {
        let start = Instant::now();
        while start.elapsed() < LAST_WORDS_TIME && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.end()
    }
}

/// Returns the program of this process's command line. If it is a link, it may lead to a newer
/// executable by now.
fn program() -> anyhow::Result<OsString> {
    match env::args_os().next().filter(|name| !name.is_empty()) {
        Some(name) => Ok(name),
        None => Ok(env::current_exe()
            .context("cannot determine the path of the executable")?
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_letter() {
        for kind in [Kind::Plain, Kind::Secure, Kind::OwnFile] {
            assert_eq!(Kind::of_letter(kind.letter()), Some(kind));
        }
        assert_eq!(Kind::of_letter('?'), None);
    }
}
