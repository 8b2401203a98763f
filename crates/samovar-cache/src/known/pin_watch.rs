//! [`PinWatch`]: requests that wait for a change of a pin, and sockets that follow all pins of a
//! cache.
//!
//! # Theory of operation
//!
//! A waiting request occupies no worker: its response is deferred. While there are waiting requests
//! or sockets, one thread compares the newest generations in the database with those that the
//! requests know, and with those that were last sent to the sockets. It does so when a request of
//! this process or another node has changed a pin, and every [`POLL_TIME`], because other processes
//! change pins, too: `samovar pin`, and the other process of a zero-downtime upgrade. Otherwise the
//! thread ends.
//!
//! No change is missed. A request notes the number of changes so far, reads the pins, and then
//! starts to wait or to follow. If the number has changed meanwhile, the thread reads the database
//! again.

mod follower;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use samovar_http::ws::CloseCode;
use samovar_http::{Responder, Response};
use samovar_storage::StoredCache;
use samovar_storage::metadata::pins;

pub(crate) use self::follower::Follower;

use crate::sync::{Locked, unpoisoned};

/// Time between two reads of the database for changes by other processes.
const POLL_TIME: Duration = Duration::from_secs(2);

/// Maximum number of waiting requests and sockets together.
pub(crate) const COUNT_MAX: usize = 4096;

/// Maximum number of waiting requests and sockets with one token.
pub(crate) const TOKEN_COUNT_MAX: usize = 256;

/// The requests that wait for a change of a pin, and the sockets that follow pins, for all caches
/// of a server.
#[derive(Default)]
pub(crate) struct PinWatch {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiters: Vec<(Waiter, Responder)>,
    followers: Vec<Follower>,
    /// The newest generations that the followers of each cache know, by name of the cache.
    known: HashMap<String, Generations>,
    /// Number of changes of pins by this process.
    change_count: u64,
    /// Whether pins may have changed since the last read of the database.
    is_due: bool,
    /// Whether the thread runs.
    is_running: bool,
    /// Whether the server is stopping, so that no request may wait.
    is_closed: bool,
}

/// A request that waits.
pub(crate) struct Waiter {
    pub(crate) stored: StoredCache,
    /// Name of the pin.
    pub(crate) name: String,
    /// Row number of the client's token.
    pub(crate) token: i64,
    /// The newest generation that the request has read.
    pub(crate) newest: i64,
    pub(crate) deadline: Instant,
    pub(crate) question: Box<dyn Question>,
}

/// The part of a waiting request that computes its response.
pub(crate) trait Question: Send {
    /// Reads the pin again. Returns `None` if the client knows its newest generation.
    fn answer(&self) -> Option<Response>;

    /// Returns the response to a request whose pin has not changed.
    fn unchanged(&self) -> Response;
}

/// Reason why a request cannot wait, or a socket cannot follow pins.
#[derive(Debug)]
pub(crate) enum WaitError {
    /// Too many requests wait, or too many sockets follow pins.
    TooMany,
    /// The thread cannot be started.
    Thread(io::Error),
}

/// The newest generation of each pin of a cache, by name.
pub(crate) type Generations = HashMap<String, i64>;

/// The name of a pin that has changed, and its newest generation, or 0 if the pin was removed.
pub(crate) type Change = (String, i64);

impl PinWatch {
    /// Returns the number of changes so far. A request calls this before it reads the pin.
    pub(crate) fn change_count(&self) -> u64 {
        self.state.locked().change_count
    }

    /// Records that a pin was changed. Called after the change was committed.
    pub(crate) fn change(&self) {
        let mut state = self.state.locked();
        state.change_count += 1;
        state.is_due = true;
        self.changed.notify_one();
    }

    /// Makes a request wait. `change_count`: its value before the request read the pin.
    pub(crate) fn wait(
        self: &Arc<Self>,
        waiter: Waiter,
        change_count: u64,
    ) -> Result<Response, WaitError> {
        let mut state = self.state.locked();
        if state.is_closed {
            return Ok(waiter.question.unchanged());
        }
        if state.is_full(waiter.token) {
            return Err(WaitError::TooMany);
        }
        self.start(&mut state).map_err(WaitError::Thread)?;
        state.is_due |= state.change_count != change_count;
        let (responder, response) = Response::later();
        state.waiters.push((waiter, responder));
        self.changed.notify_one();
        Ok(response)
    }

    /// Makes a socket follow the pins of its cache. `generations`: the newest generations that were
    /// read after `change_count` was noted.
    pub(crate) fn follow(
        self: &Arc<Self>,
        follower: Follower,
        generations: Generations,
        change_count: u64,
    ) -> Result<(), WaitError> {
        let mut state = self.state.locked();
        if state.is_closed {
            // The engine closes the socket.
            return Ok(());
        }
        if state.is_full(follower.token.id) {
            return Err(WaitError::TooMany);
        }
        self.start(&mut state).map_err(WaitError::Thread)?;
        state.is_due |= state.change_count != change_count;
        // The generations that another follower of the cache has stored may be older. Then this
        // follower gets some messages again, but misses none.
        let name = follower.stored.name().to_owned();
        state.known.entry(name).or_insert(generations);
        state.followers.push(follower);
        self.changed.notify_one();
        Ok(())
    }

    /// Starts the thread unless it runs.
    fn start(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        if !state.is_running {
            let watch = Arc::clone(self);
            std::thread::Builder::new()
                .name("pin-watch".to_owned())
                .spawn(move || watch.run())?;
            state.is_running = true;
        }
        Ok(())
    }

    /// Answers all waiting requests as unchanged, and closes all sockets. Their clients send them
    /// again, and the new ones are subject to the present configuration.
    pub(crate) fn release(&self) {
        let mut state = self.state.locked();
        let waiters = std::mem::take(&mut state.waiters);
        let followers = std::mem::take(&mut state.followers);
        drop(state);
        self.changed.notify_one();
        for (waiter, responder) in waiters {
            responder.respond(waiter.question.unchanged());
        }
        for follower in followers {
            let reason = "the configuration was reloaded";
            follower.socket.close(CloseCode::RESTART, reason);
        }
    }

    /// Answers all waiting requests, and from now on each further one at once. The engine closes
    /// the sockets.
    pub(crate) fn close(&self) {
        let mut state = self.state.locked();
        state.is_closed = true;
        state.followers.clear();
        drop(state);
        self.release();
    }

    /// Runs the thread.
    fn run(&self) {
        let _restart = RestartAfterPanic(self);
        let mut polled_at = Instant::now();
        while self.await_poll(polled_at) {
            polled_at = Instant::now();
            self.poll();
        }
    }

    /// Waits until the database must be read, and answers requests whose time is over meanwhile.
    /// Returns `false` if the thread must end, because there are neither requests nor sockets.
    fn await_poll(&self, polled_at: Instant) -> bool {
        let poll_at = polled_at + POLL_TIME;
        let mut state = self.state.locked();
        loop {
            let now = Instant::now();
            for (waiter, responder) in state.take(|waiter| waiter.deadline <= now) {
                responder.respond(waiter.question.unchanged());
            }
            let is_due = state.is_due || now >= poll_at;
            if is_due {
                state.forget_abandoned();
            }
            if state.waiters.is_empty() && state.followers.is_empty() {
                state.is_running = false;
                state.known.clear();
                return false;
            }
            if is_due {
                state.is_due = false;
                return true;
            }
            let deadlines = state.waiters.iter().map(|(waiter, _)| waiter.deadline);
            let deadline = deadlines.min().unwrap_or(poll_at);
            let time = deadline.min(poll_at).saturating_duration_since(now);
            (state, _) = unpoisoned(self.changed.wait_timeout(state, time));
        }
    }

    /// Reads the newest generations, answers the requests whose pins have changed, and sends the
    /// changes to the followers.
    fn poll(&self) {
        let state = self.state.locked();
        let caches = state.caches();
        // What the first follower of a cache knows may be newer than what is read below.
        let followed: Vec<String> = state.known.keys().cloned().collect();
        drop(state);
        let read = caches.iter().filter_map(|stored| {
            // An error is not reported: requests for the storage report it. Requests continue to
            // wait.
            let generations = pins::newest_generations(stored.metadata(), stored.id()).ok()?;
            Some((stored.name().to_owned(), generations))
        });
        let newest: HashMap<String, Generations> = read.collect();
        let has_changed = |waiter: &Waiter| {
            let generations = newest.get(waiter.stored.name());
            generations.is_some_and(|all| all.get(&waiter.name) != Some(&waiter.newest))
        };
        let mut state = self.state.locked();
        let changed = state.take(has_changed);
        let sends = state.changes(&followed, &newest);
        drop(state);
        for (follower, changes) in sends {
            follower.send(&changes);
        }
        for (mut waiter, responder) in changed {
            match waiter.question.answer() {
                Some(response) => responder.respond(response),
                // The newest generation is hidden from the client, or changed back meanwhile.
                None => {
                    let generations = newest.get(waiter.stored.name());
                    let newest = generations.and_then(|all| all.get(&waiter.name));
                    waiter.newest = newest.copied().unwrap_or_default();
                    self.put_back(waiter, responder);
                }
            }
        }
    }

    /// Makes a request wait again.
    fn put_back(&self, waiter: Waiter, responder: Responder) {
        let mut state = self.state.locked();
        match state.is_closed {
            true => {
                drop(state);
                responder.respond(waiter.question.unchanged());
            }
            false => state.waiters.push((waiter, responder)),
        }
    }
}

impl State {
    /// Returns whether no further request with this token may wait.
    fn is_full(&mut self, token: i64) -> bool {
        let is_full = |state: &Self| {
            let waiters = state.waiters.iter().map(|(waiter, _)| waiter.token);
            let followers = state.followers.iter().map(|follower| follower.token.id);
            let tokens = waiters.chain(followers);
            let own_count = tokens.clone().filter(|other| *other == token).count();
            tokens.count() >= COUNT_MAX || own_count >= TOKEN_COUNT_MAX
        };
        is_full(self) && {
            self.forget_abandoned();
            is_full(self)
        }
    }

    /// Removes requests whose clients have disconnected, and sockets that have ended.
    fn forget_abandoned(&mut self) {
        self.followers.retain(|follower| follower.socket.is_open());
        self.waiters
            .retain(|(_, responder)| !responder.is_abandoned());
    }

    /// Removes the requests that `is_taken` accepts, and returns them.
    fn take(&mut self, is_taken: impl Fn(&Waiter) -> bool) -> Vec<(Waiter, Responder)> {
        let taken = self.waiters.extract_if(.., |(waiter, _)| is_taken(waiter));
        taken.collect()
    }

    /// Returns the caches of the waiting requests and of the followers.
    fn caches(&self) -> Vec<StoredCache> {
        let waiters = self.waiters.iter().map(|(waiter, _)| &waiter.stored);
        let followers = self.followers.iter().map(|follower| &follower.stored);
        let mut caches: Vec<StoredCache> = Vec::new();
        for stored in waiters.chain(followers) {
            if caches.iter().all(|cache| cache.name() != stored.name()) {
                caches.push(stored.clone());
            }
        }
        caches
    }

    /// Records the newest generations of these caches as known to the followers. Returns each
    /// follower with the changes to send to it.
    fn changes(
        &mut self,
        caches: &[String],
        newest: &HashMap<String, Generations>,
    ) -> Vec<(Follower, Arc<Vec<Change>>)> {
        let Self {
            followers, known, ..
        } = self;
        known.retain(|cache, _| followers.iter().any(|one| one.stored.name() == cache));
        let mut changes = HashMap::new();
        for cache in caches {
            if let (Some(known), Some(generations)) = (known.get_mut(cache), newest.get(cache)) {
                let all = differences(known, generations);
                known.clone_from(generations);
                changes.insert(&**cache, Arc::new(all));
            }
        }
        let of = |follower: &Follower| {
            let changes = changes.get(follower.stored.name());
            let changes = changes.filter(|changes| !changes.is_empty())?;
            Some((follower.clone(), Arc::clone(changes)))
        };
        followers.iter().filter_map(of).collect()
    }
}

/// Returns the pins whose newest generation differs, sorted by name.
fn differences(before: &Generations, now: &Generations) -> Vec<Change> {
    let changed = now
        .iter()
        .filter(|(name, generation)| before.get(*name) != Some(*generation))
        .map(|(name, generation)| (name.clone(), *generation));
    let removed = before
        .keys()
        .filter(|name| !now.contains_key(*name))
        .map(|name| (name.clone(), 0));
    let mut all: Vec<Change> = changed.chain(removed).collect();
    all.sort_unstable();
    all
}

/// Lets the next request start the thread again if it panics.
struct RestartAfterPanic<'a>(&'a PinWatch);

impl Drop for RestartAfterPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = self.0.state.locked();
            state.is_running = false;
            state.known.clear();
        }
    }
}

impl fmt::Debug for PinWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.locked();
        f.debug_struct("PinWatch")
            .field("waiter_count", &state.waiters.len())
            .field("follower_count", &state.followers.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use samovar_http::http::Status;
    use samovar_nix::StoreDir;
    use samovar_storage::Storage;

    use super::*;

    /// A request whose pin never changes.
    struct Fixed;

    impl Question for Fixed {
        fn answer(&self) -> Option<Response> {
            None
        }

        fn unchanged(&self) -> Response {
            Response::text(Status::NOT_MODIFIED, "")
        }
    }

    fn waiter(stored: &StoredCache, token: usize) -> Waiter {
        Waiter {
            stored: stored.clone(),
            name: "main".to_owned(),
            token: i64::try_from(token).unwrap(),
            newest: 1,
            deadline: Instant::now() + Duration::from_secs(3600),
            question: Box::new(Fixed),
        }
    }

    #[test]
    fn waiting_requests_are_limited_per_token_and_in_total() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(dir.path(), &StoreDir::default()).unwrap();
        let stored = storage.cache("default", true).unwrap();
        let mut state = State::default();
        for count in 0..COUNT_MAX {
            let token = count / TOKEN_COUNT_MAX;
            assert!(!state.is_full(i64::try_from(token).unwrap()), "{count}");
            let (responder, _response) = Response::later();
            state.waiters.push((waiter(&stored, token), responder));
            let is_last = (count + 1).is_multiple_of(TOKEN_COUNT_MAX);
            assert_eq!(
                state.is_full(i64::try_from(token).unwrap()),
                is_last,
                "{count}"
            );
        }
        assert!(state.is_full(i64::MAX));
    }

    #[test]
    fn differences_of_generations() {
        let of = |pins: &[(&str, i64)]| -> Generations {
            let pins = pins.iter();
            pins.map(|(name, generation)| ((*name).to_owned(), *generation))
                .collect()
        };
        let before = of(&[("b", 1), ("c", 2), ("d", 3)]);
        let now = of(&[("a", 1), ("b", 1), ("c", 1)]);
        let expected = [("a", 1), ("c", 1), ("d", 0)];
        let expected = expected.map(|(name, generation)| (name.to_owned(), generation));
        assert_eq!(differences(&before, &now), expected);
        assert_eq!(differences(&now, &now), []);
    }

    #[test]
    fn no_request_waits_once_the_server_stops() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(dir.path(), &StoreDir::default()).unwrap();
        let stored = storage.cache("default", true).unwrap();
        let watch = Arc::new(PinWatch::default());
        watch.wait(waiter(&stored, 1), 0).unwrap();
        watch.close();
        watch.wait(waiter(&stored, 1), 0).unwrap();
        assert!(watch.state.locked().waiters.is_empty());
    }
}
