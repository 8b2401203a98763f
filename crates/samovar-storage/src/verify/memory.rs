//! [`Memory`]: the budget for the windows of decompressors.

use std::io;

/// Grants memory to one verification.
pub trait Memory {
    /// Increases the reserved memory to `len` bytes. The first call may wait for memory that other
    /// verifications use. Later calls fail instead of waiting: two verifications that each hold
    /// memory could otherwise wait for each other.
    ///
    /// # Errors
    ///
    /// [`MemoryError`]; then the reserved memory is unchanged.
    fn reserve(&mut self, len: u64) -> Result<(), MemoryError>;
}

/// Reason why an upload was not admitted or got no memory.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Other uploads occupied the slots or the memory for too long.
    #[error("too many uploads are in progress; repeat this one later")]
    Busy,
    /// Waiting ended because the server is stopping.
    #[error(transparent)]
    Stopped(io::Error),
}

/// Grants any amount immediately, where the number of verifications is limited by other means.
#[derive(Debug, Clone, Copy)]
pub struct Unlimited;

impl Memory for Unlimited {
    fn reserve(&mut self, _len: u64) -> Result<(), MemoryError> {
        Ok(())
    }
}
