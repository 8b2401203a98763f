//! Bodies that leave in pieces of memory, each when it is asked for.

use std::io;

use super::transfer::{account, trailer_fields};
use super::{Batch, Block, Progress, Source};
use crate::io::wake::Waker;

/// The next bytes of a body.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) block: Block,
    /// What follows: more at once, more when the body wakes, or nothing.
    pub(crate) progress: Progress,
}

/// A body whose pieces are sent by somebody else. Between two pieces it holds open files at most,
/// and no memory.
pub(crate) struct Outflow {
    source: Box<dyn Source>,
    /// What the source has given and no piece has taken: ranges of files.
    batch: Option<Batch>,
    /// Announced bytes that the source has not yielded yet, where the length is announced.
    left: Option<u64>,
    has_trailers: bool,
    progress: Progress,
}

impl Outflow {
    /// `len`: what was announced.
    pub(crate) fn new(source: Box<dyn Source>, len: Option<u64>, has_trailers: bool) -> Self {
        Self {
            source,
            batch: None,
            left: len,
            has_trailers,
            progress: Progress::More,
        }
    }

    /// The next piece: about `piece_len` bytes if the source has them at hand.
    ///
    /// # Errors
    ///
    /// Those of the source and its files, and a source that breaks its word. All are final.
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
            // A piece that is half full is better sent than filled with a small remainder.
            if self.progress != Progress::More || block.len() >= piece_len / 2 {
                let progress = self.progress;
                return Ok(Piece { block, progress });
            }
            let mut batch = Batch::new(waker.clone());
            batch.limit_room(block.room().len());
            self.progress = self.source.pull(&mut batch)?;
            account(&mut self.left, self.progress, batch.added_len())?;
            self.batch = Some(batch);
        }
    }

    /// Field lines behind the body; empty if there are none.
    pub(crate) fn trailers(&mut self) -> Vec<u8> {
        let mut fields = Vec::new();
        if self.has_trailers {
            trailer_fields(&mut *self.source, &mut fields);
        }
        fields
    }
}

/// Moves bytes from a batch to a block until the one is empty or the other full.
fn take(batch: &mut Batch, block: &mut Block) -> io::Result<()> {
    loop {
        let taken = batch.read(block.room())?;
        if taken == 0 {
            return Ok(());
        }
        block.advance(taken);
    }
}

impl std::fmt::Debug for Outflow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outflow")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}
