//! Shares of a process-wide budget, such as memory or descriptors.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A share of a process-wide budget. Dropping it gives the share back.
#[derive(Debug)]
pub(super) struct Reservation {
    reserved: &'static AtomicUsize,
    count: usize,
}

impl Reservation {
    /// Creates an empty share of the budget that `reserved` counts.
    pub(super) fn empty(reserved: &'static AtomicUsize) -> Self {
        Self { reserved, count: 0 }
    }

    /// Returns the size of the share.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Adds `count` to the share unless the sum of all shares would exceed `limit`. Returns whether
    /// the share has grown.
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

    /// Reduces the share to `count`; the rest goes back to the budget.
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
    fn shares_are_granted_up_to_the_limit() {
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
