//! Delivers signals as events, on a separate thread.
//!
//! | signal | event | starman |
//! | --- | --- | --- |
//! | HUP | [`Signal::Reload`] | replaces its workers, which keep the keys read at start |
//! | USR1 | [`Signal::ReopenLogs`] | ends; nginx and Apache do as here |
//! | USR2 | [`Signal::Upgrade`] | ends; nginx does as here |
//! | QUIT | [`Signal::Drain`] | as here |
//! | TERM, INT | [`Signal::Stop`] | as here |
//! | TTIN, TTOU | [`Signal::ChangeWorkers`] | one worker more, or less |
//!
//! Two signals keep their dispositions: Rust's runtime ignores PIPE before `main`, and the system
//! ignores CHLD by default.

use std::io;
use std::thread;

use signal_hook::consts::signal::{
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2,
};
use signal_hook::iterator::{Handle, Signals};

/// The meaning of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Reload caches, keys and certificate, if they are valid, and reopen logs.
    Reload,
    /// Reopen logs, and log the counters since the start.
    ReopenLogs,
    /// Start the executable again, pass it the sockets, and exit as with [`Signal::Drain`].
    Upgrade,
    /// Accept no connections, finish requests in progress, exit.
    Drain,
    /// Like [`Drain`](Self::Drain), but within [`STOP_TIME`](crate::server::STOP_TIME); a second
    /// one exits at once.
    Stop,
    /// Change the number of workers: ignored with a log line, because the number is fixed.
    ChangeWorkers,
}

/// The thread that waits for signals. Dropping it ends the thread; signals are then ignored.
#[derive(Debug)]
pub(crate) struct SignalThread {
    handle: Handle,
}

/// Catches signals from now on and calls `deliver` for each, on a separate thread.
///
/// Several signals of one kind in quick succession may be delivered once. The thread ends when
/// `deliver` returns false.
pub(crate) fn listen(
    mut deliver: impl FnMut(Signal) -> bool + Send + 'static,
) -> io::Result<SignalThread> {
    let mut signals = Signals::new([
        SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT, SIGTERM, SIGINT, SIGTTIN, SIGTTOU,
    ])?;
    let handle = signals.handle();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            signals.forever().filter_map(meaning).all(&mut deliver);
        })?;
    Ok(SignalThread { handle })
}

fn meaning(number: i32) -> Option<Signal> {
    Some(match number {
        SIGHUP => Signal::Reload,
        SIGUSR1 => Signal::ReopenLogs,
        SIGUSR2 => Signal::Upgrade,
        SIGQUIT => Signal::Drain,
        SIGTERM | SIGINT => Signal::Stop,
        SIGTTIN | SIGTTOU => Signal::ChangeWorkers,
        _ => return None,
    })
}

impl Drop for SignalThread {
    fn drop(&mut self) {
        self.handle.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::process::{Signal as Number, getpid, kill_process};

    use super::*;

    /// One test for all signals, because they go to the whole process.
    #[test]
    fn signals_become_events() {
        let (sender, events) = mpsc::channel();
        let thread = listen(move |signal| sender.send(signal).is_ok()).expect("listens");
        let check = |number, expected| {
            kill_process(getpid(), number).expect("sends");
            assert_eq!(events.recv_timeout(Duration::from_secs(20)), Ok(expected));
        };
        check(Number::HUP, Signal::Reload);
        check(Number::USR1, Signal::ReopenLogs);
        check(Number::USR2, Signal::Upgrade);
        check(Number::QUIT, Signal::Drain);
        check(Number::TERM, Signal::Stop);
        check(Number::INT, Signal::Stop);
        check(Number::TTIN, Signal::ChangeWorkers);
        check(Number::TTOU, Signal::ChangeWorkers);
        drop(thread);
        let ended = events.recv_timeout(Duration::from_secs(20));
        assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected));
    }
}
