//! The socket of a connection, with or without TLS.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys;
use crate::tls;

/// A non-blocking socket, with or without TLS.
#[derive(Debug)]
pub(crate) enum Transport {
    /// A socket without TLS.
    Plain(OwnedFd),
    /// A socket whose bytes are encrypted by TLS.
    Tls(Box<tls::Stream>),
}

impl Transport {
    /// Reads; returns `None` if no bytes are available, and `Some(0)` at the end of the stream.
    pub(crate) fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self {
            Self::Plain(socket) => sys::recv(socket, buffer),
            Self::Tls(stream) => stream.recv(buffer),
        }
    }

    /// Sends bytes; returns `None` if the socket buffer is full. `more`: the caller sends further
    /// bytes at once.
    pub(crate) fn send(&mut self, bytes: &[u8], more: bool) -> io::Result<Option<usize>> {
        match self {
            Self::Plain(socket) => sys::send(socket, bytes, more),
            Self::Tls(stream) => stream.send(bytes, more),
        }
    }

    /// Sends until all bytes are sent or the socket buffer is full; returns the number of bytes
    /// sent.
    pub(crate) fn send_all(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent_len = 0;
        while sent_len < bytes.len() {
            match self.send(&bytes[sent_len..], false)? {
                Some(len) => sent_len += len,
                None => break,
            }
        }
        Ok(sent_len)
    }

    /// Sends bytes that were accepted earlier but did not reach the kernel; returns `true` if none
    /// remain.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(_) => Ok(true),
            Self::Tls(stream) => stream.flush(),
        }
    }

    /// Returns whether the TLS handshake has negotiated HTTP/2.
    pub(crate) fn speaks_http2(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.alpn() == Some(b"h2"),
        }
    }

    /// Returns whether accepted bytes have not reached the kernel yet.
    pub(crate) fn has_pending(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.has_pending(),
        }
    }

    /// Returns whether another read may return data, after a read of `len` bytes into a buffer of
    /// `buffer_len` bytes. A short read without TLS has taken all bytes of the socket, and new
    /// bytes cause another event. But the kernel does not report the end of the stream a second
    /// time.
    pub(crate) fn may_have_more(
        &self,
        len: Option<usize>,
        buffer_len: usize,
        peer_ended: bool,
    ) -> bool {
        let is_tls = self.plain().is_none();
        len.is_some_and(|len| len == buffer_len || peer_ended || is_tls)
    }

    /// Returns the socket if the kernel can send file ranges to it; `None` with TLS.
    pub(crate) fn plain(&self) -> Option<&OwnedFd> {
        match self {
            Self::Plain(socket) => Some(socket),
            Self::Tls(_) => None,
        }
    }

    /// Shuts down the sending side; the peer may still send.
    pub(crate) fn shutdown_write(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => sys::shutdown_write(socket),
            Self::Tls(stream) => stream.shutdown_write(),
        }
    }

    /// Makes the next close reset the connection, so that the client does not mistake a truncated
    /// response for a complete one.
    pub(crate) fn reset_on_close(&self) {
        // If this fails, the client still sees a premature end of the response.
        drop(sys::reset_on_close(self));
    }

    /// Sends `close_notify` before a regular close if the connection uses TLS. Best effort: the
    /// message is lost if the socket buffer is full.
    pub(crate) fn say_goodbye(&mut self) {
        match self {
            Self::Plain(_) => {}
            Self::Tls(stream) => drop(stream.shutdown_write()),
        }
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) => socket.as_fd(),
            Self::Tls(stream) => stream.as_fd(),
        }
    }
}
