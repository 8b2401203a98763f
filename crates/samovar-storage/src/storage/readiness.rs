//! Probes a storage in a thread of its own, so that who asks whether it is ready does not wait for
//! a disk, a database or a bucket that hangs.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::storage::Storage;

/// The last probe of a storage.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    /// Number of probes that have ended.
    ended_count: u64,
    /// Whether the last of them has succeeded.
    is_ready: bool,
}

/// Returns whether a [probe](Storage::probe) succeeds within this time. Begins one unless one is in
/// progress, which may have begun long ago.
pub fn is_ready(storage: &Arc<Storage>, limit: Duration) -> bool {
    let readiness = &storage.readiness;
    let mut state = readiness.state();
    let before = state.ended_count;
    if !state.is_running {
        state.is_running = true;
        let probed = Arc::clone(storage);
        let probe = move || {
            let mut ending = Ending(&probed.readiness, false);
            ending.1 = probed.probe().is_ok();
        };
        let thread = thread::Builder::new().name("storage-probe".to_owned());
        if thread.spawn(probe).is_err() {
            state.is_running = false;
            return false;
        }
    }
    let is_running = |state: &mut State| state.ended_count == before;
    let waited = readiness.ended.wait_timeout_while(state, limit, is_running);
    let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
    !timeout.timed_out() && state.is_ready
}

/// Ends a probe with this outcome when it is dropped, also if the probe panics.
struct Ending<'r>(&'r Readiness, bool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}

impl Readiness {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, is_ready: bool) {
        let mut state = self.state();
        state.is_running = false;
        state.ended_count += 1;
        state.is_ready = is_ready;
        self.ended.notify_all();
    }
}
