//! What the service manager is told (`NOTIFY_SOCKET`, `WATCHDOG_USEC`).
//!
//! Without these variables every function does nothing. A message that cannot be sent is not an
//! error of the server's: the manager notices by itself that it is missing.
//!
//! # Source
//!
//! `sd_notify`(3), `sd_watchdog_enabled`(3).

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;

/// Says that the sockets are bound and requests are answered.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// Says that keys and logs are being read and opened again; [`ready`] must follow.
pub fn reloading() {
    // Type=notify-reload wants to know the time, so as not to take an older READY=1 for the answer.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(_) => send(&[NotifyState::Reloading]),
    }
}

/// Says that the server is about to end.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Says that process `pid` serves from now on, and is whose end is the service's.
pub fn main_process(pid: u32) {
    send(&[NotifyState::MainPid(pid)]);
}

/// Says in words what the server is doing; shown by `systemctl status`.
pub fn status(text: &str) {
    send(&[NotifyState::Status(&text.replace(char::is_control, " "))]);
}

fn send(states: &[NotifyState<'_>]) {
    // Nobody to tell, or nobody listens: nothing to be done either way.
    sd_notify::notify(states).ok();
}

/// The thread that keeps the watchdog quiet; dropping it ends the thread.
#[derive(Debug)]
pub struct Watchdog {
    /// Nothing is ever sent: the thread waits for the other end to go.
    _alive: Sender<()>,
}

/// Tells the manager's watchdog, twice in its interval, that the server works, as long as `works`
/// says so.
///
/// `works` should ask those who serve, and is called on the watchdog's thread; a server that
/// answers nobody must not look alive. `None` if no watchdog waits for this process.
///
/// # Errors
///
/// If there can be no further thread.
pub fn watchdog(works: impl FnMut() -> bool + Send + 'static) -> io::Result<Option<Watchdog>> {
    let Some(interval) = sd_notify::watchdog_enabled() else {
        return Ok(None);
    };
    every(interval / 2, works, || send(&[NotifyState::Watchdog])).map(Some)
}

/// An interval of zero would be a busy loop.
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
