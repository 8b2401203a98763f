//! [`UpstreamBody`]: the body of a response with a NAR that arrives from an upstream.

use std::io;
use std::sync::Arc;

use samovar_http::{Batch, Progress, Source};

use crate::known::nar_cache::add_file;
use crate::upstream::transfer::{Piece, Transfer};

/// A range of a NAR that arrives from an upstream. The bytes before the range are skipped, so that
/// the NAR is verified as a whole.
#[derive(Debug)]
pub(super) struct UpstreamBody {
    transfer: Arc<Transfer>,
    reader: u64,
    /// Number of bytes of the file that were sent or skipped.
    at: u64,
    start: u64,
    /// End of the range; `None`: the end of the file, whose length is unknown.
    end: Option<u64>,
}

impl UpstreamBody {
    pub(super) fn new(
        transfer: Arc<Transfer>,
        reader: u64,
        (start, end): (u64, Option<u64>),
    ) -> Self {
        Self {
            transfer,
            reader,
            at: 0,
            start,
            end,
        }
    }

    fn progress(&self) -> Progress {
        match self.end.is_some_and(|end| self.at >= end) {
            true => Progress::End,
            false => Progress::More,
        }
    }

    /// Copies bytes to the batch, of those that are part of the range. Returns the number of bytes
    /// that were copied or skipped.
    fn put(&self, batch: &mut Batch, bytes: &[u8]) -> u64 {
        match self.start.checked_sub(self.at).filter(|len| *len > 0) {
            Some(skipped) => skipped.min(bytes.len() as u64),
            None => batch.put(bytes) as u64,
        }
    }
}

impl Source for UpstreamBody {
    fn len(&self) -> Option<u64> {
        self.end.map(|end| end - self.start)
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        loop {
            if self.progress() == Progress::End {
                return Ok(Progress::End);
            }
            if batch.room_len() == 0 {
                return Ok(Progress::More);
            }
            let limit = self.end.unwrap_or(u64::MAX);
            match self.transfer.next(self.reader, limit, batch.waker()) {
                Piece::Bytes(piece, range) => {
                    let count = self.put(batch, piece.get(range).unwrap_or_default());
                    self.at += count;
                    self.transfer.advance(self.reader, count);
                }
                Piece::Copy(file, end) => {
                    let before = self.at;
                    match self.start.checked_sub(self.at).filter(|len| *len > 0) {
                        Some(skipped) => self.at += skipped.min(end - self.at),
                        None => self.at = add_file(batch, &file, self.at, end)?,
                    }
                    self.transfer.advance(self.reader, self.at - before);
                    if self.at > self.start {
                        return Ok(self.progress());
                    }
                }
                Piece::Wait => return Ok(Progress::Wait),
                Piece::End => return Ok(Progress::End),
                Piece::Lost => {
                    self.transfer.leave(self.reader);
                    (self.transfer, self.reader) = self.transfer.begin_again(self.at);
                }
                Piece::Failed(reason) => {
                    let name = &self.transfer.found.upstream.settings.name;
                    return Err(io::Error::other(format!("the upstream {name:?}: {reason}")));
                }
            }
        }
    }
}

impl Drop for UpstreamBody {
    fn drop(&mut self) {
        self.transfer.leave(self.reader);
    }
}
