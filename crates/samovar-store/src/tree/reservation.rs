//! Shares of what all readers of the process have together.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A share of something that is limited for the whole process; returned when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    reserved: &'static AtomicUsize,
    count: usize,
}

impl Reservation {
    /// A share of nothing yet, in that of which `reserved` counts what is given away.
    pub(super) fn empty(reserved: &'static AtomicUsize) -> Self {
        Self { reserved, count: 0 }
    }

    /// How much this is.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Takes `count` more, unless all shares together would be more than `limit`; says whether it
    /// did.
    pub(super) fn try_grow(&mut self, count: usize, limit: usize) -> bool {
        let grow = |reserved: usize| reserved.checked_add(count).filter(|sum| *sum <= limit);
        let is_grown = self
            .reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow)
            .is_ok();
        if is_grown {
            self.count += count;
        }
        is_grown
    }

    /// Returns what is above `count`.
    pub(super) fn shrink_to(&mut self, count: usize) {
        let returned = self.count.saturating_sub(count);
        self.reserved.fetch_sub(returned, Ordering::Relaxed);
        self.count -= returned;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_limit_and_past_it() {
        static RESERVED: AtomicUsize = AtomicUsize::new(0);
        let mut shares = [(); 3].map(|()| Reservation::empty(&RESERVED));
        assert!(shares[0].try_grow(64, 128) && shares[1].try_grow(64, 128));
        assert!(!shares[2].try_grow(1, 128));
        shares[0].shrink_to(63);
        assert!(!shares[2].try_grow(2, 128));
        assert!(shares[2].try_grow(1, 128));
        assert_eq!(shares.each_ref().map(Reservation::count), [63, 64, 1]);
        drop(shares);
        assert_eq!(RESERVED.load(Ordering::Relaxed), 0);
    }
}
