//! Buffers for bodies under way, bounded in sum.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A batch's memory while there is plenty: large enough that a body costs few system calls on both
/// sides, small enough to stay in the second-level cache.
const LARGE_LEN: usize = 256 * 1024;
/// A batch's memory once the budget is spent. What a slow reader costs at least.
const SMALL_LEN: usize = 16 * 1024;

/// Hands out buffers; past the budget they are small, so that memory grows with the number of slow
/// readers by [`SMALL_LEN`] each and no more.
#[derive(Debug)]
pub(crate) struct BufferPool {
    free: Mutex<Vec<Box<[u8]>>>,
    free_max: usize,
    used_len: AtomicUsize,
    budget_len: usize,
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

    pub(crate) fn take(&self) -> Box<[u8]> {
        let used = self.used_len.load(Ordering::Relaxed);
        let len = if used + LARGE_LEN <= self.budget_len {
            LARGE_LEN
        } else {
            SMALL_LEN
        };
        self.used_len.fetch_add(len, Ordering::Relaxed);
        if len == LARGE_LEN
            && let Some(buffer) = self
                .free
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop()
        {
            return buffer;
        }
        vec![0; len].into_boxed_slice()
    }

    pub(crate) fn give_back(&self, buffer: Box<[u8]>) {
        self.used_len.fetch_sub(buffer.len(), Ordering::Relaxed);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.len() == LARGE_LEN && free.len() < self.free_max {
            free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_the_budget_buffers_are_small() {
        let pool = BufferPool::new(2 * LARGE_LEN, 1);
        let (first, second) = (pool.take(), pool.take());
        assert_eq!((first.len(), second.len()), (LARGE_LEN, LARGE_LEN));
        let third = pool.take();
        assert_eq!(third.len(), SMALL_LEN);
        pool.give_back(third);
        pool.give_back(first);
        assert_eq!(pool.take().len(), LARGE_LEN);
        pool.give_back(second);
        assert_eq!(pool.free.lock().unwrap().len(), 1);
    }
}
