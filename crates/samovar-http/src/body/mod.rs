//! Response bodies.
//!
//! A [`Source`] fills a [`Batch`]. A `Transfer` sends batches until the socket buffer is full,
//! keeps the unsent rest, and continues when the socket is writable. Each body has at most one
//! batch at a time.

mod batch;
mod outflow;
pub(crate) mod sources;
mod transfer;

use std::fmt;
use std::io;
use std::time::Instant;

pub use batch::Batch;
pub(crate) use outflow::{Outflow, Piece};
#[cfg(feature = "compression")]
pub(crate) use transfer::account;
pub(crate) use transfer::{Framing, Outcome, Transfer};

/// Result of [`Source::pull`], which states whether the source can yield more bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// There are more bytes.
    More,
    /// The body is complete: the batch holds its last bytes, if any.
    End,
    /// More bytes will follow later. Bytes already in the batch are sent. The source must arrange a
    /// call of [`Batch::waker`] when it has more; it is not pulled before that call.
    Wait,
}

/// Produces a body piece by piece. Called on workers, so it may block on disk I/O.
pub trait Source: Send {
    /// Returns the length of the whole body in bytes; `None` if it is not known in advance. The
    /// length is sent to the client; if the source then yields more or fewer bytes, the connection
    /// is reset.
    fn len(&self) -> Option<u64>;

    /// Returns whether the body is known to be empty.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Adds at least one byte to `batch`, unless it returns [`Progress::End`] or
    /// [`Progress::Wait`]. Larger batches mean fewer system calls on both sides. A source of known
    /// length must return `End` together with its last byte.
    ///
    /// # Errors
    ///
    /// Any error fails the body: the connection is reset, or the client gets 503 if no byte of the
    /// response was sent yet.
    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress>;

    /// Returns whether [`pull`](Self::pull) may wait for something other than a disk, for any time.
    /// During such a pull the worker slot is lent to other jobs, and a client that leaves is
    /// noticed. Constant for each source.
    #[doc(hidden)]
    fn may_wait(&self) -> bool {
        false
    }

    /// Returns the time at which the source must be pulled again after [`Progress::Wait`], although
    /// no [`Waker`](crate::Waker) was called; `None` if there is none. Precise to a quarter of a
    /// second.
    #[doc(hidden)]
    fn next_pull(&self) -> Option<Instant> {
        None
    }

    /// Reports that the body has failed because a file range of a batch could not be read, or the
    /// file is shorter than the range. [`pull`](Self::pull) is not called again.
    fn file_failed(&mut self, error: &io::Error) {
        // The observer receives a report even if the source ignores the error.
        let _unused = error;
    }
}

impl fmt::Debug for dyn Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}
