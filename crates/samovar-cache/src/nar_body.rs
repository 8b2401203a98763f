//! A NAR, or a range of one, as a response body.

use std::fmt;
use std::io;

use samovar_http::{Batch, Progress, Source};
use samovar_store::NarReader;

use crate::registration::Registration;

/// Bytes of a NAR on their way. The announced size is the database's: a NAR that turns out shorter
/// or longer, or that is no longer the path it was, fails before its last piece is sent.
pub(crate) struct NarBody {
    reader: NarReader,
    /// What is announced to this client.
    len: u64,
    left: u64,
    /// Whether the last byte of the range is the last of the NAR.
    reaches_end: bool,
    registration: Registration,
}

impl NarBody {
    /// Bytes `start..end` of a NAR of `size` bytes, of which `reader` stands at `start`.
    pub(crate) fn new(
        reader: NarReader,
        (start, end): (u64, u64),
        size: u64,
        registration: Registration,
    ) -> Self {
        let len = end.saturating_sub(start);
        Self {
            reader,
            len,
            left: len,
            reaches_end: end == size,
            registration,
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
        // Before the last piece is sent. A store that cannot say anything now is no reason to break
        // off: the client compares the hash.
        if self.registration.holds() == Ok(false) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "path was collected or registered anew on the way",
            ));
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
            .inspect_err(|error| self.registration.report(error))
    }
}

impl fmt::Debug for NarBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NarBody")
            .field("registration", &self.registration)
            .field("left", &self.left)
            .finish()
    }
}
