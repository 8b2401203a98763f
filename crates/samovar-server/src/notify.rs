//! Sends messages to the service manager (`NOTIFY_SOCKET`, `WATCHDOG_USEC`).
//!
//! Without these variables the functions do nothing. Failures to send are ignored: the service
//! manager notices that the message is missing.
//!
//! # Source
//!
//! `sd_notify`(3), `sd_watchdog_enabled`(3).

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;

/// Sends `READY=1`: the server answers requests.
pub(crate) fn ready() {
    send(&[NotifyState::Ready]);
}

/// Sends `RELOADING=1`; [`ready`] must follow.
pub(crate) fn reloading() {
    // With `Type=notify-reload`, systemd ignores a message from before it requested the reload,
    // which it recognises by this time.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(_) => send(&[NotifyState::Reloading]),
    }
}

/// Sends `STOPPING=1`.
pub(crate) fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Sends `MAINPID=`: from now on process `pid` is the main process of the service.
pub(crate) fn main_process(pid: u32) {
    send(&[NotifyState::MainPid(pid)]);
}

/// Returns whether systemd has started this process as the main process of a service. A process
/// that such a service has started has another number.
pub(crate) fn is_main_process() -> bool {
    let number = std::env::var("SYSTEMD_EXEC_PID");
    number.is_ok_and(|number| number == std::process::id().to_string())
}

fn send(states: &[NotifyState<'_>]) {
    // Ignore errors: without a service manager, or if it does not listen, there is nothing to do.
    sd_notify::notify(states).ok();
}

/// The thread that sends `WATCHDOG=1`. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Watchdog {
    /// Never sends anything: the thread ends when this sender is dropped.
    _alive: Sender<()>,
}

/// Sends `WATCHDOG=1` twice per watchdog interval, as long as `works` returns true.
///
/// `works` runs on the thread of the watchdog and should check the threads that serve requests: a
/// server that answers none must not appear healthy. Returns `None` if the service manager has set
/// no watchdog for this process.
pub(crate) fn watchdog(
    works: impl FnMut() -> bool + Send + 'static,
) -> io::Result<Option<Watchdog>> {
    let Some(interval) = sd_notify::watchdog_enabled() else {
        return Ok(None);
    };
    every(interval / 2, works, || send(&[NotifyState::Watchdog])).map(Some)
}

/// Minimum interval between messages: an interval of zero would make a busy loop.
const PERIOD_MIN: Duration = Duration::from_millis(1);

fn every(
    period: Duration,
    mut works: impl FnMut() -> bool + Send + 'static,
    mut tell: impl FnMut() + Send + 'static,
) -> io::Result<Watchdog> {
    let (alive, ended) = mpsc::channel::<()>();
    let period = period.max(PERIOD_MIN);
    thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(move || {
            while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                if works() {
                    tell();
                }
            }
        })?;
    Ok(Watchdog { _alive: alive })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_hears_only_of_a_server_that_works() {
        let (sender, told) = mpsc::channel();
        let mut question = 0;
        let works = move || {
            question += 1;
            question != 2
        };
        let mut count = 0;
        let tell = move || {
            count += 1;
            sender.send(count).ok();
        };
        let watchdog = every(Duration::from_millis(1), works, tell).expect("starts");
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(1));
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(2));
        drop(watchdog);
        while told.recv_timeout(Duration::from_secs(20)).is_ok() {}
    }

    #[test]
    fn nobody_is_told_where_nobody_listens() {
        ready();
        stopping();
    }
}
