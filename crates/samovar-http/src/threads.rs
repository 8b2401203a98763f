//! Threads whose end can be waited for with a time limit.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::sync::Lock;

/// The running threads of one kind.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    count: Mutex<usize>,
    ended: Condvar,
}

/// Counts a thread until it is dropped.
struct Running(Arc<Threads>);

impl Threads {
    /// Starts a thread.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        *self.count.locked() += 1;
        let running = Running(Arc::clone(self));
        let thread = std::thread::Builder::new().name(name);
        thread.spawn(move || {
            let _running = running;
            work();
        })?;
        Ok(())
    }

    /// Waits until all threads have ended; returns `false` if `deadline` passes before.
    pub(crate) fn wait_until(&self, deadline: Instant) -> bool {
        let mut count = self.count.locked();
        while *count > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.ended.wait_timeout(count, left);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.count.locked() -= 1;
        self.0.ended.notify_all();
    }
}
