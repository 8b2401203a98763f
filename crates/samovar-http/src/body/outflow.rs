//! Response bodies that are pulled into memory blocks, for HTTP/2.

use std::io;
use std::time::Instant;

use super::transfer::account;
use super::{Batch, Progress, Source};
use crate::memory::Block;
use crate::net::wake::Waker;

/// A piece of a response body in one memory block.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) block: Block,
    /// State of the body after this piece: whether another piece can follow.
    pub(crate) progress: Progress,
}

/// A response body in progress whose pieces an I/O thread sends. Between two pieces it may keep
/// files open, but it holds no memory.
#[derive(Debug)]
pub(crate) struct Outflow {
    source: Box<dyn Source>,
    /// Batch whose file ranges no piece contains yet; `None` if there are none.
    batch: Option<Batch>,
    /// Number of announced bytes that the source has not yielded yet; `None` without an announced
    /// length.
    left: Option<u64>,
    progress: Progress,
    /// Time at which the source must be pulled again while it waits; `None` if there is none.
    next_pull: Option<Instant>,
}

impl Outflow {
    /// Creates an outflow. `len` is the announced length, in bytes.
    pub(crate) fn new(source: Box<dyn Source>, len: Option<u64>) -> Self {
        Self {
            source,
            batch: None,
            left: len,
            progress: Progress::More,
            next_pull: None,
        }
    }

    /// Returns whether the source waits and must now be pulled again.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.next_pull.is_some_and(|at| now >= at)
    }

    /// Returns whether [`pull`](Self::pull) may wait for any time.
    pub(crate) fn may_wait(&self) -> bool {
        self.source.may_wait()
    }

    /// Pulls the next piece, of about `piece_len` bytes if the source has as many. After an error,
    /// the body has failed and must not be pulled again.
    pub(crate) fn pull(&mut self, waker: &Waker, piece_len: usize) -> io::Result<Piece> {
        let mut block = waker.host().blocks().take(piece_len);
        if self.progress == Progress::Wait {
            self.progress = Progress::More;
        }
        loop {
            if let Some(batch) = &mut self.batch {
                let source = &mut self.source;
                take(batch, &mut block).inspect_err(|error| source.file_failed(error))?;
                if !batch.is_sent() {
                    batch.release_buffer();
                    let progress = Progress::More;
                    return Ok(Piece { block, progress });
                }
                self.batch = None;
            }
            // Send a half-filled piece rather than fill it up with small reads.
            if self.progress != Progress::More || block.len() >= piece_len / 2 {
                let progress = self.progress;
                return Ok(Piece { block, progress });
            }
            let mut batch = Batch::new(waker.clone());
            batch.reserve(batch.room_len().saturating_sub(block.room().len()));
            self.progress = self.source.pull(&mut batch)?;
            self.next_pull = match self.progress {
                Progress::Wait => self.source.next_pull(),
                Progress::More | Progress::End => None,
            };
            account(&mut self.left, self.progress, batch.added_len())?;
            self.batch = Some(batch);
        }
    }
}

/// Moves bytes from a batch to a block until the batch is empty or the block is full.
fn take(batch: &mut Batch, block: &mut Block) -> io::Result<()> {
    loop {
        let taken = batch.read(block.room())?;
        if taken == 0 {
            return Ok(());
        }
        block.advance(taken);
    }
}
