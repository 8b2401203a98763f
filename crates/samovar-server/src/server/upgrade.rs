//! USR2: the executable is started anew and takes over the sockets, and no connection is lost.
//!
//! The old process starts the command it was started with, whatever is at that path by now, with
//! the same arguments and environment. Standard input of the new one is a socket, over which it
//! gets the listening sockets, and tells that it serves; until then the old one serves as if
//! nothing had been. See `docs/decisions/0020-upgrades-in-place.md`.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use samovar_cache::Site;
use samovar_http::tls::TlsConfig;
use samovar_http::{Listener, Server, handover};

use super::events::Event;

/// How long a new process may take until it serves.
pub const START_TIME: Duration = Duration::from_secs(10);

/// How long one that has given up may take to end.
const LAST_WORDS_TIME: Duration = Duration::from_secs(1);

/// Tells a process that its parent hands over to it: the parent's number, so that a variable left
/// over from elsewhere does not count, and a letter for each listener.
const VARIABLE: &str = "NIX_SERVE_PREDECESSOR";

/// What else is meant for one process only, by its number or by its open files.
const NOT_INHERITED: [&str; 4] = ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_PID"];

/// What a new process has to know of a listener besides its socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    Secure,
    /// A unix socket whose file is removed when the server ends.
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

/// The process that serves and is about to hand over to this one.
#[derive(Debug)]
pub struct Predecessor {
    pid: u32,
    kinds: String,
    stream: UnixStream,
}

impl Predecessor {
    /// Whether there is one.
    ///
    /// # Errors
    ///
    /// If standard input is not what it has to be then.
    pub fn of_process() -> anyhow::Result<Option<Self>> {
        let Ok(text) = env::var(VARIABLE) else {
            return Ok(None);
        };
        let parent = std::os::unix::process::parent_id();
        let Some((pid, kinds)) = text.split_once(' ') else {
            return Ok(None);
        };
        if pid.parse() != Ok(parent) {
            return Ok(None);
        }
        let stream = take_stdin().context("cannot take over from the running server")?;
        Ok(Some(Self {
            pid: parent,
            kinds: kinds.to_owned(),
            stream,
        }))
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Its sockets, with `tls` on those that had it.
    pub(super) fn take(self, tls: Option<&TlsConfig>) -> anyhow::Result<Taken> {
        let (listeners, release) = handover::take_from(self.stream)
            .context("cannot take over the running server's sockets")?;
        let kinds: Option<Vec<Kind>> = self.kinds.chars().map(Kind::of_letter).collect();
        let kinds = kinds.filter(|kinds| kinds.len() == listeners.len());
        let Some(kinds) = kinds else {
            bail!("the running server hands over in another way: stop it and start this one");
        };
        let mut secured = Vec::new();
        for (listener, kind) in listeners.into_iter().zip(kinds) {
            let listener = match (kind, tls) {
                (Kind::Secure, Some(tls)) => listener.tls(tls.clone()),
                (Kind::Secure, None) => {
                    bail!("the running server speaks TLS, and this one has no certificate")
                }
                _ => listener,
            };
            secured.push((listener, kind));
        }
        Ok(Taken {
            listeners: secured,
            release,
        })
    }
}

/// What a predecessor has handed over. It serves on until it is released.
pub(super) struct Taken {
    pub(super) listeners: Vec<(Listener, Kind)>,
    pub(super) release: handover::Predecessor,
}

/// Nobody reads the socket by accident afterwards.
fn take_stdin() -> io::Result<UnixStream> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(UnixStream::from(socket))
}

/// The process that is to take over from this one.
#[derive(Debug)]
pub(super) struct Successor(Child);

impl Successor {
    /// Starts it; how that went comes as an [`Event::Successor`].
    pub(super) fn start(
        server: &Arc<Server<Site>>,
        kinds: &[Kind],
        events: Sender<Event>,
    ) -> anyhow::Result<Self> {
        let own_pid = std::process::id();
        if own_pid == 1 {
            bail!("this is the first process of a container, which would end with it");
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
            .env(VARIABLE, format!("{own_pid} {letters}"))
            .stdin(Stdio::from(OwnedFd::from(theirs)));
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let mut successor = Self(child);
        let server = Arc::clone(server);
        let thread = std::thread::Builder::new().name("handover".to_owned());
        let waits = thread.spawn(move || {
            let outcome = handover::give(&ours, &server);
            // Nobody hears it when the server ends meanwhile.
            events.send(Event::Successor(outcome)).ok();
        });
        if let Err(error) = waits {
            successor.end();
            return Err(error).context("cannot start a thread");
        }
        Ok(successor)
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Ends a process that is not needed any more; says how it ended.
    pub(super) fn end(&mut self) -> Ended {
        // One that has ended by itself is not hurt.
        self.0.kill().ok();
        Ended(self.0.wait().ok())
    }

    /// As [`end`](Self::end), but one that has given up may still say why, and end by itself.
    pub(super) fn fail(&mut self) -> Ended {
        let start = Instant::now();
        while start.elapsed() < LAST_WORDS_TIME && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.end()
    }
}

/// How a process has ended.
pub(super) struct Ended(Option<std::process::ExitStatus>);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.and_then(|status| status.code()) {
            Some(code) => write!(f, "it ended with exit code {code}"),
            None => write!(
                f,
                "it was not ready within {} seconds, or was killed",
                START_TIME.as_secs()
            ),
        }
    }
}

/// As this process was started: a link that leads to a newer executable by now is followed anew.
fn program() -> anyhow::Result<OsString> {
    match env::args_os().next().filter(|name| !name.is_empty()) {
        Some(name) => Ok(name),
        None => Ok(env::current_exe()
            .context("cannot tell the executable's path")?
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
