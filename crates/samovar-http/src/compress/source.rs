//! A body that is compressed while it is sent.

use std::io;
use std::time::Instant;

use super::encoder::Encoder;
use crate::body::{Batch, Progress, Source, account};
use crate::memory::Held;

/// Number of bytes passed to the encoder at once.
const PIECE_LEN: usize = 16 * 1024;

/// A source that yields the compressed bytes of another source.
pub(super) struct Compressed {
    inner: Box<dyn Source>,
    /// Number of bytes that `inner` has announced and not yielded yet; `None` if it has announced
    /// no length. The compressed body has no length, so the client cannot notice that bytes are
    /// missing.
    left: Option<u64>,
    /// A batch with bytes from `inner` that are not encoded yet; `None` if there are none.
    batch: Option<Batch>,
    /// The encoder; `None` once `ready` contains the end of the compressed body.
    encoder: Option<Encoder>,
    /// Compressed bytes. Those from index `ready_at` on are not sent yet.
    ready: Vec<u8>,
    ready_at: usize,
    /// Whether bytes were encoded after the last flush.
    has_unflushed: bool,
    /// Result of the most recent pull of `inner`.
    progress: Progress,
    _slot: Held,
}

impl Compressed {
    pub(super) fn new(inner: Box<dyn Source>, encoder: Encoder, slot: Held) -> Self {
        Self {
            left: inner.len(),
            inner,
            batch: None,
            encoder: Some(encoder),
            ready: Vec::new(),
            ready_at: 0,
            has_unflushed: false,
            progress: Progress::More,
            _slot: slot,
        }
    }

    /// Moves compressed bytes into `out`; returns `false` if some did not fit.
    fn put_ready(&mut self, out: &mut Batch) -> bool {
        let rest = self.ready.get(self.ready_at..).unwrap_or_default();
        self.ready_at += out.put(rest);
        if self.ready_at < self.ready.len() {
            return false;
        }
        (self.ready, self.ready_at) = (Vec::new(), 0);
        true
    }

    /// Encodes the next piece; returns `false` if there is none.
    fn feed(&mut self, encoder: &mut Encoder) -> io::Result<bool> {
        let Some(batch) = &mut self.batch else {
            return Ok(false);
        };
        let mut piece = [0; PIECE_LEN];
        let inner = &mut self.inner;
        let read = batch.read(&mut piece);
        let len = read.inspect_err(|error| inner.file_failed(error))?;
        if len == 0 {
            // Free the buffer unless the next pull needs it at once.
            batch.clear();
            return Ok(false);
        }
        self.has_unflushed = true;
        encoder.write(piece.get(..len).unwrap_or_default())?;
        Ok(true)
    }

    /// Pulls the inner source.
    fn pull_inner(&mut self, out: &Batch) -> io::Result<()> {
        let mut batch = self
            .batch
            .take()
            .unwrap_or_else(|| Batch::new(out.waker().clone()));
        let before = batch.added_len();
        self.progress = self.inner.pull(&mut batch)?;
        account(&mut self.left, self.progress, batch.added_len() - before)?;
        self.batch = Some(batch);
        Ok(())
    }
}

impl Source for Compressed {
    fn len(&self) -> Option<u64> {
        None
    }

    fn may_wait(&self) -> bool {
        self.inner.may_wait()
    }

    fn next_pull(&self) -> Option<Instant> {
        self.inner.next_pull()
    }

    fn pull(&mut self, out: &mut Batch) -> io::Result<Progress> {
        let before = out.added_len();
        let mut has_pulled = false;
        loop {
            if !self.put_ready(out) || out.room_len() == 0 {
                return Ok(Progress::More);
            }
            let Some(mut encoder) = self.encoder.take() else {
                return Ok(Progress::End);
            };
            if self.feed(&mut encoder)? {
                self.ready = encoder.take();
                self.encoder = Some(encoder);
                continue;
            }
            match self.progress {
                Progress::End => {
                    self.batch = None;
                    self.ready = encoder.finish()?;
                }
                Progress::Wait if has_pulled => {
                    self.batch = None;
                    if std::mem::take(&mut self.has_unflushed) {
                        encoder.flush()?;
                        self.ready = encoder.take();
                    }
                    self.encoder = Some(encoder);
                    let is_out = self.put_ready(out);
                    // Some bytes did not fit into this batch; they are sent first. The next pull of
                    // this source pulls the inner source again, which then reports `Wait` again.
                    return Ok(if is_out {
                        Progress::Wait
                    } else {
                        Progress::More
                    });
                }
                Progress::More if out.added_len() > before && has_pulled => {
                    self.encoder = Some(encoder);
                    return Ok(Progress::More);
                }
                Progress::More | Progress::Wait => {
                    has_pulled = true;
                    self.encoder = Some(encoder);
                    self.pull_inner(out)?;
                }
            }
        }
    }
}
