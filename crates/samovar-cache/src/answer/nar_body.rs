//! A NAR, or a range of one, as a response body.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;

use samovar_http::{Batch, Progress, Source};
use samovar_store::{Identity, NarReader, NarSink};
use sha2::{Digest, Sha256};

use crate::known::gc_lease::SendingLease;
use crate::known::nar_cache::Recording;
use crate::known::registration::{Collected, Registration, wrong_contents, wrong_size};

/// Contents from this length on go from the page cache to the socket. Shorter ones cost less when
/// they are read, because they share a write with others; the costs meet at 64 KiB.
const RANGE_LEN_MIN: u64 = 128 * 1024;

/// Bytes of files that a batch takes: few enough that a slow reader holds few descriptors, that
/// others get their turn, and that the last look at the registration comes near the end.
const RANGE_LEN_MAX: u64 = 512 * 1024;

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
    /// Present while the bytes are read on their way, rather than sent past this process.
    check: Option<Check>,
    /// Keeps the path from being collected.
    lease: Option<SendingLease>,
}

/// The hash of a whole NAR on its lease: of a path that nobody has verified, or for a copy of it.
pub(crate) struct Check {
    hash: Sha256,
    root: Option<Identity>,
    /// Whether it is wanted without a copy, too.
    is_first: bool,
    /// A copy for the next ones, as long as it is worth it.
    recording: Option<Recording>,
}

impl Check {
    /// Of files that have this root.
    pub(crate) fn new(
        root: Option<Identity>,
        is_first: bool,
        recording: Option<Recording>,
    ) -> Self {
        Self {
            hash: Sha256::new(),
            root,
            is_first,
            recording,
        }
    }

    /// Takes the next bytes. `None`: nobody wants to know any more.
    fn take(mut self, bytes: &[u8], file_count: u64) -> Option<Self> {
        self.hash.update(bytes);
        let recording = self.recording.take();
        self.recording = recording.and_then(|recording| recording.write(bytes, file_count));
        (self.is_first || self.recording.is_some()).then_some(self)
    }
}

impl NarBody {
    /// Bytes `start..end` of a NAR of `size` bytes, of which `reader` stands at `start`.
    pub(crate) fn new(
        reader: NarReader,
        (start, end): (u64, u64),
        size: u64,
        registration: Registration,
        check: Option<Check>,
    ) -> Self {
        let len = end.saturating_sub(start);
        Self {
            reader,
            len,
            left: len,
            reaches_end: end == size,
            registration,
            check,
            lease: None,
        }
    }

    /// The same, of a path that is held as long as it lives.
    pub(crate) fn leased(self, lease: Option<SendingLease>) -> Self {
        Self { lease, ..self }
    }

    /// Adds the next bytes to the batch, and looks at them.
    fn read(&mut self, batch: &mut Batch) -> io::Result<()> {
        while self.left > 0 && batch.room_len() > 0 {
            let Some(check) = self.check.take() else {
                break;
            };
            let room = batch.room();
            let wanted = usize::try_from(self.left).unwrap_or(usize::MAX);
            let wanted = wanted.min(room.len());
            let filled = self.reader.fill(&mut room[..wanted])?;
            if filled == 0 {
                return Err(wrong_size("shorter"));
            }
            self.check = check.take(&room[..filled], self.reader.file_count());
            batch.advance(filled);
            self.left -= filled as u64;
        }
        Ok(())
    }

    fn fill(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        if self.check.is_some() {
            self.read(batch)?;
        }
        let mut sink = BatchSink::new(batch);
        while self.left > 0 && !sink.room().is_empty() {
            let pulled = self.reader.pull(&mut sink, self.left)?;
            if pulled == 0 {
                return Err(wrong_size("shorter"));
            }
            self.left -= pulled;
        }
        if self.left > 0 {
            return Ok(Progress::More);
        }
        if self.reaches_end && self.reader.fill(&mut [0])? != 0 {
            return Err(wrong_size("longer"));
        }
        // All of this before the last piece is sent. A store that cannot say anything now is no
        // reason to break off: the client compares the hash.
        let info = &self.registration.info;
        let check = self.check.take();
        if let Some(check) = &check
            && check.hash.clone().finalize().as_slice() != info.nar_hash.as_bytes()
        {
            return Err(wrong_contents());
        }
        let is_current = self.registration.is_current();
        if is_current == Ok(false) {
            return Err(Collected.into());
        }
        if let Some(check) = check {
            if is_current == Ok(true) {
                let health = &self.registration.health;
                health.note_right(info, check.root.as_ref());
            }
            if let Some(recording) = check.recording {
                recording.keep();
            }
        }
        Ok(Progress::End)
    }
}

/// A batch as a place for a NAR: small contents in its memory, large ones as ranges.
struct BatchSink<'a> {
    batch: &'a mut Batch,
    /// What may still be added as ranges.
    range_left: u64,
}

impl<'a> BatchSink<'a> {
    fn new(batch: &'a mut Batch) -> Self {
        let range_left = RANGE_LEN_MAX;
        Self { batch, range_left }
    }
}

impl NarSink for BatchSink<'_> {
    fn room(&mut self) -> &mut [u8] {
        match self.range_left {
            0 => &mut [],
            _ => self.batch.room(),
        }
    }

    fn advance(&mut self, len: usize) {
        self.batch.advance(len);
    }

    fn range_len(&self, left_len: u64) -> u64 {
        if self.batch.takes_files() && left_len >= RANGE_LEN_MIN {
            left_len.min(self.range_left)
        } else {
            0
        }
    }

    fn range(&mut self, file: Arc<File>, offset: u64, len: u64) {
        self.range_left = self.range_left.saturating_sub(len);
        self.batch.file(file, offset, len);
    }
}

impl Source for NarBody {
    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        self.fill(batch)
            .inspect_err(|error| self.registration.report(error))
    }

    fn file_failed(&mut self, error: &io::Error) {
        self.registration.report(error);
    }
}

impl fmt::Debug for NarBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NarBody")
            .field("registration", &self.registration)
            .field("left", &self.left)
            .field("lease", &self.lease)
            .finish()
    }
}
