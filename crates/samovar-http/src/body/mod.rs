//! Response bodies.
//!
//! A [`Source`] fills a [`Batch`]; a `Transfer` sends batches until the socket is full, keeps the
//! rest, and continues later. A body has at most one batch at a time.

mod batch;
#[cfg(feature = "http2")]
mod blocks;
#[cfg(feature = "http2")]
mod outflow;
mod pool;
pub(crate) mod sources;
mod transfer;

use std::io;

pub use batch::Batch;
#[cfg(feature = "http2")]
pub(crate) use blocks::{Block, Blocks};
#[cfg(feature = "http2")]
pub(crate) use outflow::{Outflow, Piece};
pub(crate) use pool::{Buffer, BufferPool};
pub(crate) use transfer::{Framing, Outcome, Transfer};

/// Whether a source has more bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// There are more bytes.
    More,
    /// The batch has the last bytes, or none.
    End,
    /// There will be more bytes, but not now. Bytes in the batch are sent. The source must arrange
    /// that [`Batch::waker`] is called when there are more; until then it is not pulled.
    Wait,
}

/// Produces a body piece by piece. Called on workers, so it may block on a disk.
pub trait Source: Send {
    /// The length of the whole body in bytes, if known in advance. It is announced to the client;
    /// if the source then yields more or fewer bytes, the connection is reset.
    fn len(&self) -> Option<u64>;

    /// Whether the body is known to be empty.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Adds bytes to `batch`: at least one, unless it returns [`Progress::End`] or
    /// [`Progress::Wait`]. More bytes mean fewer system calls on both sides. If the length is
    /// known, `End` must be returned with the last byte.
    ///
    /// # Errors
    ///
    /// Any; the connection is reset, or the answer replaced by 503 if none of it was sent.
    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress>;

    /// Called when the body has failed because a file range in a batch could not be read, or its
    /// file is shorter now. There is no further [`pull`](Self::pull).
    fn file_failed(&mut self, error: &io::Error) {
        // The observer gets a report in any case.
        let _unused = error;
    }

    /// Trailer fields, which are known only after the body: name and value. Called once after
    /// [`Progress::End`], if the client accepts trailers; see
    /// [`Response::trailers`](crate::Response::trailers).
    fn trailers(&mut self) -> Vec<(String, Vec<u8>)> {
        Vec::new()
    }
}
