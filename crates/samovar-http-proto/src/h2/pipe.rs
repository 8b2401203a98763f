//! The two byte vectors between `h2` and the socket.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes waiting for the socket past which `h2` has to wait. One frame more may get in.
pub(super) const OUTPUT_LEN_MAX: usize = 64 * 1024;
/// A vector with more memory than this gives it back when it is empty, in bytes.
const KEPT_LEN: usize = 8 * 1024;

#[derive(Debug, Default)]
pub(super) struct Buffers {
    /// From the peer; `input[..read_len]` is with `h2`.
    input: Vec<u8>,
    read_len: usize,
    /// For the peer.
    pub(super) output: Vec<u8>,
    /// `output[..seen_len]` has been scanned.
    pub(super) seen_len: usize,
}

/// One end of it is what `h2` takes for a socket; the other is the session's. Both are used by one
/// thread at a time, so the lock is always free: it is here because `h2` keeps its end.
#[derive(Debug, Clone, Default)]
pub(super) struct Pipe(Arc<Mutex<Buffers>>);

impl Pipe {
    pub(super) fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffers {
    /// Adds bytes from the peer.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Bytes from the peer that `h2` has not taken.
    pub(super) fn input_len(&self) -> usize {
        self.input.len() - self.read_len
    }

    /// Moves what is for the peer to the end of `out`.
    pub(super) fn take_output(&mut self, out: &mut Vec<u8>) {
        if out.is_empty() {
            std::mem::swap(&mut self.output, out);
        } else {
            out.append(&mut self.output);
        }
        self.seen_len = 0;
        relax(&mut self.output);
    }

    fn read(&mut self, room: &mut ReadBuf<'_>) {
        let rest = self.input.get(self.read_len..).unwrap_or_default();
        let len = rest.len().min(room.remaining());
        room.put_slice(rest.get(..len).unwrap_or_default());
        self.read_len += len;
        if self.read_len == self.input.len() {
            self.read_len = 0;
            relax(&mut self.input);
        }
    }
}

fn relax(bytes: &mut Vec<u8>) {
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

    /// What is in memory is as good as sent: the last of it is flushed by whoever has the socket.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
