//! The count of TLS handshakes in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One of the TLS handshakes in progress.
#[derive(Debug)]
pub(crate) struct Shaking(Arc<AtomicUsize>);

impl Shaking {
    /// `None` if `max` are in progress already.
    pub(super) fn begin(count: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let shaking = Self(Arc::clone(count));
        let others = count.fetch_add(1, Ordering::Relaxed);
        // If there are too many, dropping `shaking` takes it off the count again.
        (others < max).then_some(shaking)
    }
}

impl Drop for Shaking {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
