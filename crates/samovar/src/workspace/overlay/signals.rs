//! [`Forwarding`]: passes signals on to the command of `samovar workspace run`.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use rustix::process::{Pid, PidfdFlags, Signal, getpgrp, pidfd_open, pidfd_send_signal};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::notice::notice;

/// Catches the signals that end processes. They are delivered by [`Forwarding`].
///
/// # Errors
///
/// The system refuses it.
pub(super) fn catch() -> io::Result<Signals> {
    Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP])
}

/// Thread that passes signals on to the command. After the end of the command, a signal ends this
/// process.
#[derive(Debug)]
pub(super) struct Forwarding {
    is_stopped: Arc<AtomicBool>,
}

impl Forwarding {
    /// `dir`: the directory with the changes, for a message.
    ///
    /// # Errors
    ///
    /// The system refuses the thread.
    pub(super) fn start(command: &Child, mut signals: Signals, dir: &Path) -> anyhow::Result<Self> {
        let process = pidfd_open(Pid::from_child(command), PidfdFlags::empty());
        let process = process.context("cannot watch the command")?;
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (is_ended, dir) = (Arc::clone(&is_stopped), dir.to_owned());
        let run = move || {
            for number in signals.forever() {
                if is_ended.load(Ordering::Acquire) {
                    notice(&format!(
                        "interrupted: if nothing was pushed, the changes are in {dir:?}"
                    ));
                    // The guard ends all other processes.
                    std::process::exit(128 + number);
                }
                let is_of_keyboard = matches!(number, SIGINT | SIGQUIT) && is_in_foreground();
                let signal = Signal::from_named_raw(number).filter(|_| !is_of_keyboard);
                if let Some(signal) = signal {
                    // Errors: the command has just ended.
                    pidfd_send_signal(&process, signal).ok();
                }
            }
        };
        let started = std::thread::Builder::new().spawn(run);
        started.context("cannot start a thread")?;
        Ok(Self { is_stopped })
    }

    /// The command has ended.
    pub(super) fn stop(self) {
        self.is_stopped.store(true, Ordering::Release);
    }
}

/// Returns whether the keyboard of a terminal sends its signals to this process, and so also to the
/// command.
fn is_in_foreground() -> bool {
    let terminal = fs::File::open("/dev/tty").ok();
    let group = terminal.and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    group == Some(getpgrp())
}
