//! [`Memory`]: the budget of a verification: memory for the windows of decompressors, and turns of
//! a processor.

use std::io;

/// Reserves memory and turns of a processor for one verification.
pub trait Memory {
    /// Increases the reserved memory to `len` bytes. The first call may wait for memory that other
    /// verifications use. Later calls fail instead of waiting: two verifications that each hold
    /// memory could otherwise wait for each other.
    ///
    /// # Errors
    ///
    /// [`MemoryError`]. The reserved memory is unchanged then.
    fn reserve(&mut self, len: u64) -> Result<(), MemoryError>;

    /// Called before the next piece of content is decompressed and hashed, with the length of the
    /// content so far. May wait for a turn, and may end the present one. By default, work needs no
    /// turn.
    ///
    /// # Errors
    ///
    /// [`MemoryError::Stopped`] if the request cannot continue.
    fn work(&mut self, content_len: u64) -> Result<(), MemoryError> {
        let _needs_no_turn = content_len;
        Ok(())
    }

    /// Called before the body is read, which may wait for the client: ends the turn.
    fn rest(&mut self) {}
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
