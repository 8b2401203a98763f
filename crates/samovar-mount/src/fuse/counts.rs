//! [`Counts`]: numbers of requests of the kernel.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers of requests of the kernel to a mounted file system.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) lookups: AtomicU64,
    pub(super) attributes: AtomicU64,
    pub(super) listings: AtomicU64,
    pub(super) reads: AtomicU64,
    /// Requests of kinds that the kernel sends once, because the answer says that they are not
    /// needed.
    pub(super) others: AtomicU64,
}

/// Adds 1 to a counter.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl fmt::Display for Counts {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (&self.lookups, "lookups"),
            (&self.attributes, "attributes"),
            (&self.listings, "listings"),
            (&self.reads, "reads"),
            (&self.others, "others"),
        ];
        for (at, (counter, name)) in names.into_iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(to, "{separator}{} {name}", counter.load(Ordering::Relaxed))?;
        }
        Ok(())
    }
}
