//! The body of a NAR response.

use std::fs::File;
use std::io;
use std::sync::Arc;

use samovar_http::{Batch, Progress, Source};
use samovar_store::{Identity, NarReader, NarSink};
use sha2::{Digest, Sha256};

use crate::known::gc_lease::SendingLease;
use crate::known::nar_cache::Recording;
use crate::known::registration::{Collected, Registration, wrong_contents, wrong_size};

/// File contents of at least this length are sent with `sendfile`. Shorter contents are read,
/// because several of them share one write; both ways cost the same at about 64 KiB.
const RANGE_LEN_MIN: u64 = 128 * 1024;

/// Maximum length of file contents in one batch, in bytes. It is small, so that a slow client holds
/// few descriptors, other connections are not delayed, and the last check of the registration comes
/// near the end.
const RANGE_LEN_MAX: u64 = 512 * 1024;

/// The body of a response with a NAR or a range of it. `Content-Length` comes from the database. If
/// the NAR has another length, or its path was collected, the response is aborted before its last
/// piece is sent.
pub(crate) struct NarBody {
    reader: NarReader,
    /// Number of bytes that the response contains.
    len: u64,
    left: u64,
    /// Whether the range includes the NAR's last byte.
    reaches_end: bool,
    registration: Registration,
    /// The check of the bytes so far. `None` once bytes were sent with `sendfile`, which does not
    /// read them.
    check: Option<Check>,
    /// The GC lease of the path, held while the body is sent.
    _lease: Option<SendingLease>,
}

/// Hashes a whole NAR while it is sent, to verify the path and to fill the NAR cache.
pub(crate) struct Check {
    hash: Sha256,
    root: Identity,
    /// Whether the path has no verification record yet.
    is_first: bool,
    /// The copy for the NAR cache; `None` if the NAR is not worth an entry.
    recording: Option<Recording>,
}

impl Check {
    /// Starts a check. `root` identifies the directory or file that is read.
    pub(crate) fn new(root: Identity, is_first: bool, recording: Option<Recording>) -> Self {
        Self {
            hash: Sha256::new(),
            root,
            is_first,
            recording,
        }
    }

    /// Hashes the next bytes, without recording them.
    pub(super) fn hash(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
    }

    /// Compares the hash of the whole NAR with that of the registration, which must still be
    /// current. Returns the copy for the NAR cache, if one was recorded. An outage of the store is
    /// no error: the client compares the hash itself.
    pub(super) fn settle(self, registration: &Registration) -> io::Result<Option<Recording>> {
        let info = &registration.info;
        if self.hash.finalize().as_slice() != info.nar_hash.as_bytes() {
            return Err(wrong_contents());
        }
        if ensure_current(registration)? {
            registration.health.note_verified(info, &self.root);
        }
        Ok(self.recording)
    }

    /// Hashes and records the next bytes. Returns `None` if the rest needs neither.
    fn take(mut self, bytes: &[u8], file_count: u64) -> Option<Self> {
        self.hash.update(bytes);
        let recording = self.recording.take();
        self.recording = recording.and_then(|recording| recording.write(bytes, file_count));
        (self.is_first || self.recording.is_some()).then_some(self)
    }
}

/// Returns whether the registration is known to be current; an error if it is not.
fn ensure_current(registration: &Registration) -> io::Result<bool> {
    match registration.is_current() {
        Ok(false) => Err(Collected.into()),
        Ok(true) => Ok(true),
        Err(_) => Ok(false),
    }
}

impl NarBody {
    /// Makes the body of bytes `start..end` of a NAR. `reader` must be at `start`. `lease` is held
    /// as long as the body exists.
    pub(crate) fn new(
        reader: NarReader,
        (start, end): (u64, u64),
        registration: Registration,
        check: Option<Check>,
        lease: Option<SendingLease>,
    ) -> Self {
        let len = end.saturating_sub(start);
        Self {
            reader,
            len,
            left: len,
            reaches_end: end == registration.info.nar_size,
            registration,
            check,
            _lease: lease,
        }
    }

    /// Reads the next bytes into the batch, and checks them.
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
        // Run all checks before the last piece is sent.
        let recording = match self.check.take() {
            Some(check) => check.settle(&self.registration)?,
            None => {
                ensure_current(&self.registration)?;
                None
            }
        };
        if let Some(recording) = recording {
            recording.finish();
        }
        Ok(Progress::End)
    }
}

/// Writes a NAR into a batch: short contents into its buffer, long ones as file ranges.
struct BatchSink<'a> {
    batch: &'a mut Batch,
    /// Number of bytes that may still be added as file ranges.
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
