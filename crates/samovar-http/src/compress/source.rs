//! A body compressed on its way.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::encoder::Encoder;
use crate::body::{Batch, Progress, Source};

/// Bytes given to the encoder at once.
const PIECE_LEN: usize = 16 * 1024;

/// Yields what another source yields, compressed.
pub(super) struct Compressed {
    inner: Box<dyn Source>,
    /// What `inner` has given and the encoder has not had yet.
    batch: Option<Batch>,
    /// `None` once the end is in `ready`.
    encoder: Option<Encoder>,
    /// What has been compressed, from `ready_at` on still to go out.
    ready: Vec<u8>,
    ready_at: usize,
    /// Whether the encoder has had bytes since it was last flushed.
    has_unflushed: bool,
    /// What `inner` said with its last batch.
    progress: Progress,
    _place: Place,
}

/// One of the bodies that may be compressed at a time.
pub(super) struct Place(Arc<AtomicUsize>);

impl Place {
    /// `None` if all are taken.
    pub(super) fn take(count: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let place = Self(Arc::clone(count));
        // One too many is put back by dropping the place.
        (count.fetch_add(1, Ordering::Relaxed) < max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Compressed {
    pub(super) fn new(inner: Box<dyn Source>, encoder: Encoder, place: Place) -> Self {
        Self {
            inner,
            batch: None,
            encoder: Some(encoder),
            ready: Vec::new(),
            ready_at: 0,
            has_unflushed: false,
            progress: Progress::More,
            _place: place,
        }
    }

    /// Moves what is ready into `out`; `false` if there was more than room.
    fn put_ready(&mut self, out: &mut Batch) -> bool {
        let rest = self.ready.get(self.ready_at..).unwrap_or_default();
        self.ready_at += out.put(rest);
        if self.ready_at < self.ready.len() {
            return false;
        }
        (self.ready, self.ready_at) = (Vec::new(), 0);
        true
    }

    /// Gives the encoder a piece of what is there; `false` if nothing is.
    fn feed(&mut self, encoder: &mut Encoder) -> io::Result<bool> {
        let Some(batch) = &mut self.batch else {
            return Ok(false);
        };
        let mut piece = [0; PIECE_LEN];
        let inner = &mut self.inner;
        let read = batch.read(&mut piece);
        let len = read.inspect_err(|error| inner.file_failed(error))?;
        if len == 0 {
            // Its memory is worth more to others, unless it is needed again at once.
            batch.clear();
            return Ok(false);
        }
        self.has_unflushed = true;
        encoder.write(piece.get(..len).unwrap_or_default())?;
        Ok(true)
    }

    /// Asks the inner source for more.
    fn pull_inner(&mut self, out: &Batch) -> io::Result<()> {
        let mut batch = self
            .batch
            .take()
            .unwrap_or_else(|| Batch::new(out.waker().clone()));
        let before = batch.added_len();
        self.progress = self.inner.pull(&mut batch)?;
        if self.progress == Progress::More && batch.added_len() == before {
            return Err(io::Error::other("body source yields nothing"));
        }
        self.batch = Some(batch);
        Ok(())
    }
}

impl Source for Compressed {
    fn len(&self) -> Option<u64> {
        None
    }

    fn pull(&mut self, out: &mut Batch) -> io::Result<Progress> {
        let before = out.added_len();
        // Set while the inner source is to be asked even though it has nothing to say.
        let mut has_asked = false;
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
                Progress::Wait if has_asked => {
                    self.batch = None;
                    if std::mem::take(&mut self.has_unflushed) {
                        encoder.flush()?;
                        self.ready = encoder.take();
                    }
                    self.encoder = Some(encoder);
                    let is_out = self.put_ready(out);
                    // What there was no room for goes out first; then the inner source is asked
                    // again, and waits again.
                    return Ok(if is_out {
                        Progress::Wait
                    } else {
                        Progress::More
                    });
                }
                Progress::More if out.added_len() > before && has_asked => {
                    self.encoder = Some(encoder);
                    return Ok(Progress::More);
                }
                Progress::More | Progress::Wait => {
                    has_asked = true;
                    self.encoder = Some(encoder);
                    self.pull_inner(out)?;
                }
            }
        }
    }
}
