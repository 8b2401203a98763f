//! Recycled memory blocks for pieces of response bodies.
//!
//! Each block is filled by one thread and dropped by another. Allocators tend to return such memory
//! to the kernel and fault it in again, which costs as much as reading the file.

use std::sync::{Arc, Mutex};

use crate::sync::Lock;

/// Maximum total length of unused blocks, in bytes; further blocks are freed.
const KEPT_LEN: usize = 4 << 20;

/// Pool of unused blocks.
#[derive(Debug, Default)]
pub(crate) struct Blocks(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    blocks: Vec<Box<[u8]>>,
    len: usize,
}

/// A memory block whose first part is filled. Returns to its pool when dropped.
#[derive(Debug)]
pub(crate) struct Block {
    bytes: Box<[u8]>,
    /// Length of the filled part, in bytes. Invariant: at most the length of `bytes`.
    filled_len: usize,
    blocks: Arc<Blocks>,
}

impl Blocks {
    /// Takes an empty block of at least `len` bytes from the pool, or allocates one.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Block {
        let len = len.next_power_of_two();
        let mut kept = self.0.locked();
        let fitting = kept.blocks.iter().rposition(|block| block.len() == len);
        let block = fitting.map(|at| kept.blocks.swap_remove(at));
        if block.is_some() {
            kept.len -= len;
        }
        drop(kept);
        Block {
            bytes: block.unwrap_or_else(|| vec![0; len].into_boxed_slice()),
            filled_len: 0,
            blocks: Arc::clone(self),
        }
    }
}

impl Block {
    /// Returns the free part of the block.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled_len..]
    }

    /// Adds the first `len` bytes of the free part to the filled part.
    pub(crate) fn advance(&mut self, len: usize) {
        self.filled_len = (self.filled_len + len).min(self.bytes.len());
    }

    /// Returns the length of the filled part, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.filled_len
    }

    /// Returns whether less than a quarter of the block is filled.
    pub(crate) fn is_sparse(&self) -> bool {
        self.filled_len < self.bytes.len() / 4
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.filled_len]
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut kept = self.blocks.0.locked();
        if kept.len + bytes.len() <= KEPT_LEN {
            kept.len += bytes.len();
            kept.blocks.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_blocks_are_reused_up_to_the_limit() {
        let blocks = Arc::new(Blocks::default());
        let mut block = blocks.take(10_000);
        assert_eq!(block.room().len(), 16_384);
        block.room()[..3].copy_from_slice(b"abc");
        block.advance(3);
        assert_eq!((block.as_ref(), block.is_sparse()), (&b"abc"[..], true));
        drop(block);
        assert_eq!(blocks.0.lock().unwrap().len, 16_384);
        assert_eq!(blocks.take(16_384).len(), 0);
        let many: Vec<_> = (0..20).map(|_| blocks.take(256 * 1024)).collect();
        drop(many);
        assert!(blocks.0.lock().unwrap().len <= KEPT_LEN);
    }
}
