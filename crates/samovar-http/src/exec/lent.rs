//! Lending a worker slot while a handler blocks.

use std::cell::RefCell;
use std::sync::Arc;

use crate::core::Core;
use crate::jobs::{LentSlot, Running, Wait, lane, set_slot};

thread_local! {
    /// The server whose jobs the thread runs; `None` if the thread is no worker.
    static CORE: RefCell<Option<Arc<Core>>> = const { RefCell::new(None) };
}

/// Makes the calling thread a worker, until it is dropped.
pub(super) struct Worker(());

impl Worker {
    pub(super) fn new(core: &Arc<Core>, running: &Running) -> Self {
        CORE.set(Some(Arc::clone(core)));
        set_slot(Some(Arc::clone(&running.slot)));
        Self(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        CORE.set(None);
        set_slot(None);
    }
}

/// Calls `wait`, which may block for long, for example until a lock is released. Meanwhile the
/// worker slot of the calling thread is lent to other requests. The slot is not lent if the thread
/// is no worker, if it has lent its slot already, or if too many slots are lent.
///
/// Useful if the application has set a maximum number of [workers](crate::Builder::workers), for
/// waits that the maximum is not meant for. By default, there are enough slots for handlers that
/// block.
pub fn lend_slot<T>(wait: impl FnOnce() -> T) -> T {
    lend_slot_for(Wait::Other, wait)
}

/// Like [`lend_slot`], for a body that is read while it is sent.
pub(super) fn lend_slot_to_read<T>(read: impl FnOnce() -> T) -> T {
    lend_slot_for(Wait::Reading, read)
}

fn lend_slot_for<T>(kind: Wait, wait: impl FnOnce() -> T) -> T {
    let core = CORE.with_borrow(Clone::clone);
    let lent = match (&core, lane()) {
        (Some(core), Some(lane)) => LentSlot::lend(&core.queue, lane, kind),
        _ => None,
    };
    let outcome = wait();
    drop(lent);
    outcome
}
