//! [`Pool`]: the sessions that read.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::session::Session;
use crate::error::StorageError;

/// Maximum number of sessions. The server has a process for each, and a look-up takes less than a
/// millisecond.
const SESSION_COUNT_MAX: usize = 8;

/// Maximum time to wait for a session that another caller uses.
const WAIT: Duration = Duration::from_secs(10);

/// Time in which it turns out that the server has ended a session.
const ENDED_TIME: Duration = Duration::from_secs(1);

/// Sessions, each of which one caller uses at a time.
#[derive(Debug)]
pub(super) struct Pool {
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Debug)]
struct State {
    idle: Vec<Session>,
    /// Number of sessions that callers have.
    taken_count: usize,
}

impl Pool {
    /// Returns a pool with one session.
    pub(super) fn with_idle(session: Session) -> Self {
        let state = State {
            idle: vec![session],
            taken_count: 0,
        };
        Self {
            state: Mutex::new(state),
            returned: Condvar::new(),
        }
    }

    /// Calls `query` with a session. Makes one with `connect` if none is idle, or if the server has
    /// ended the idle one, which may only turn out when it is used.
    ///
    /// # Errors
    ///
    /// Those of `connect` and `query`; [`StorageError::Unavailable`] if others use all sessions for
    /// long.
    pub(super) fn with<T>(
        &self,
        connect: impl FnOnce() -> Result<Session, StorageError>,
        mut query: impl FnMut(&Session) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let mut taken = self.take()?;
        if let Some(session) = taken.session.take().filter(Session::is_usable) {
            let began = Instant::now();
            let session = taken.session.insert(session);
            let outcome = query(session);
            let was_ended = matches!(outcome, Err(StorageError::Unavailable(_)))
                && session.is_broken()
                // A server that does not answer is not waited for twice.
                && began.elapsed() < ENDED_TIME;
            if !was_ended {
                return outcome;
            }
        }
        let session = connect()?;
        query(taken.session.insert(session))
    }

    fn take(&self) -> Result<Taken<'_>, StorageError> {
        let is_full = |state: &mut State| state.taken_count >= SESSION_COUNT_MAX;
        let (mut state, _timeout) = self
            .returned
            .wait_timeout_while(self.state(), WAIT, is_full)
            .unwrap_or_else(PoisonError::into_inner);
        if is_full(&mut state) {
            let reason = "all connections to PostgreSQL are in use";
            return Err(StorageError::Unavailable(reason.to_owned()));
        }
        state.taken_count += 1;
        Ok(Taken {
            session: state.idle.pop(),
            pool: self,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the pool. Dropping it returns its session, unless that cannot be used again.
struct Taken<'p> {
    session: Option<Session>,
    pool: &'p Pool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let session = self.session.take().filter(|session| !session.is_broken());
        let mut state = self.pool.state();
        state.taken_count -= 1;
        state.idle.extend(session);
        drop(state);
        self.pool.returned.notify_one();
    }
}
