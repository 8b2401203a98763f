//! [`Signals`]: passes signals on to the command of `samovar workspace run`.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use rustix::fd::OwnedFd;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal,
};
use samovar_client::notice::notice;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// Signal of this process to itself after the end of the command. The kernel delivers the others
/// first, because their numbers are smaller.
const END: Signal = Signal::URG;

/// Thread that passes the signals that end processes on to the command. While no command runs, a
/// signal ends this process.
#[derive(Debug)]
pub struct Signals {
    state: Arc<Mutex<State>>,
    process: Process,
    /// Receives a message for each [`END`].
    ended: Receiver<()>,
}

#[derive(Debug, Default)]
struct State {
    command: Option<OwnedFd>,
    /// The directory with the changes, for a message.
    dir: Option<PathBuf>,
}

impl Signals {
    /// Catches the signals.
    ///
    /// # Errors
    ///
    /// The system refuses it.
    pub fn catch() -> anyhow::Result<Self> {
        let numbers = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, END.as_raw()];
        let caught = signal_hook::iterator::Signals::new(numbers);
        let mut signals = caught.context("cannot catch signals")?;
        let state = Arc::new(Mutex::new(State::default()));
        let process = Process::own()?;
        let (shared, own) = (Arc::clone(&state), process.try_clone()?);
        let (sender, ended) = channel();
        let run = move || {
            for number in signals.forever() {
                if number == END.as_raw() {
                    lock(&shared).command = None;
                    // Errors: nobody waits.
                    sender.send(()).ok();
                    continue;
                }
                let is_of_keyboard = matches!(number, SIGINT | SIGQUIT) && own.is_in_foreground();
                handle(number, is_of_keyboard, &shared);
            }
        };
        let started = std::thread::Builder::new().spawn(run);
        started.context("cannot start a thread")?;
        Ok(Self {
            state,
            process,
            ended,
        })
    }

    /// Returns the parent of this process, by its number outside the PID namespace.
    pub fn parent(&self) -> Option<Pid> {
        Pid::from_raw(self.process.number(PARENT)?)
    }

    /// Starts a process and passes signals on to it, also those that arrive during the start.
    /// `dir`: the directory with the changes of the process.
    ///
    /// # Errors
    ///
    /// The system refuses it; errors of `spawn`.
    pub fn start(
        &self,
        dir: Option<PathBuf>,
        spawn: impl FnOnce() -> anyhow::Result<Child>,
    ) -> anyhow::Result<Child> {
        let mut state = lock(&self.state);
        let command = spawn()?;
        let process = pidfd_open(Pid::from_child(&command), PidfdFlags::empty());
        state.command = Some(process.context("cannot watch the command")?);
        state.dir = dir;
        Ok(command)
    }

    /// The command has ended. Signals that came before are handled before this returns: they were
    /// for the command.
    pub fn stop(&self) {
        // Errors: neither a signal to this process nor the thread can fail.
        if kill_process(getpid(), END).is_ok() {
            self.ended.recv().ok();
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes a signal on. `is_of_keyboard`: the command gets it from the terminal.
fn handle(number: i32, is_of_keyboard: bool, state: &Mutex<State>) {
    let state = lock(state);
    let Some(command) = &state.command else {
        if let Some(dir) = &state.dir {
            notice(&format!(
                "interrupted: if nothing was pushed, the changes are in {dir:?}"
            ));
        }
        // All other processes are ended by the kernel, or by the guard.
        std::process::exit(128 + number);
    };
    let signal = Signal::from_named_raw(number).filter(|_| !is_of_keyboard);
    if let Some(signal) = signal {
        // Errors: the command has just ended.
        pidfd_send_signal(command, signal).ok();
    }
}

/// Position of a number in `/proc/self/stat`, after the name of the program and the state.
const PARENT: usize = 0;
const GROUP: usize = 1;
const FOREGROUND_GROUP: usize = 4;

/// The state of this process, with numbers from the PID namespace of its parent: in the namespace
/// of this process, its process group may have no number.
#[derive(Debug)]
struct Process(File);

impl Process {
    /// Must be called before another `/proc` is mounted.
    fn own() -> anyhow::Result<Self> {
        let opened = File::open("/proc/self/stat");
        opened.map(Self).context("/proc is not mounted")
    }

    fn try_clone(&self) -> anyhow::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    fn number(&self, position: usize) -> Option<i32> {
        let mut buffer = [0; 512];
        let len = self.0.read_at(&mut buffer, 0).ok()?;
        // The name of the program, in parentheses, may contain anything.
        let name_end = buffer.get(..len)?.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(buffer.get(name_end + 1..len)?).ok()?;
        rest.split_whitespace().nth(1 + position)?.parse().ok()
    }

    /// Returns whether the keyboard of a terminal sends its signals to this process, and so also to
    /// the command.
    fn is_in_foreground(&self) -> bool {
        let group = self.number(GROUP);
        group.is_some() && group == self.number(FOREGROUND_GROUP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_and_the_group_are_read() {
        let process = Process::own().unwrap();
        let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
        assert_eq!(process.number(PARENT), parent);
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        assert_eq!(process.number(GROUP), Some(group));
    }
}
