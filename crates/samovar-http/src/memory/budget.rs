//! Memory and concurrency limits that all threads of a server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A server-wide limit, in bytes of memory or in number of operations in progress.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicUsize,
    max: usize,
}

impl Budget {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            used: AtomicUsize::new(0),
            max,
        }
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Reserves one unit; returns `None` if the budget is exhausted.
    pub(crate) fn take_one(self: &Arc<Self>) -> Option<Held> {
        let mut held = Held::new(self);
        held.grow(1).then_some(held)
    }
}

/// A reserved part of a budget, released when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    budget: Arc<Budget>,
    count: usize,
}

impl Held {
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            count: 0,
        }
    }

    /// Reserves `count` more units; returns `false` without effect if the budget has fewer left.
    pub(crate) fn grow(&mut self, count: usize) -> bool {
        let used = self.budget.used.fetch_add(count, Ordering::Relaxed);
        if used.saturating_add(count) > self.budget.max {
            self.budget.used.fetch_sub(count, Ordering::Relaxed);
            return false;
        }
        self.count += count;
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_beyond_the_limit_fails_without_effect() {
        let budget = Arc::new(Budget::new(10));
        let (mut first, mut second) = (Held::new(&budget), Held::new(&budget));
        assert!(first.grow(4) && second.grow(6));
        assert!(!first.grow(1));
        drop(second);
        assert!(first.grow(6));
        assert!(!first.grow(1));
        drop(first);
        assert_eq!(budget.used(), 0);
    }
}
