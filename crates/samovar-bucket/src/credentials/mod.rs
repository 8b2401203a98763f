//! Credentials: where they come from, and their renewal.
//!
//! [`Credentials::current`] returns those in use. Five minutes before they expire, one thread
//! fetches others while the rest go on with the old ones; if they have expired, all wait for that
//! thread. Credentials without expiry are read again after the engine has refused them, so that a
//! key can be changed in a file without a restart.

mod chain;
mod environment;
mod file;
mod login;
mod metadata;
mod sts;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ureq::Agent;

use crate::clock::unix_now_s;
use crate::settings::Settings;
use crate::source::CredentialError;

use chain::Chain;
use environment::Environment;
use login::Found;
pub(crate) use login::Login;

/// How long before their end credentials are renewed, in seconds.
const RENEWED_BEFORE_S: i64 = 300;

/// After an attempt to renew credentials that still work, the next begins after this time.
const RENEWAL_PAUSE: Duration = Duration::from_secs(10);

/// For this time, others that wait for credentials get the error of the thread that asked for them.
const FAILED_FOR: Duration = Duration::from_secs(1);

/// The credentials of a bucket.
#[derive(Debug)]
pub(crate) struct Credentials {
    chain: Chain,
    held: Mutex<Option<Held>>,
    /// Held by the thread that fetches others.
    renewal: Mutex<Renewal>,
}

#[derive(Debug, Default)]
struct Renewal {
    /// When credentials that still work were last to be renewed.
    last: Option<Instant>,
    /// Why there are none, and since when.
    failed: Option<(Instant, CredentialError)>,
}

#[derive(Debug, Clone)]
struct Held {
    login: Arc<Login>,
    expires_at: Option<i64>,
}

impl Credentials {
    pub(crate) fn new(settings: &Settings, agent: Agent) -> Self {
        Self::of(Chain::new(settings, agent, Environment::process()))
    }

    fn of(chain: Chain) -> Self {
        Self {
            chain,
            held: Mutex::new(None),
            renewal: Mutex::new(Renewal::default()),
        }
    }

    /// Returns the credentials to be used now, and fetches them if necessary.
    pub(crate) fn current(&self) -> Result<Arc<Login>, CredentialError> {
        let now_s = unix_now_s();
        match self.held() {
            Some(held) if !held.ends_before(now_s + RENEWED_BEFORE_S) => Ok(held.login),
            Some(held) if !held.ends_before(now_s + 1) => Ok(self.renewed_early(held)),
            _ => self.fetched(),
        }
    }

    /// Fetches others after the engine has refused `login`. Returns whether there are any.
    ///
    /// Of many requests that were refused, one fetches; it does so at most every ten seconds,
    /// because a request may also be refused for other reasons.
    pub(crate) fn renew_after(&self, refused: &Arc<Login>) -> bool {
        let mut renewal = lock(&self.renewal);
        let is_held = |held: Held| Arc::ptr_eq(&held.login, refused);
        if !self.held().is_some_and(is_held) {
            return true;
        }
        if renewal.is_recent() {
            return false;
        }
        renewal.last = Some(Instant::now());
        let Ok(found) = self.chain.find() else {
            return false;
        };
        let is_other = !found.login.is_same(refused);
        if is_other {
            self.hold(found);
        }
        is_other
    }

    /// Renews credentials that still work, unless another thread does so.
    fn renewed_early(&self, held: Held) -> Arc<Login> {
        let Ok(mut renewal) = self.renewal.try_lock() else {
            return held.login;
        };
        if renewal.is_recent() {
            return held.login;
        }
        renewal.last = Some(Instant::now());
        match self.chain.find() {
            Ok(found) => self.hold(found),
            // The old ones work, and the next request tries again.
            Err(_) => held.login,
        }
    }

    /// Fetches credentials, or waits for the thread that does so.
    fn fetched(&self) -> Result<Arc<Login>, CredentialError> {
        let mut renewal = lock(&self.renewal);
        if let Some(held) = self.held()
            && !held.ends_before(unix_now_s() + 1)
        {
            return Ok(held.login);
        }
        if let Some((since, error)) = &renewal.failed
            && since.elapsed() < FAILED_FOR
        {
            return Err(error.clone());
        }
        match self.chain.find() {
            Ok(found) => {
                *renewal = Renewal::default();
                Ok(self.hold(found))
            }
            Err(error) => {
                renewal.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    fn hold(&self, found: Found) -> Arc<Login> {
        let login = Arc::new(found.login);
        *lock(&self.held) = Some(Held {
            login: Arc::clone(&login),
            expires_at: found.expires_at,
        });
        login
    }

    fn held(&self) -> Option<Held> {
        lock(&self.held).clone()
    }
}

impl Renewal {
    fn is_recent(&self) -> bool {
        self.last.is_some_and(|last| last.elapsed() < RENEWAL_PAUSE)
    }
}

impl Held {
    fn ends_before(&self, unix_s: i64) -> bool {
        self.expires_at.is_some_and(|end| end < unix_s)
    }
}

// Values are replaced as wholes, so they are right even if a thread panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
