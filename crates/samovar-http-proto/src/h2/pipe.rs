//! The two byte vectors between `h2` and the socket.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Size of buffered output, in bytes, above which `h2` must wait. One more frame may exceed it.
pub(super) const OUTPUT_LEN_MAX: usize = 64 * 1024;
/// Maximum capacity that an empty buffer keeps, in bytes.
const KEPT_LEN: usize = 8 * 1024;

#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// Bytes received from the peer; `h2` has already read `input[..read_len]`.
    input: Vec<u8>,
    read_len: usize,
    /// Bytes to be sent to the peer.
    pub(super) output: Vec<u8>,
    /// `output[..seen_len]` was already scanned for frames.
    pub(super) seen_len: usize,
}

/// An in-memory transport: `h2` owns one end, the session the other. Only one thread at a time uses
/// it, so its mutex is never contended.
#[derive(Debug, Clone, Default)]
pub(super) struct Pipe(Arc<Mutex<Buffers>>);

impl Pipe {
    pub(super) fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffers {
    /// Appends bytes from the peer.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Returns the number of bytes from the peer that `h2` has not read.
    pub(super) fn input_len(&self) -> usize {
        self.input.len() - self.read_len
    }

    /// Appends the output to `out`.
    pub(super) fn take_output(&mut self, out: &mut Vec<u8>) {
        if out.is_empty() {
            std::mem::swap(&mut self.output, out);
        } else {
            out.append(&mut self.output);
        }
        self.seen_len = 0;
        empty(&mut self.output);
    }

    fn read(&mut self, room: &mut ReadBuf<'_>) {
        let rest = self.input.get(self.read_len..).unwrap_or_default();
        let len = rest.len().min(room.remaining());
        room.put_slice(rest.get(..len).unwrap_or_default());
        self.read_len += len;
        if self.read_len == self.input.len() {
            self.read_len = 0;
            empty(&mut self.input);
        }
    }
}

/// Empties a buffer, and frees its memory if that is more than [`KEPT_LEN`].
fn empty(bytes: &mut Vec<u8>) {
    bytes.clear();
    if bytes.capacity() > KEPT_LEN {
        *bytes = Vec::new();
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut buffers = self.lock();
        if buffers.input_len() == 0 {
            return Poll::Pending;
        }
        buffers.read(room);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffers = self.lock();
        if buffers.output.len() >= OUTPUT_LEN_MAX {
            return Poll::Pending;
        }
        buffers.output.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    /// Completes at once: the owner of the socket sends the buffered bytes.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
