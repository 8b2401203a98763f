//! [`KeyCache`]: the keys of one issuer, and when they are fetched.
//!
//! | time | meaning |
//! | --- | --- |
//! | [`TIME`], 1 h | how long keys are used after they were fetched: a key that an issuer withdraws is refused after that |
//! | [`AHEAD`], 30 min | age at which the next request that needs keys has them fetched, without waiting |
//! | [`PAUSE`], 60 s | minimum time between two fetches because a token names an unknown key: anybody can send such tokens |
//! | [`FAULT_PAUSE`], 5 s | minimum time between two fetches after one has failed |
//! | [`WAIT_TIME`], 20 s | how long a request waits for a fetch |

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use samovar_oidc::keys::KeySet;

use crate::sync::{Locked as _, unpoisoned};

const TIME: Duration = Duration::from_secs(3600);
const AHEAD: Duration = Duration::from_secs(1800);
const PAUSE: Duration = Duration::from_secs(60);
const FAULT_PAUSE: Duration = Duration::from_secs(5);
const WAIT_TIME: Duration = Duration::from_secs(20);

/// Maximum number of requests that wait for the keys of an issuer. Each has a thread.
const WAITING_COUNT_MAX: usize = 16;

/// The keys of one issuer.
#[derive(Debug, Default)]
pub(super) struct KeyCache {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    keys: Option<(Arc<KeySet>, Instant)>,
    /// Number of requests that wait for the fetch in progress.
    waiting_count: usize,
    /// Whether a fetch is in progress.
    is_fetching: bool,
    /// The end of the last fetch, and why it has failed, if it has.
    last: Option<(Instant, Option<String>)>,
}

/// What to do about a request for keys.
#[derive(Debug)]
enum Next {
    /// Use these keys.
    Use(Arc<KeySet>),
    /// Use these keys, and start a fetch.
    UseAndFetch(Arc<KeySet>),
    /// Start a fetch, and wait for it.
    Fetch,
    /// Wait for the fetch in progress.
    Wait,
    /// There are no keys, for this reason.
    Fail(String),
}

impl State {
    fn next(&self, key_id: &str, now: Instant) -> Next {
        let age = |at: Instant| now.saturating_duration_since(at);
        let fresh = self.keys.as_ref().filter(|(_, at)| age(*at) < TIME);
        let last = self.last.as_ref().map(|(at, fault)| (age(*at), fault));
        let may_fetch = match last {
            None => true,
            Some((age, Some(_))) => age >= FAULT_PAUSE,
            Some((age, None)) => age >= PAUSE,
        };
        if let Some((keys, at)) = fresh
            && keys.has(key_id)
        {
            let keys = Arc::clone(keys);
            return match age(*at) >= AHEAD && may_fetch && !self.is_fetching {
                true => Next::UseAndFetch(keys),
                false => Next::Use(keys),
            };
        }
        match (last, fresh) {
            _ if self.is_fetching => Next::Wait,
            // After a successful fetch there are fresh keys: if they are too old, the fetch is.
            _ if may_fetch => Next::Fetch,
            (Some((_, Some(fault))), _) => Next::Fail(fault.clone()),
            (_, Some((keys, _))) => Next::Use(Arc::clone(keys)),
            (_, None) => Next::Fetch,
        }
    }
}

/// A fetch in progress. If it ends without a result, it counts as failed.
#[derive(Debug)]
pub(super) struct Fetching<'a> {
    cache: &'a KeyCache,
    has_ended: bool,
}

impl Fetching<'_> {
    /// Ends the fetch with its result.
    pub(super) fn fetched(mut self, keys: Result<KeySet, String>) {
        self.has_ended = true;
        self.cache.end(Instant::now(), keys);
    }
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let fault = "the request has failed".to_owned();
            self.cache.end(Instant::now(), Err(fault));
        }
    }
}

impl KeyCache {
    /// Returns the keys with which a token is to be verified that names this key. They lack the key
    /// if the issuer lacked it at the last fetch. `fetch` starts a thread that calls
    /// [`fetching`](Self::fetching). May wait for that.
    ///
    /// # Errors
    ///
    /// A fragment: why the keys cannot be fetched.
    pub(super) fn find(
        &self,
        key_id: &str,
        now: Instant,
        fetch: impl FnOnce() -> io::Result<()>,
    ) -> Result<Arc<KeySet>, String> {
        let mut state = self.state.locked();
        let next = state.next(key_id, now);
        if matches!(next, Next::Fetch | Next::UseAndFetch(_)) {
            state.is_fetching = true;
            if let Err(error) = fetch() {
                state.is_fetching = false;
                let fault = format!("no thread can be started: {error}");
                state.last = Some((now, Some(fault)));
            }
        }
        match next {
            Next::Use(keys) | Next::UseAndFetch(keys) => Ok(keys),
            Next::Fail(fault) => Err(fault),
            Next::Fetch | Next::Wait => self.wait(state),
        }
    }

    /// Waits for the fetch in progress.
    fn wait(&self, mut state: std::sync::MutexGuard<'_, State>) -> Result<Arc<KeySet>, String> {
        if state.waiting_count >= WAITING_COUNT_MAX {
            return Err("too many requests wait for its keys".to_owned());
        }
        state.waiting_count += 1;
        let mut state = samovar_http::lend_slot(|| {
            let waited = self
                .changed
                .wait_timeout_while(state, WAIT_TIME, |state| state.is_fetching);
            unpoisoned(waited).0
        });
        state.waiting_count -= 1;
        if state.is_fetching {
            return Err("it does not answer in time".to_owned());
        }
        match (&state.last, &state.keys) {
            (Some((_, Some(fault))), _) => Err(fault.clone()),
            (_, Some((keys, _))) => Ok(Arc::clone(keys)),
            (_, None) => Err("its keys were not fetched".to_owned()),
        }
    }

    /// Returns the fetch in progress, in its thread.
    pub(super) fn fetching(&self) -> Fetching<'_> {
        Fetching {
            cache: self,
            has_ended: false,
        }
    }

    fn end(&self, now: Instant, keys: Result<KeySet, String>) {
        let mut state = self.state.locked();
        state.is_fetching = false;
        let fault = match keys {
            Ok(keys) => {
                state.keys = Some((Arc::new(keys), now));
                None
            }
            Err(fault) => Some(fault),
        };
        state.last = Some((now, fault));
        self.changed.notify_all();
    }

    /// Returns the time since the keys were fetched; `None` if they never were.
    pub(super) fn age(&self, now: Instant) -> Option<Duration> {
        let state = self.state.locked();
        let (_, at) = state.keys.as_ref()?;
        Some(now.saturating_duration_since(*at))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn keys(id: &str) -> KeySet {
        let key = "\"kty\":\"OKP\",\"crv\":\"Ed25519\",\
                   \"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"";
        let text = format!("{{\"keys\": [{{\"kid\": \"{id}\", {key}}}]}}");
        KeySet::parse(text.as_bytes()).unwrap()
    }

    /// A cache and the number of fetches that it has started.
    #[derive(Default)]
    struct Test {
        cache: KeyCache,
        count: AtomicUsize,
    }

    impl Test {
        /// Asks for a key. A fetch ends at once with `answer`.
        fn find(&self, id: &str, now: Instant, answer: Result<&str, &str>) -> Result<bool, String> {
            let found = self.cache.find(id, now, || {
                self.count.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
            drop(found);
            if self.cache.state.locked().is_fetching {
                self.cache.end(now, answer.map(keys).map_err(str::to_owned));
            }
            let next = self.cache.state.locked().next(id, now);
            match next {
                Next::Use(keys) | Next::UseAndFetch(keys) => Ok(keys.has(id)),
                Next::Fail(fault) => Err(fault),
                other => Err(format!("{other:?}")),
            }
        }

        #[track_caller]
        fn started(&self, expected: usize) {
            assert_eq!(self.count.swap(0, Ordering::Relaxed), expected);
        }
    }

    /// Makes waits end at once: a test thread ends the fetch itself.
    fn without_waiting(test: &Test) {
        test.cache.state.locked().waiting_count = WAITING_COUNT_MAX;
    }

    #[test]
    fn keys_are_fetched_once_and_again_for_an_unknown_one_at_most_once_a_minute() {
        let test = Test::default();
        without_waiting(&test);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(test.find("a", at(0), Ok("a")), Ok(true));
        test.started(1);
        assert_eq!(test.find("a", at(1000), Ok("a")), Ok(true));
        test.started(0);
        // Unknown keys: of an attacker, or new ones.
        assert_eq!(test.find("x", at(1000), Ok("a")), Ok(false));
        test.started(1);
        for second in 1001..1060 {
            assert_eq!(test.find("x", at(second), Ok("a")), Ok(false));
        }
        test.started(0);
        assert_eq!(test.find("b", at(1060), Ok("b")), Ok(true));
        test.started(1);
        // A withdrawn key is unknown.
        assert_eq!(test.find("a", at(1061), Ok("b")), Ok(false));
        test.started(0);
    }

    #[test]
    fn keys_are_renewed_ahead_and_not_used_after_an_hour() {
        let test = Test::default();
        without_waiting(&test);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(test.find("a", at(0), Ok("a")), Ok(true));
        assert_eq!(test.find("a", at(1799), Ok("a")), Ok(true));
        test.started(1);
        assert_eq!(test.find("a", at(1800), Err("down")), Ok(true));
        test.started(1);
        assert_eq!(test.find("a", at(1804), Err("down")), Ok(true));
        test.started(0);
        assert_eq!(test.find("a", at(3599), Err("down")), Ok(true));
        assert_eq!(
            test.find("a", at(3605), Err("down")),
            Err("down".to_owned())
        );
        test.started(2);
        assert_eq!(test.find("a", at(3609), Ok("a")), Err("down".to_owned()));
        test.started(0);
        assert_eq!(test.find("a", at(3610), Ok("a")), Ok(true));
        test.started(1);
    }

    #[test]
    fn an_unknown_key_is_not_refused_for_good_while_the_issuer_is_down() {
        let test = Test::default();
        without_waiting(&test);
        let start = Instant::now();
        assert_eq!(test.find("a", start, Ok("a")), Ok(true));
        let later = start + PAUSE;
        assert_eq!(test.find("b", later, Err("down")), Err("down".to_owned()));
        assert_eq!(test.find("a", later, Err("down")), Ok(true));
    }

    #[test]
    fn all_that_wait_get_the_keys_of_one_fetch() {
        let test = Arc::new(Test::default());
        let threads = (0..WAITING_COUNT_MAX).map(|_| {
            let test = Arc::clone(&test);
            std::thread::spawn(move || {
                let fetch = || {
                    test.count.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                };
                test.cache
                    .find("a", Instant::now(), fetch)
                    .map(|keys| keys.has("a"))
            })
        });
        let threads: Vec<_> = threads.collect();
        while test.cache.state.locked().waiting_count < WAITING_COUNT_MAX {
            std::thread::yield_now();
        }
        // One more does not wait.
        let more = test.cache.find("a", Instant::now(), || Ok(()));
        assert!(more.is_err());
        test.cache.fetching().fetched(Ok(keys("a")));
        for thread in threads {
            assert_eq!(thread.join().unwrap(), Ok(true));
        }
        test.started(1);
    }

    #[test]
    fn a_fetch_that_panics_counts_as_failed() {
        let cache = KeyCache::default();
        cache.state.locked().is_fetching = true;
        drop(cache.fetching());
        let state = cache.state.locked();
        assert!(!state.is_fetching);
        assert!(matches!(state.last, Some((_, Some(_)))));
    }
}
