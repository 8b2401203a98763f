//! How many files all readers of the process together may open ahead.
//!
//! A reader that looks ahead holds up to 64 descriptors. A hundred of them on a cold disk would use
//! up what the process may have, and then every connection would suffer: so together they get a
//! quarter of it, and the ones that come too late read one file after another.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Resource;

/// Descriptors a process has when nothing limits it, for the purpose of dividing them.
const UNLIMITED: u64 = 65_536;

static RESERVED: AtomicUsize = AtomicUsize::new(0);

/// The right to open so many files ahead; returned when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    count: usize,
}

impl Reservation {
    /// Reserves `count` files, unless too many are reserved already.
    pub(super) fn try_new(count: usize) -> Option<Self> {
        Self::try_within(count, limit())
    }

    fn try_within(count: usize, limit: usize) -> Option<Self> {
        let reserve = |reserved: usize| reserved.checked_add(count).filter(|sum| *sum <= limit);
        RESERVED
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve)
            .ok()
            .map(|_before| Self { count })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        RESERVED.fetch_sub(self.count, Ordering::Relaxed);
    }
}

fn limit() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let limit = rustix::process::getrlimit(Resource::Nofile).current;
        usize::try_from(limit.unwrap_or(UNLIMITED).min(UNLIMITED) / 4).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_limit_and_past_it() {
        let reserve = || Reservation::try_within(64, 128);
        let first = reserve();
        let second = reserve();
        assert!(first.is_some() && second.is_some());
        assert!(reserve().is_none());
        drop(first);
        assert!(reserve().is_some());
    }
}
