//! A NAR, or a range of one, as a response body.

use std::fmt;
use std::io;
use std::sync::Arc;

use samovar_http::{Batch, Progress, Source};
use samovar_nix::{NarHash, StorePath};
use samovar_store::{NarReader, Store};

use crate::observer::Observer;

/// Bytes of a NAR on their way. The announced size is the database's: a NAR that turns out shorter
/// or longer fails before its last piece is sent.
pub(crate) struct NarBody {
    reader: NarReader,
    /// What is announced to this client.
    len: u64,
    left: u64,
    /// Whether the last byte of the range is the last of the NAR.
    reaches_end: bool,
    reporter: Reporter,
}

/// Says that the files of a path are not what is registered.
pub(crate) struct Reporter {
    pub(crate) path: StorePath,
    pub(crate) nar_hash: NarHash,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) observer: Arc<dyn Observer>,
}

impl Reporter {
    /// If nothing of the kind is registered any more, the path was collected on the way, and that
    /// is no damage.
    fn report(&self, error: &io::Error) {
        let now = self.store.lookup(self.path.hash_part());
        let is_collected = now.is_ok_and(|now| now.is_none_or(|now| now.nar_hash != self.nar_hash));
        if !is_collected {
            self.observer.path_damaged(&self.path, error);
        }
    }
}

impl NarBody {
    /// Bytes `start..end` of a NAR of `size` bytes, of which `reader` stands at `start`.
    pub(crate) fn new(
        reader: NarReader,
        (start, end): (u64, u64),
        size: u64,
        reporter: Reporter,
    ) -> Self {
        let len = end.saturating_sub(start);
        Self {
            reader,
            len,
            left: len,
            reaches_end: end == size,
            reporter,
        }
    }

    fn fill(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        while self.left > 0 && batch.room_len() > 0 {
            let room = batch.room();
            let wanted = usize::try_from(self.left)
                .unwrap_or(usize::MAX)
                .min(room.len());
            let filled = self.reader.fill(&mut room[..wanted])?;
            if filled == 0 {
                return Err(wrong_size("shorter"));
            }
            batch.advance(filled);
            self.left -= filled as u64;
        }
        if self.left > 0 {
            return Ok(Progress::More);
        }
        if self.reaches_end && self.reader.fill(&mut [0])? != 0 {
            return Err(wrong_size("longer"));
        }
        Ok(Progress::End)
    }
}

fn wrong_size(how: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("NAR is {how} than its registered size"),
    )
}

impl Source for NarBody {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        self.fill(batch)
            .inspect_err(|error| self.reporter.report(error))
    }
}

impl fmt::Debug for NarBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NarBody")
            .field("path", &self.reporter.path)
            .field("left", &self.left)
            .finish()
    }
}
