//! The memory budget for request bodies that are received before their handlers start.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit of memory for all requests together.
#[derive(Debug)]
pub(crate) struct Budget {
    used_len: AtomicUsize,
    len_max: usize,
}

impl Budget {
    pub(crate) fn new(len_max: usize) -> Self {
        Self {
            used_len: AtomicUsize::new(0),
            len_max,
        }
    }

    pub(crate) fn used_len(&self) -> usize {
        self.used_len.load(Ordering::Relaxed)
    }
}

/// The share of one request in a budget; returned when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    budget: Arc<Budget>,
    len: usize,
}

impl Held {
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            len: 0,
        }
    }

    /// Adds `len` bytes; `false`, without effect, if the budget has fewer left.
    pub(crate) fn grow(&mut self, len: usize) -> bool {
        let used_len = self.budget.used_len.fetch_add(len, Ordering::Relaxed);
        if used_len.saturating_add(len) > self.budget.len_max {
            self.budget.used_len.fetch_sub(len, Ordering::Relaxed);
            return false;
        }
        self.len += len;
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.used_len.fetch_sub(self.len, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_limit_and_one_past() {
        let budget = Arc::new(Budget::new(10));
        let (mut first, mut second) = (Held::new(&budget), Held::new(&budget));
        assert!(first.grow(4) && second.grow(6));
        assert!(!first.grow(1));
        drop(second);
        assert!(first.grow(6));
        assert!(!first.grow(1));
        drop(first);
        assert_eq!(budget.used_len(), 0);
    }
}
