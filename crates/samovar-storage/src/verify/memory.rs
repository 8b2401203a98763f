//! [`Memory`]: the budget for the windows of decompressors.

use std::io;

/// Reserves memory for one verification.
pub trait Memory {
    /// Increases the reserved memory to `len` bytes. The first call may wait for memory that other
    /// verifications use. Later calls fail instead of waiting: two verifications that each hold
    /// memory could otherwise wait for each other.
    ///
    /// # Errors
    ///
    /// [`MemoryError`]. The reserved memory is unchanged then.
    fn reserve(&mut self, len: u64) -> Result<(), MemoryError>;
}

/// Reason why an upload gets no slot or no memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Other uploads occupied the slots or the memory for too long.
    #[error("too many uploads are in progress; repeat this one later")]
    Busy,
    /// Waiting ended because the server is stopping.
    #[error(transparent)]
    Stopped(io::Error),
}

/// Grants any amount immediately. For verifications whose number is limited by other means.
#[derive(Debug, Clone, Copy)]
pub struct Unlimited;

impl Memory for Unlimited {
    fn reserve(&mut self, _len: u64) -> Result<(), MemoryError> {
        Ok(())
    }
}
