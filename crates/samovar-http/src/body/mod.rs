//! Response bodies on their way to a socket.
//!
//! A [`Source`] fills a [`Batch`]; a `Transfer` sends batches until the socket takes no more, keeps
//! what is left, and goes on when it does. One batch at most exists for a body under way.

mod batch;
#[cfg(feature = "http2")]
mod blocks;
mod budget;
#[cfg(feature = "http2")]
mod outflow;
mod pool;
pub(crate) mod sources;
mod transfer;

use std::io;

pub use batch::Batch;
#[cfg(feature = "http2")]
pub(crate) use blocks::{Block, Blocks};
pub(crate) use budget::{Budget, Held};
#[cfg(feature = "http2")]
pub(crate) use outflow::{Outflow, Piece};
pub(crate) use pool::{Buffer, BufferPool};
pub(crate) use transfer::{Framing, Outcome, Transfer};

/// Whether a source has more to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// There is more.
    More,
    /// The batch holds the last bytes, or none.
    End,
    /// There will be more, but nothing is there now. The batch may hold bytes, which are sent.
    /// Before it says so, a source has to see to it that [`Batch::waker`] is called when there is
    /// more; until then it is not pulled.
    Wait,
}

/// A body that is produced piece by piece. Runs on workers, so it may block on a disk.
pub trait Source: Send {
    /// The length of the whole body in bytes, where it is known before it starts. It is announced
    /// to the peer, and a source that then yields another number of bytes has its connection
    /// reset, never ended well.
    fn len(&self) -> Option<u64>;

    /// Whether the body is known to be empty.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Adds bytes to `batch`: at least one, or [`Progress::End`], or [`Progress::Wait`]. The more,
    /// the fewer system calls on both sides. Where the length is known, `End` must come with the
    /// last byte.
    ///
    /// # Errors
    ///
    /// Any; the connection is reset, because part of the body has left already.
    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress>;

    /// Told that the body has failed because of a range of a file that was added to a batch: it
    /// cannot be read, or is shorter than it was. There is no further [`pull`](Self::pull).
    fn file_failed(&mut self, error: &io::Error) {
        // Most have nobody to tell; the server's observer is told in any case.
        let _unused = error;
    }

    /// Fields that are known only behind the body: name and value. Asked once after
    /// [`Progress::End`], and only where the peer can be told; see
    /// [`Response::trailers`](crate::Response::trailers).
    fn trailers(&mut self) -> Vec<(String, Vec<u8>)> {
        Vec::new()
    }
}
