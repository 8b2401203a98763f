//! Bodies pulled in pieces of memory, for HTTP/2.

use std::io;

use super::transfer::{account, trailer_fields};
use super::{Batch, Block, Progress, Source};
use crate::io::wake::Waker;

/// A piece of a body.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) block: Block,
    /// What follows this piece.
    pub(crate) progress: Progress,
}

/// A body whose pieces an I/O thread sends. Between two pieces it may hold open files, but no
/// memory.
pub(crate) struct Outflow {
    source: Box<dyn Source>,
    /// File ranges of the source that are not in a piece yet.
    batch: Option<Batch>,
    /// Announced bytes that the source has not yielded yet; `None` if no length is announced.
    left: Option<u64>,
    has_trailers: bool,
    progress: Progress,
}

impl Outflow {
    /// `len`: the announced length, in bytes.
    pub(crate) fn new(source: Box<dyn Source>, len: Option<u64>, has_trailers: bool) -> Self {
        Self {
            source,
            batch: None,
            left: len,
            has_trailers,
            progress: Progress::More,
        }
    }

    /// Pulls the next piece, of about `piece_len` bytes if the source has them. Errors are final.
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
            // Sending half a piece is better than filling it with small remainders.
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

    /// Trailer field lines; empty if there are none.
    pub(crate) fn trailers(&mut self) -> Vec<u8> {
        let mut fields = Vec::new();
        if self.has_trailers {
            trailer_fields(&mut *self.source, &mut fields);
        }
        fields
    }
}

/// Moves bytes from a batch to a block, until the batch is empty or the block full.
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
