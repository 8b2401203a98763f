//! Buffers for response bodies, within a memory budget.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::sync::Lock;

/// Length of a buffer that is allocated while the memory budget lasts, in bytes: long enough to
/// need few system calls on both sides, short enough for the L2 cache.
const LARGE_LEN: usize = 256 * 1024;
/// Length of a buffer that is allocated once the memory budget is exhausted, in bytes. It is the
/// minimum memory that a slow reader occupies.
const SMALL_LEN: usize = 16 * 1024;

/// Allocates buffers for response bodies. Beyond the memory budget it allocates small ones, so that
/// each slow reader adds only [`SMALL_LEN`].
#[derive(Debug)]
pub(crate) struct BufferPool {
    free: Mutex<Vec<Box<[u8]>>>,
    free_max: usize,
    used_len: AtomicUsize,
    budget_len: usize,
}

/// A buffer that counts towards the memory budget until it is dropped, also if a panic drops it: a
/// leak in the budget would limit all later bodies to small buffers.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) bytes: Box<[u8]>,
    pool: Arc<BufferPool>,
}

impl Default for BufferPool {
    /// Creates a pool without a budget, which allocates small buffers and keeps none.
    fn default() -> Self {
        Self::new(0, 0)
    }
}

impl BufferPool {
    pub(crate) fn new(budget_len: usize, free_max: usize) -> Self {
        Self {
            free: Mutex::default(),
            free_max,
            used_len: AtomicUsize::new(0),
            budget_len,
        }
    }

    pub(crate) fn take(self: &Arc<Self>) -> Buffer {
        let used = self.used_len.load(Ordering::Relaxed);
        let len = if used.saturating_add(LARGE_LEN) <= self.budget_len {
            LARGE_LEN
        } else {
            SMALL_LEN
        };
        self.used_len.fetch_add(len, Ordering::Relaxed);
        let free = (len == LARGE_LEN)
            .then(|| self.free.locked().pop())
            .flatten();
        Buffer {
            bytes: free.unwrap_or_else(|| vec![0; len].into_boxed_slice()),
            pool: Arc::clone(self),
        }
    }

    /// Creates a buffer without memory.
    pub(crate) fn none(self: &Arc<Self>) -> Buffer {
        Buffer {
            bytes: Box::default(),
            pool: Arc::clone(self),
        }
    }

    /// Returns the total length of all buffers in use, in bytes.
    pub(crate) fn used_len(&self) -> usize {
        self.used_len.load(Ordering::Relaxed)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.pool.used_len.fetch_sub(bytes.len(), Ordering::Relaxed);
        let mut free = self.pool.free.locked();
        if bytes.len() == LARGE_LEN && free.len() < self.pool.free_max {
            free.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_beyond_the_budget_are_small() {
        let pool = Arc::new(BufferPool::new(2 * LARGE_LEN, 1));
        let (first, second) = (pool.take(), pool.take());
        assert_eq!(
            (first.bytes.len(), second.bytes.len()),
            (LARGE_LEN, LARGE_LEN)
        );
        let third = pool.take();
        assert_eq!(third.bytes.len(), SMALL_LEN);
        drop((third, first));
        assert_eq!(pool.take().bytes.len(), LARGE_LEN);
        drop(second);
        assert_eq!(pool.free.locked().len(), 1);
        assert_eq!(pool.used_len.load(Ordering::Relaxed), 0);
    }
}
