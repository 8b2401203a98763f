//! [`Silence`]: tells the user that a server does not answer, while requests wait for it.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::notice::notice;

/// Time without an answer after which the user is told.
const SILENCE: Duration = Duration::from_secs(5);

/// Interval at which the waiting requests are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// The requests that wait for a server.
#[derive(Debug, Default)]
pub(crate) struct Silence(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When a byte of the body of each request was last sent. The key is the number of the request.
    waiting: BTreeMap<u64, Instant>,
    next: u64,
    /// Since when the server has not answered, if the user was told.
    silent_since: Option<Instant>,
    is_watched: bool,
}

/// A request that waits for the server, until this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    silence: Arc<Silence>,
    number: u64,
}

impl Silence {
    /// Begins a request. `server`: for messages.
    pub(crate) fn begin(self: &Arc<Self>, server: &str) -> Waiting {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number, Instant::now());
        if !state.is_watched {
            state.is_watched = true;
            self.watch(server.to_owned());
        }
        Waiting {
            silence: Arc::clone(self),
            number,
        }
    }

    /// Notes that the server has answered a request, in time or at last.
    pub(crate) fn answered(&self, server: &str) {
        if let Some(since) = self.state().silent_since.take() {
            let time = since.elapsed().as_secs();
            notice(&format!("{server} answers again, after {time} s"));
        }
    }

    /// Starts the thread that tells the user. It ends with the last client of the server.
    fn watch(self: &Arc<Self>, server: String) {
        let silence = Arc::downgrade(self);
        let watch = move || {
            loop {
                thread::sleep(INTERVAL);
                let Some(silence) = silence.upgrade() else {
                    return;
                };
                if silence.state().falls_silent(Instant::now()) {
                    let time = SILENCE.as_secs();
                    notice(&format!(
                        "{server} has not answered for {time} s; waiting for it"
                    ));
                }
            }
        };
        // Ignore errors: only the notice is missing.
        thread::Builder::new().spawn(watch).ok();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns whether the user is to be told now that the server does not answer.
    fn falls_silent(&mut self, now: Instant) -> bool {
        let first = self.waiting.values().min();
        let first = first.filter(|since| now.saturating_duration_since(**since) >= SILENCE);
        match (first, self.silent_since) {
            (Some(since), None) => {
                self.silent_since = Some(*since);
                true
            }
            _ => false,
        }
    }
}

impl Waiting {
    /// Returns a reader of the body of the request. The server need not answer before its end.
    pub(crate) fn sending<R: Read>(&self, body: R) -> impl Read {
        Sending {
            body,
            waiting: self,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.silence.state().waiting.remove(&self.number);
    }
}

/// The body of a request.
struct Sending<'w, R> {
    body: R,
    waiting: &'w Waiting,
}

impl<R: Read> Read for Sending<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Waiting { silence, number } = self.waiting;
        silence.state().waiting.insert(*number, Instant::now());
        self.body.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_told_once() {
        let (mut state, start) = (State::default(), Instant::now());
        assert!(!state.falls_silent(start + SILENCE));
        state.waiting.insert(0, start);
        assert!(!state.falls_silent(start + SILENCE - INTERVAL));
        assert!(state.falls_silent(start + SILENCE));
        assert!(!state.falls_silent(start + 2 * SILENCE));
    }
}
