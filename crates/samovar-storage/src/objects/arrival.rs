//! [`Arrival`]: an object that is being received from the bucket, for any number of readers.
//!
//! Threads request ranges of [`PIECE_LEN`] and write them to a temporary file; at most
//! [`THREAD_COUNT`] ranges are requested at the same time. Readers read the file as far as it is
//! there. The ranges that readers wait for are requested first, so a client that resumes in the
//! middle does not wait for the beginning.
//!
//! The file is hashed in order. The last byte of the object is readable only when the whole file is
//! right, so no reader takes a wrong file for complete. Then the file becomes the copy of the disk
//! cache. If no reader is left before that, the threads end.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use samovar_bucket::Bucket;
use sha2::{Digest as _, Sha256};
use tempfile::NamedTempFile;

/// Length of the ranges that are requested, in bytes.
pub(super) const PIECE_LEN: u64 = 8 << 20;

/// Number of ranges that are requested at the same time.
const THREAD_COUNT: usize = 4;

/// Length of the buffer of a thread, in bytes. Readers are told after each.
const BUFFER_LEN: usize = 256 << 10;

/// Function that is called when a reader can go on.
type Waker = Box<dyn FnOnce() + Send>;

/// The object to receive.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) key: String,
    /// Length of the object, in bytes.
    pub(super) len: u64,
    /// SHA-256 of the object.
    pub(super) sha256: [u8; 32],
}

/// Why an object did not arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// The bucket does not have it.
    Missing,
    /// It has another length, or another hash.
    Wrong,
    /// The bucket cannot be read, or the file cannot be written. Contains the reason.
    Unavailable(String),
    /// No reader was left.
    Abandoned,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("the bucket does not have the object"),
            Self::Wrong => f.write_str("the object in the bucket has wrong contents"),
            Self::Unavailable(reason) => f.write_str(reason),
            Self::Abandoned => f.write_str("the object is not needed any more"),
        }
    }
}

/// Called once with the file when it is whole and right, or with the reason why it is not.
type Ended = Box<dyn FnOnce(Result<NamedTempFile, Failure>) + Send>;

/// An object that is being received.
pub(super) struct Arrival {
    wanted: Wanted,
    /// The temporary file, for readers.
    file: Arc<File>,
    state: Mutex<State>,
    /// Signalled when bytes have arrived, and at the end.
    changed: Condvar,
}

struct State {
    pieces: Vec<Piece>,
    /// Indices of pieces that readers wait for.
    asked: VecDeque<usize>,
    phase: Phase,
    wakers: Vec<Waker>,
    reader_count: usize,
    /// The hash of the first bytes, and their number. `None` while a thread updates it.
    hashed: Option<(Sha256, u64)>,
    /// Taken at the end.
    end: Option<(NamedTempFile, Ended)>,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    is_requested: bool,
    /// Number of bytes at the start of the piece that are in the file.
    len: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Flowing,
    Whole,
    Failed(Failure),
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Arrival").field(&self.wanted).finish()
    }
}

impl Arrival {
    /// Begins to receive an object into a temporary file. Returns the first reader.
    pub(super) fn begin(
        bucket: &Arc<Bucket>,
        wanted: Wanted,
        temporary: NamedTempFile,
        ended: impl FnOnce(Result<NamedTempFile, Failure>) + Send + 'static,
    ) -> io::Result<Reader> {
        let file = Arc::new(temporary.as_file().try_clone()?);
        let count = usize::try_from(wanted.len.div_ceil(PIECE_LEN)).unwrap_or(usize::MAX);
        let piece = Piece {
            is_requested: false,
            len: 0,
        };
        let arrival = Arc::new(Self {
            wanted,
            file,
            state: Mutex::new(State {
                pieces: vec![piece; count],
                asked: VecDeque::new(),
                phase: Phase::Flowing,
                wakers: Vec::new(),
                reader_count: 0,
                hashed: Some((Sha256::new(), 0)),
                end: Some((temporary, Box::new(ended))),
            }),
            changed: Condvar::new(),
        });
        let reader = Reader::new(&arrival);
        for number in 0..THREAD_COUNT.min(count) {
            let (bucket, arrival) = (Arc::clone(bucket), Arc::clone(&arrival));
            let thread = std::thread::Builder::new().name("bucket-get".to_owned());
            let started = thread.spawn(move || arrival.run(&bucket));
            match started {
                // The threads that were started do the work of the others.
                Err(_) if number > 0 => break,
                started => drop(started?),
            }
        }
        Ok(reader)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests pieces until there are no more. Runs on a thread of its own.
    fn run(&self, bucket: &Bucket) {
        let _ending = Ending(self);
        while let Some(index) = self.take_piece() {
            if let Err(failure) = self.receive(bucket, index) {
                return self.end(Err(failure));
            }
            self.hash();
        }
    }

    /// Chooses the next piece to request: one that a reader waits for, or that follows it; else the
    /// first one.
    fn take_piece(&self) -> Option<usize> {
        let mut state = self.state();
        if state.phase != Phase::Flowing {
            return None;
        }
        if state.reader_count == 0 {
            drop(state);
            self.end(Err(Failure::Abandoned));
            return None;
        }
        let asked = state.asked.iter().copied().min();
        state.asked.clear();
        let is_left = |index: &usize| state.pieces.get(*index).is_some_and(|it| !it.is_requested);
        let from = asked.unwrap_or(0);
        let index = (from..state.pieces.len()).find(is_left);
        let index = index.or_else(|| (0..from).find(is_left))?;
        state.pieces[index].is_requested = true;
        Some(index)
    }

    /// Receives a piece into the file.
    fn receive(&self, bucket: &Bucket, index: usize) -> Result<(), Failure> {
        let Wanted { key, len, .. } = &self.wanted;
        let start = index as u64 * PIECE_LEN;
        let end = len.min(&(start + PIECE_LEN)).to_owned();
        let unavailable = |error: &dyn fmt::Display| Failure::Unavailable(error.to_string());
        let download = bucket.get(key, Some(start..end));
        let download = download.map_err(|error| match error.fault() {
            // The object ends before the range.
            samovar_bucket::Fault::Range => Failure::Wrong,
            _ => unavailable(&error),
        })?;
        let mut download = download.ok_or(Failure::Missing)?;
        if download.total_len() != *len {
            return Err(Failure::Wrong);
        }
        let (mut at, mut buffer) = (start, vec![0; BUFFER_LEN]);
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX);
            let wanted = wanted.min(buffer.len());
            let read = download.read(&mut buffer[..wanted]);
            let read = read.map_err(|error| unavailable(&error))?;
            if read == 0 {
                return Err(Failure::Unavailable("the object broke off".to_owned()));
            }
            let written = self.file.write_all_at(&buffer[..read], at);
            written.map_err(|error| unavailable(&error))?;
            at += read as u64;
            self.arrived(index, at - start)?;
        }
        Ok(())
    }

    /// Records the number of bytes of a piece that are in the file.
    fn arrived(&self, index: usize, len: u64) -> Result<(), Failure> {
        let mut state = self.state();
        state.pieces[index].len = len;
        let outcome = match &state.phase {
            Phase::Failed(failure) => Err(failure.clone()),
            _ if state.reader_count == 0 => Err(Failure::Abandoned),
            _ => Ok(()),
        };
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.changed.notify_all();
        wakers.into_iter().for_each(|waker| waker());
        outcome
    }

    /// Hashes the bytes at the start that are there, unless another thread does. Ends the arrival
    /// when all are hashed.
    fn hash(&self) {
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            let mut state = self.state();
            let Some((mut hasher, from)) = state.hashed.take() else {
                return;
            };
            let to = state.prefix_len();
            if from == to && from < self.wanted.len {
                state.hashed = Some((hasher, from));
                return;
            }
            drop(state);
            let hashed = self.hash_range(&mut hasher, from..to, &mut buffer);
            if let Err(error) = hashed {
                return self.end(Err(Failure::Unavailable(error.to_string())));
            }
            if to == self.wanted.len {
                let is_right = hasher.finalize()[..] == self.wanted.sha256;
                return self.end(is_right.then_some(()).ok_or(Failure::Wrong));
            }
            self.state().hashed = Some((hasher, to));
        }
    }

    fn hash_range(
        &self,
        hasher: &mut Sha256,
        range: Range<u64>,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let len = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let len = len.min(buffer.len());
            self.file.read_exact_at(&mut buffer[..len], at)?;
            hasher.update(&buffer[..len]);
            at += len as u64;
        }
        Ok(())
    }

    /// Ends the arrival, if it has not ended.
    fn end(&self, outcome: Result<(), Failure>) {
        let Some((file, ended)) = self.state().end.take() else {
            return;
        };
        // Before readers get the last byte: whoever asks afterwards finds the copy.
        ended(outcome.clone().map(|()| file));
        let mut state = self.state();
        state.phase = match outcome {
            Ok(()) => Phase::Whole,
            Err(failure) => Phase::Failed(failure),
        };
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.changed.notify_all();
        wakers.into_iter().for_each(|waker| waker());
    }
}

/// Ends the arrival after a panic of its thread: readers must not wait for ever.
struct Ending<'a>(&'a Arrival);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let reason = "the thread that received it has panicked".to_owned();
            self.0.end(Err(Failure::Unavailable(reason)));
        }
    }
}

impl State {
    /// Returns the number of bytes at the start of the object that are there.
    fn prefix_len(&self) -> u64 {
        let whole = self.pieces.iter().take_while(|it| it.len == PIECE_LEN);
        let whole = whole.count();
        let rest = self.pieces.get(whole).map_or(0, |it| it.len);
        whole as u64 * PIECE_LEN + rest
    }

    /// Returns the end of the bytes that a reader at this offset can read now.
    fn readable_end(&self, at: u64, len: u64) -> u64 {
        if self.phase == Phase::Whole {
            return len;
        }
        let mut end = at;
        while let Ok(index) = usize::try_from(end / PIECE_LEN)
            && let Some(piece) = self.pieces.get(index)
        {
            let there = index as u64 * PIECE_LEN + piece.len;
            if there <= end {
                break;
            }
            end = there;
        }
        end.min(len.saturating_sub(1)).max(at)
    }
}

/// A reader of an object that is being received. Dropping it lets the threads end if it was the
/// last one.
pub(super) struct Reader(Arc<Arrival>);

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Clone for Reader {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.state().reader_count -= 1;
    }
}

impl Reader {
    fn new(arrival: &Arc<Arrival>) -> Self {
        arrival.state().reader_count += 1;
        Self(Arc::clone(arrival))
    }

    /// Returns another reader of the same arrival, or `None` if it has failed.
    pub(super) fn join(arrival: &Arc<Arrival>) -> Option<Self> {
        let mut state = arrival.state();
        if matches!(state.phase, Phase::Failed(_)) {
            return None;
        }
        state.reader_count += 1;
        drop(state);
        Some(Self(Arc::clone(arrival)))
    }

    pub(super) fn arrival(&self) -> &Arc<Arrival> {
        &self.0
    }

    /// Returns the local file, if it is whole.
    pub(super) fn whole(&self) -> Option<Arc<File>> {
        let is_whole = self.0.state().phase == Phase::Whole;
        is_whole.then(|| Arc::clone(&self.0.file))
    }

    /// Returns the file, and the end of the bytes from `at` on that can be read now; `None` if
    /// there are none yet, and the waker will be called.
    pub(super) fn ready(
        &self,
        at: u64,
        waker: impl FnOnce() + Send + 'static,
    ) -> Result<Option<(Arc<File>, u64)>, Failure> {
        let mut state = self.0.state();
        let end = state.readable_end(at, self.0.wanted.len);
        if end > at {
            return Ok(Some((Arc::clone(&self.0.file), end)));
        }
        if let Phase::Failed(failure) = &state.phase {
            return Err(failure.clone());
        }
        state.ask(at);
        state.wakers.push(Box::new(waker));
        Ok(None)
    }

    /// Waits until there are bytes at `at`. Returns the file, and the end of these bytes.
    pub(super) fn wait(&self, at: u64) -> Result<(Arc<File>, u64), Failure> {
        let mut state = self.0.state();
        loop {
            let end = state.readable_end(at, self.0.wanted.len);
            if end > at {
                return Ok((Arc::clone(&self.0.file), end));
            }
            if let Phase::Failed(failure) = &state.phase {
                return Err(failure.clone());
            }
            state.ask(at);
            let waited = self.0.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    /// Lets the piece with this byte be requested next.
    fn ask(&mut self, at: u64) {
        if let Ok(index) = usize::try_from(at / PIECE_LEN)
            && self.pieces.get(index).is_some_and(|it| !it.is_requested)
            && !self.asked.contains(&index)
        {
            self.asked.push_back(index);
        }
    }
}
