//! The way bytes take between a connection and the kernel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::sys;

/// A socket that does not block, or what is layered on one.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Bytes as they are.
    Plain(OwnedFd),
}

impl Transport {
    /// Reads; `None` when nothing has arrived, `Some(0)` at the end.
    pub(crate) fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self {
            Self::Plain(socket) => sys::recv(socket, buffer),
        }
    }

    /// Takes bytes to be sent; `None` when it takes nothing now. `more`: further bytes follow at
    /// once.
    pub(crate) fn send(&mut self, bytes: &[u8], more: bool) -> io::Result<Option<usize>> {
        match self {
            Self::Plain(socket) => sys::send(socket, bytes, more),
        }
    }

    /// Hands to the kernel what was taken but is not there yet; `true` once nothing is left.
    #[expect(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        reason = "a plain socket holds nothing back; other transports do"
    )]
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// Whether a read that did not fill its buffer has taken all there was.
    pub(crate) fn is_drained_by_short_read(&self) -> bool {
        match self {
            Self::Plain(_) => true,
        }
    }

    /// The socket, where file ranges may go to it past this process.
    pub(crate) fn plain(&self) -> Option<&OwnedFd> {
        match self {
            Self::Plain(socket) => Some(socket),
        }
    }

    /// Says that nothing more will be written; the peer may still write.
    pub(crate) fn shutdown_write(&mut self) -> io::Result<()> {
        sys::shutdown_write(self.as_fd())
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) => socket.as_fd(),
        }
    }
}
