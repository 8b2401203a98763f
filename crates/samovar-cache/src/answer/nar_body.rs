//! The body of a NAR response.

use std::fs::File;
use std::io;
use std::sync::Arc;

use samovar_http::{Batch, Progress, Source};
use samovar_store::{Identity, NarReader, NarSink};
use sha2::{Digest, Sha256};

use crate::known::gc_lease::SendingLease;
use crate::known::health::Moment;
use crate::known::nar_cache::{CachedNar, Candidate, CopiedFiles, Recording};
use crate::known::registration::{Collected, Registration, wrong_contents, wrong_size};

/// File contents of at least this length are sent with `sendfile`. Shorter contents are read,
/// because several of them share one write; both ways cost the same at about 64 KiB.
const RANGE_LEN_MIN: u64 = 128 * 1024;

/// Maximum length of file contents in one batch, in bytes. It is small, so that a slow client holds
/// few descriptors, other connections are not delayed, and the last check of the registration comes
/// near the end.
const RANGE_LEN_MAX: u64 = 512 * 1024;

/// The body of a response with a NAR or a range of it. `Content-Length` comes from the database. If
/// the NAR has another length, or its path was garbage-collected, the response is aborted before
/// its last piece is sent.
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
    /// Whether the last batch contains bytes of the copy for the NAR cache, instead of files of the
    /// store.
    sends_copy: bool,
    /// The complete copy. Its disk space counts as used until the last piece is sent.
    copy: Option<Arc<CachedNar>>,
    /// The GC lease of the path, held while the body is sent.
    _lease: Option<SendingLease>,
}

/// Processes a whole NAR while it is sent: hashes it to verify the path, and copies it to the NAR
/// cache.
pub(crate) struct Check {
    /// The hash of the bytes so far; `None` if the path has a verification record.
    hash: Option<Sha256>,
    /// Whether the NAR is hashed even without a copy.
    verifies: bool,
    root: Identity,
    /// The time before the files are read.
    began: Moment,
    /// Number of times that responses for marked paths were dropped before the check.
    drop_count: u64,
    copy: NarCopy,
}

/// Whether a check hashes the NAR.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hashing {
    /// The path was verified before.
    Never,
    /// The path is not to be verified, but a copy is made of verified files only.
    WhileCopying,
    Always,
}

/// The copy of a NAR for the NAR cache.
enum NarCopy {
    /// No copy is made.
    None,
    /// The first bytes will decide whether a copy is made.
    Undecided(Candidate),
    InProgress(Recording),
}

impl Check {
    /// Starts a check. `root` identifies the directory or file that is read; `drop_count` is that
    /// of [`Health`](crate::known::health::Health::drop_count) at present. Returns `None` if there
    /// is nothing to do.
    pub(crate) fn new(
        root: Identity,
        hashing: Hashing,
        candidate: Option<Candidate>,
        drop_count: u64,
    ) -> Option<Self> {
        let check = Self {
            hash: (hashing != Hashing::Never).then(Sha256::new),
            verifies: hashing == Hashing::Always,
            root,
            began: Moment::now(),
            drop_count,
            copy: candidate.map_or(NarCopy::None, NarCopy::Undecided),
        };
        check.is_needed().then_some(check)
    }

    /// Starts a check that hashes, and makes no copy.
    pub(super) fn hashing(root: Identity) -> Self {
        Self {
            hash: Some(Sha256::new()),
            verifies: true,
            root,
            began: Moment::now(),
            drop_count: 0,
            copy: NarCopy::None,
        }
    }

    fn is_needed(&self) -> bool {
        self.verifies || !matches!(self.copy, NarCopy::None)
    }

    /// Returns the file of the copy, and the number of bytes written to it so far.
    fn copied(&self) -> Option<(&Arc<File>, u64)> {
        match &self.copy {
            NarCopy::InProgress(recording) => Some(recording.written()),
            NarCopy::None | NarCopy::Undecided(_) => None,
        }
    }

    /// Reports that the copy cannot be read.
    fn fail_copy(&self, error: &io::Error) {
        if let NarCopy::InProgress(recording) = &self.copy {
            recording.fail(error);
        }
    }

    /// Hashes the next bytes, without copying them.
    pub(super) fn hash(&mut self, bytes: &[u8]) {
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
    }

    /// Compares the hash of the whole NAR, if it was computed, with the hash in the registration,
    /// which must still be current. Then adds the copy to the NAR cache, and returns it. An outage
    /// of the store is no error: the client compares the hash itself.
    pub(super) fn settle(
        self,
        registration: &Registration,
        newest_change: Option<(i64, u32)>,
    ) -> io::Result<Option<Arc<CachedNar>>> {
        let row = &registration.row;
        let is_hashed = self.hash.is_some();
        if let Some(hash) = self.hash
            && hash.finalize().as_slice() != row.nar_hash.as_bytes()
        {
            return Err(wrong_contents());
        }
        if ensure_current(registration)? && is_hashed {
            registration
                .health
                .note_verified(row, &self.root, self.began);
        }
        let NarCopy::InProgress(recording) = self.copy else {
            return Ok(None);
        };
        if is_hashed {
            return Ok(recording.finish(None));
        }
        let health = &registration.health;
        let changed = newest_change.is_none_or(|changed| health.forget_if_changed(row, changed));
        if changed {
            return Ok(None);
        }
        let hash_part = row.path.hash_part();
        let files = CopiedFiles {
            hash_part,
            root: self.root,
        };
        let cached = recording.finish(Some(files));
        health.drop_if_marked_since(self.drop_count, &hash_part);
        Ok(cached)
    }

    /// Hashes and copies the next bytes. Returns `None` if the rest needs neither.
    fn take(mut self, bytes: &[u8], file_count: u64) -> Option<Self> {
        self.hash(bytes);
        let recording = match self.copy {
            NarCopy::None => None,
            NarCopy::Undecided(candidate) => candidate.write(bytes, file_count),
            NarCopy::InProgress(recording) => recording.write(bytes, file_count),
        };
        self.copy = recording.map_or(NarCopy::None, NarCopy::InProgress);
        self.is_needed().then_some(self)
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
        mut reader: NarReader,
        (start, end): (u64, u64),
        registration: Registration,
        check: Option<Check>,
        lease: Option<SendingLease>,
    ) -> Self {
        let len = end.saturating_sub(start);
        if check.as_ref().is_some_and(|check| check.hash.is_none()) {
            reader.watch_changes();
        }
        Self {
            reader,
            len,
            left: len,
            reaches_end: end == registration.row.nar_size,
            registration,
            check,
            sends_copy: false,
            copy: None,
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
            self.left -= filled as u64;
            let copied = self.check.as_ref().and_then(Check::copied);
            match copied.filter(|_| batch.takes_files()) {
                // The kernel sends the bytes from the page cache, which now has them.
                Some((file, end)) => {
                    let len = filled as u64;
                    batch.file(Arc::clone(file), end.saturating_sub(len), len);
                    self.sends_copy = true;
                    break;
                }
                None => batch.advance(filled),
            }
        }
        Ok(())
    }

    fn fill(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        self.sends_copy = false;
        if self.check.is_some() {
            self.read(batch)?;
        }
        let mut sink = BatchSink::new(batch);
        while self.check.is_none() && self.left > 0 && !sink.room().is_empty() {
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
        match self.check.take() {
            Some(check) => {
                self.copy = check.settle(&self.registration, self.reader.newest_change())?
            }
            None => drop(ensure_current(&self.registration)?),
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
        match (&self.copy, &self.check) {
            _ if !self.sends_copy => self.registration.report(error),
            (Some(copy), _) => copy.fail(error),
            (None, Some(check)) => check.fail_copy(error),
            // The copy could not be cached, and is gone with this response.
            (None, None) => {}
        }
    }
}
