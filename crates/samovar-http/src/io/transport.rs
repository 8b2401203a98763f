//! The way bytes take between a connection and the kernel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::sys;
#[cfg(feature = "tls")]
use crate::tls;

/// A socket that does not block, or what is layered on one.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Bytes as they are.
    Plain(OwnedFd),
    /// Records of TLS.
    #[cfg(feature = "tls")]
    Tls(Box<tls::Stream>),
}

impl Transport {
    /// Reads; `None` when nothing has arrived, `Some(0)` at the end.
    pub(crate) fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self {
            Self::Plain(socket) => sys::recv(socket, buffer),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.recv(buffer),
        }
    }

    /// Takes bytes to be sent; `None` when it takes nothing now. `more`: further bytes follow at
    /// once.
    pub(crate) fn send(&mut self, bytes: &[u8], more: bool) -> io::Result<Option<usize>> {
        match self {
            Self::Plain(socket) => sys::send(socket, bytes, more),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.send(bytes, more),
        }
    }

    /// Hands to the kernel what was taken but is not there yet; `true` once nothing is left.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(_) => Ok(true),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.flush(),
        }
    }

    /// Whether the handshake has agreed on HTTP/2.
    #[cfg(all(feature = "http2", feature = "tls"))]
    pub(crate) fn speaks_http2(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.alpn() == Some(b"h2"),
        }
    }

    /// Whether something was taken that is not with the kernel yet.
    pub(crate) fn has_pending(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.has_pending(),
        }
    }

    /// Whether another read may find something, after one that gave `len` for a buffer of
    /// `buffer_len`. A short read of a plain socket has taken all there was, and the next arrival
    /// makes a new event; but the end of the stream, once announced, is not announced again.
    pub(crate) fn may_have_more(
        &self,
        len: Option<usize>,
        buffer_len: usize,
        peer_ended: bool,
    ) -> bool {
        let is_drained_by_short_read = match self {
            Self::Plain(_) => true,
            #[cfg(feature = "tls")]
            Self::Tls(_) => false,
        };
        len.is_some_and(|len| len == buffer_len || peer_ended || !is_drained_by_short_read)
    }

    /// The socket, where file ranges may go to it past this process.
    pub(crate) fn plain(&self) -> Option<&OwnedFd> {
        match self {
            Self::Plain(socket) => Some(socket),
            #[cfg(feature = "tls")]
            Self::Tls(_) => None,
        }
    }

    /// Whether the kernel sends a range of a file faster than this process could.
    pub(crate) fn prefers_files(&self) -> bool {
        self.plain().is_some_and(sys::prefers_files)
    }

    /// Says that nothing more will be written; the peer may still write.
    pub(crate) fn shutdown_write(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => sys::shutdown_write(socket),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.shutdown_write(),
        }
    }

    /// Before a close that is not a failure: tells the peer that it has all there is, where the
    /// close alone would not. Best effort: a peer that reads nothing is not told.
    pub(crate) fn say_goodbye(&mut self) {
        match self {
            Self::Plain(_) => {}
            #[cfg(feature = "tls")]
            Self::Tls(stream) => drop(stream.shutdown_write()),
        }
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) => socket.as_fd(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.as_fd(),
        }
    }
}
