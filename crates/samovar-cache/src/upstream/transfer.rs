//! [`Transfer`]: a NAR that arrives from an upstream, for any number of readers.
//!
//! A thread of the upstream's pool receives the NAR, verifies it on the way, and writes it to a
//! copy in the storage or in the NAR cache. Each reader reads the copy at its own speed. If there
//! is no copy, a window in memory has the bytes that arrived last. The thread then waits until the
//! fastest reader has read the window, and a reader that falls behind the window gets a new
//! transfer from the start of the NAR. The thread ends when no reader is left.
//!
//! Readers get the last piece only after the whole NAR has passed verification, so no reader takes
//! a wrong NAR for complete. A short NAR is received completely before its first response begins:
//! if it is wrong or breaks off, clients get a 404 instead of an aborted response, which would fail
//! a build.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use samovar_http::Waker;
use samovar_nix::NarHash;
use samovar_nix::narinfo::Compression;
use samovar_storage::kept::Keeping;
use samovar_verify::{Limits, Verified, VerifyError, verify_unnamed};

use crate::known::nar_cache::{CachedNar, NarCache};
use crate::sync::{Locked, unpoisoned};
use crate::upstream::decompressors::Decompressors;
use crate::upstream::one::{Counts, Found};
use crate::upstream::request::{Failed, Said, Trouble, stated_len};
use crate::upstream::window::{self, NarCopy, Window};

/// Maximum length of a file that is received before the first response, in bytes, if it is written
/// to the NAR cache. If a longer file is wrong, this turns out only after its first bytes were
/// sent.
const WHOLE_LEN_MAX: u64 = 8 << 20;

/// As [`WHOLE_LEN_MAX`], if the file is in memory.
const WHOLE_IN_MEMORY_LEN_MAX: u64 = 1 << 20;

/// Length of the window that each transfer may have, in bytes.
const WINDOW_LEN_MIN: u64 = 256 << 10;

/// Maximum length of a window, in bytes.
const WINDOW_LEN_MAX: u64 = 16 << 20;

/// Number of transfers in the table from which on ended ones are removed from it.
const KEPT_COUNT_MAX: usize = 256;

/// Maximum wait of a transfer before it checks again whether there is memory.
const LOOK_TIME: Duration = Duration::from_millis(50);

/// The number of an upstream, and hash and compression of a NAR.
type Key = (usize, NarHash, Compression);

fn key(found: &Found) -> Key {
    let narinfo = &found.narinfo;
    (found.upstream.id(), narinfo.nar_hash, narinfo.compression)
}

/// The transfers in progress, and their memory.
#[derive(Debug)]
pub(super) struct Transfers {
    /// A later transfer of the same NAR replaces an earlier one.
    running: Mutex<HashMap<Key, Weak<Transfer>>>,
    /// Memory of windows, in bytes.
    used: AtomicU64,
    /// Maximum memory of windows, beyond [`WINDOW_LEN_MIN`] for each, in bytes.
    len_max: u64,
    decompressors: Decompressors,
}

impl Transfers {
    pub(super) fn new(len_max: u64) -> Self {
        Self {
            running: Mutex::default(),
            used: AtomicU64::new(0),
            len_max,
            decompressors: Decompressors::default(),
        }
    }

    fn is_used_up(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.len_max
    }
}

/// Called once, when the upstream has answered.
pub(super) type Started = Box<dyn FnOnce(Result<Joined, Failed>) + Send>;

/// A reader of a transfer that has started.
pub(super) struct Joined {
    pub(super) transfer: Arc<Transfer>,
    /// Number of the reader.
    pub(super) reader: u64,
    /// Length of the file in bytes; `None`: the upstream does not say.
    pub(super) len: Option<u64>,
}

/// Where the NARs of a cache are copied to.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    pub(super) transfers: &'a Arc<Transfers>,
    pub(super) nar_cache: Option<&'a Arc<NarCache>>,
    /// Whether an uploaded path needs the path, so that it is kept beyond `keep-size`.
    pub(super) is_needed: bool,
}

/// A NAR that arrives from an upstream.
pub(super) struct Transfer {
    pub(super) found: Arc<Found>,
    transfers: Arc<Transfers>,
    /// The NAR cache for the copy; `None`: there is none.
    nar_cache: Option<Arc<NarCache>>,
    /// See [`Places::is_needed`].
    is_needed: bool,
    state: Mutex<State>,
    /// Signalled when a reader has read, or has left.
    read: Condvar,
}

#[derive(Default)]
struct State {
    /// The file of the copy in the NAR cache, and the number of bytes in it that readers may read.
    copy: Option<(Arc<File>, u64)>,
    /// The complete copy, which is not evicted while this transfer has readers.
    cached: Option<Arc<CachedNar>>,
    /// The window, from the byte at `start` to the one before `end`.
    pieces: VecDeque<Arc<[u8]>>,
    start: u64,
    end: u64,
    /// Length of the file; `None`: not known yet, or not stated.
    len: Option<u64>,
    waiting: Vec<(u64, Started)>,
    readers: HashMap<u64, Reader>,
    last_reader: u64,
    phase: Phase,
}

#[derive(Default, Clone)]
enum Phase {
    /// The upstream has not answered yet.
    #[default]
    Asked,
    Flowing,
    /// All bytes are in the window or were in it, and the NAR is right.
    Complete,
    Failed(Failed),
}

struct Reader {
    /// Number of bytes that the reader has read or skipped.
    at: u64,
    waker: Option<Waker>,
}

/// A NAR that was received and verified: the length of its file, if stated, and the copy to publish
/// in the storage.
type Received = (Option<u64>, Option<(Keeping, Verified)>);

/// What a reader gets.
pub(super) enum Piece {
    /// This part of these bytes.
    Bytes(Arc<[u8]>, Range<usize>),
    /// The bytes of this file from where the reader is to this offset.
    Copy(Arc<File>, u64),
    /// There is nothing yet. The waker was stored.
    Wait,
    /// The NAR has ended here, and is right.
    End,
    /// The window has moved past this reader.
    Lost,
    /// The transfer has failed for this reason, a fragment.
    Failed(String),
}

impl Transfer {
    /// Joins the transfer of a NAR, or starts one. `started` is called when the upstream has
    /// answered, at once if it has.
    pub(super) fn join(found: &Arc<Found>, places: Places<'_>, started: Started) {
        let key = key(found);
        let mut running = places.transfers.running.locked();
        if running.len() >= KEPT_COUNT_MAX {
            running.retain(|_, transfer| transfer.strong_count() > 0);
        }
        let same = running.get(&key).and_then(Weak::upgrade);
        let started = match same {
            Some(same) => match same.add_reader(started) {
                Ok(()) => return,
                Err(started) => started,
            },
            None => started,
        };
        let new = Self::new(found, places);
        new.await_start(0, started);
        running.insert(key, Arc::downgrade(&new));
        drop(running);
        new.begin();
    }

    /// Returns the transfer of a NAR in progress, which can be joined while the caller has it. One
    /// that has ended has kept its copy before, if it was to be kept.
    pub(super) fn running(found: &Found, transfers: &Transfers) -> Option<Arc<Self>> {
        transfers.running.locked().get(&key(found))?.upgrade()
    }

    fn new(found: &Arc<Found>, places: Places<'_>) -> Arc<Self> {
        Arc::new(Self {
            found: Arc::clone(found),
            transfers: Arc::clone(places.transfers),
            nar_cache: places.nar_cache.cloned(),
            is_needed: places.is_needed,
            state: Mutex::default(),
            read: Condvar::new(),
        })
    }

    /// Adds a reader to a transfer that has not begun.
    fn await_start(&self, at: u64, started: Started) -> u64 {
        let mut state = self.state.locked();
        let reader = state.add(at);
        state.waiting.push((reader, started));
        reader
    }

    /// Begins to receive the NAR.
    fn begin(self: &Arc<Self>) {
        let transfer = Arc::clone(self);
        let nars = &self.found.upstream.nars;
        if nars.run(Box::new(move || transfer.run())).is_err() {
            let reason = "too many NARs are requested from it".to_owned();
            self.fail(Failed::Trouble(reason));
        }
    }

    /// Adds a reader, unless the transfer has failed or its window has left the beginning behind.
    fn add_reader(self: &Arc<Self>, started: Started) -> Result<(), Started> {
        let mut state = self.state.locked();
        if state.has_lost(0) || matches!(state.phase, Phase::Failed(_)) {
            return Err(started);
        }
        let reader = state.add(0);
        match state.phase {
            Phase::Asked => state.waiting.push((reader, started)),
            _ => {
                let len = state.len;
                drop(state);
                started(Ok(self.joined(reader, len)));
            }
        }
        Ok(())
    }

    /// Begins a transfer of the same NAR for one reader alone, which has read `at` bytes and fell
    /// behind the window of this one.
    pub(super) fn begin_again(&self, at: u64) -> (Arc<Self>, u64) {
        let places = Places {
            transfers: &self.transfers,
            nar_cache: self.nar_cache.as_ref(),
            is_needed: self.is_needed,
        };
        let new = Self::new(&self.found, places);
        // The length was compared when this transfer started.
        let reader = new.await_start(at, Box::new(|_| {}));
        new.begin();
        (new, reader)
    }

    /// Returns the next bytes for a reader, of those before `limit`. If there are none yet, stores
    /// the waker. The byte before `limit` comes only when the whole NAR is right.
    pub(super) fn next(&self, reader: u64, limit: u64, waker: &Waker) -> Piece {
        let mut state = self.state.locked();
        let Some(at) = state.readers.get(&reader).map(|reader| reader.at) else {
            return Piece::Lost;
        };
        if state.has_lost(at) {
            return Piece::Lost;
        }
        let limit = match state.phase {
            Phase::Complete => limit,
            _ => limit.saturating_sub(1),
        };
        if let Some((file, len)) = &state.copy
            && at < limit.min(*len)
        {
            return Piece::Copy(Arc::clone(file), limit.min(*len));
        }
        if at < state.end.min(limit) {
            let mut begin = state.start;
            for piece in &state.pieces {
                let end = begin + piece.len() as u64;
                if at < end {
                    let index = |at: u64| usize::try_from(at - begin).unwrap_or(usize::MAX);
                    return Piece::Bytes(Arc::clone(piece), index(at)..index(end.min(limit)));
                }
                begin = end;
            }
        }
        match &state.phase {
            Phase::Complete => Piece::End,
            Phase::Failed(failed) => Piece::Failed(failed.reason().to_owned()),
            Phase::Asked | Phase::Flowing => {
                if let Some(reader) = state.readers.get_mut(&reader) {
                    reader.waker = Some(waker.clone());
                }
                Piece::Wait
            }
        }
    }

    /// Records that a reader has read these many bytes.
    pub(super) fn advance(&self, reader: u64, count: u64) {
        if let Some(reader) = self.state.locked().readers.get_mut(&reader) {
            reader.at += count;
        }
        self.read.notify_all();
    }

    /// Removes a reader.
    pub(super) fn leave(&self, reader: u64) {
        self.state.locked().readers.remove(&reader);
        self.read.notify_all();
    }

    /// Waits until the NAR is complete, has failed, or turns out to get no copy. The reader reads
    /// nothing.
    pub(super) fn await_copy(&self, reader: u64) {
        let mut state = self.state.locked();
        loop {
            let has_ended = matches!(state.phase, Phase::Complete | Phase::Failed(_));
            if has_ended || state.copy.is_none() && state.end > 0 {
                break;
            }
            state = unpoisoned(self.read.wait_timeout(state, LOOK_TIME)).0;
        }
        drop(state);
        self.leave(reader);
    }

    fn is_abandoned(&self) -> bool {
        self.state.locked().readers.is_empty()
    }

    /// Receives the NAR. Runs on a thread of the upstream's pool.
    fn run(self: Arc<Self>) {
        // Readers that wait must be woken even after a panic.
        let ending = Ending(&self);
        match self.receive() {
            Ok((len, kept)) => {
                self.start(len, Phase::Complete);
                // Clients do not wait until the disk is written.
                if let Some((keeping, verified)) = kept {
                    window::keep(&self.found, keeping, verified);
                }
            }
            Err(failed) => self.fail(failed),
        }
        drop(ending);
    }

    fn receive(self: &Arc<Self>) -> Result<Received, Failed> {
        let (upstream, narinfo) = (&self.found.upstream, &self.found.narinfo);
        let watched = Arc::downgrade(self);
        let is_abandoned = move || watched.upgrade().is_none_or(|it| it.is_abandoned());
        let trouble = |trouble: Trouble| Failed::Trouble(trouble.text().to_owned());
        let said = upstream.nar(&narinfo.url, Box::new(is_abandoned));
        let mut file = match said.map_err(trouble)? {
            Said::Absent => return Err(Failed::Gone),
            Said::Found(file) => file,
        };
        let len = stated_len(narinfo, file.len())?;
        let copy = NarCopy::begin(&self.found, self.nar_cache.as_ref(), self.is_needed, len);
        let whole_len_max = match copy {
            Some(_) => WHOLE_LEN_MAX,
            None => WHOLE_IN_MEMORY_LEN_MAX,
        };
        let is_whole = len.is_some_and(|len| len <= whole_len_max);
        if !is_whole {
            self.start(len, Phase::Flowing);
        }
        let mut window = Window::new(self, is_whole, copy);
        let limits = Limits {
            nar_size_max: narinfo.nar_size,
            ..Limits::default()
        };
        let mut memory = self.transfers.decompressors.share();
        let compression = narinfo.compression;
        let verified = verify_unnamed(&mut file, compression, &mut window, &limits, &mut memory);
        drop(memory);
        let wrong = |what: String| Failed::Wrong(format!("its NAR is wrong: {what}"));
        let verified = verified.map_err(|error| match error {
            VerifyError::Source(error) => Failed::Trouble(format!("the NAR broke off: {error}")),
            VerifyError::Sink(error) => Failed::Trouble(error.to_string()),
            VerifyError::Memory(error) => Failed::Trouble(error.to_string()),
            VerifyError::Refused(refusal) => wrong(refusal.fault()),
        })?;
        if verified.compression != compression {
            return Err(wrong(format!(
                "it is not compressed with {}",
                compression.name()
            )));
        }
        if verified.nar_size != narinfo.nar_size {
            let (has, stated) = (verified.nar_size, narinfo.nar_size);
            return Err(wrong(format!("it has {has} bytes instead of {stated}")));
        }
        if verified.nar_hash != narinfo.nar_hash {
            return Err(wrong("its hash is not the one in the narinfo".to_owned()));
        }
        if len.is_some_and(|len| len != verified.file_size) {
            return Err(wrong(
                "its file does not have the length that it states".to_owned(),
            ));
        }
        let ended = window.finish();
        let keeping = ended.map_err(|error| Failed::Trouble(error.to_string()))?;
        Counts::add(&upstream.counts.nar_count, 1);
        let kept = keeping.map(|keeping| (keeping, verified));
        Ok((len, kept))
    }

    /// Begins a phase in which readers get bytes of a file of this length, and tells those who
    /// wait.
    fn start(self: &Arc<Self>, len: Option<u64>, phase: Phase) {
        let mut state = self.state.locked();
        state.len = len;
        state.phase = phase;
        let waiting = std::mem::take(&mut state.waiting);
        state.wake();
        drop(state);
        for (reader, started) in waiting {
            started(Ok(self.joined(reader, len)));
        }
    }

    fn joined(self: &Arc<Self>, reader: u64, len: Option<u64>) -> Joined {
        Joined {
            transfer: Arc::clone(self),
            reader,
            len,
        }
    }

    fn fail(&self, failed: Failed) {
        let state = self.state.locked();
        let is_abandoned = state.readers.is_empty() && state.waiting.is_empty();
        drop(state);
        if !is_abandoned {
            // Tell the director first: a client that repeats its request must not get here again.
            self.found.upstream.nar_failed(&self.found.narinfo, &failed);
        }
        let mut state = self.state.locked();
        state.phase = Phase::Failed(failed.clone());
        let waiting = std::mem::take(&mut state.waiting);
        state.wake();
        drop(state);
        for (_, started) in waiting {
            started(Err(failed.clone()));
        }
    }

    /// Reports that a copy cannot be written. The NAR is passed on without it.
    pub(super) fn copy_failed(&self, error: &io::Error) {
        let Found {
            upstream, narinfo, ..
        } = &*self.found;
        // The NAR cache reports its own failures.
        if upstream.kept.is_some() {
            upstream.not_kept(narinfo, error);
        }
    }

    /// Holds the complete copy while this transfer has readers.
    pub(super) fn hold(&self, cached: Option<Arc<CachedNar>>) {
        self.state.locked().cached = cached;
    }

    /// Lets readers read this many bytes of the copy, and all further ones from the window.
    pub(super) fn copied(&self, file: &Arc<File>, len: u64) {
        let mut state = self.state.locked();
        let added = len.saturating_sub(state.end);
        state.copy = Some((Arc::clone(file), len));
        (state.start, state.end) = (len, len);
        state.wake();
        drop(state);
        Counts::add(&self.found.upstream.counts.nar_len, added);
    }

    /// Adds a piece to the window. Unless the whole file is received first, waits for room.
    pub(super) fn add(&self, piece: Arc<[u8]>, is_whole: bool) -> io::Result<()> {
        let len = piece.len() as u64;
        let mut state = self.state.locked();
        loop {
            let Some(fastest) = state.readers.values().map(|reader| reader.at).max() else {
                return Err(io::Error::new(
                    io::ErrorKind::BrokenPipe,
                    "no client reads the NAR",
                ));
            };
            let unread = state.end.saturating_sub(fastest);
            let limit = match self.transfers.is_used_up() {
                true => WINDOW_LEN_MIN,
                false => WINDOW_LEN_MAX,
            };
            if is_whole || unread < limit {
                break;
            }
            state = unpoisoned(self.read.wait_timeout(state, LOOK_TIME)).0;
        }
        state.pieces.push_back(piece);
        state.end += len;
        self.transfers.used.fetch_add(len, Ordering::Relaxed);
        Counts::add(&self.found.upstream.counts.nar_len, len);
        // Keep what was read for slower readers and new ones, as far as memory allows.
        let kept_max = match self.transfers.is_used_up() {
            true => WINDOW_LEN_MIN,
            false => WINDOW_LEN_MAX,
        };
        let fastest = state.readers.values().map(|reader| reader.at).max();
        let fastest = fastest.unwrap_or(state.end);
        while state.end - state.start > kept_max {
            let Some(first) = state.pieces.front().map(|piece| piece.len() as u64) else {
                break;
            };
            if state.start + first > fastest {
                break;
            }
            state.pieces.pop_front();
            state.start += first;
            self.transfers.used.fetch_sub(first, Ordering::Relaxed);
        }
        state.wake();
        Ok(())
    }
}

/// Fails a transfer whose thread ends without a result.
struct Ending<'a>(&'a Transfer);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let phase = self.0.state.locked().phase.clone();
        if matches!(phase, Phase::Asked | Phase::Flowing) {
            self.0.fail(Failed::Trouble(
                "the transfer of its NAR has failed".to_owned(),
            ));
        }
    }
}

impl State {
    /// Whether a reader at this offset can neither read the copy nor the window.
    fn has_lost(&self, at: u64) -> bool {
        at < self.start && self.copy.as_ref().is_none_or(|(_, len)| at >= *len)
    }

    fn add(&mut self, at: u64) -> u64 {
        self.last_reader += 1;
        self.readers
            .insert(self.last_reader, Reader { at, waker: None });
        self.last_reader
    }

    /// Wakes all readers that wait.
    fn wake(&mut self) {
        for reader in self.readers.values_mut() {
            if let Some(waker) = reader.waker.take() {
                waker.wake();
            }
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let state = self.state.locked();
        let len = state.end - state.start;
        self.transfers.used.fetch_sub(len, Ordering::Relaxed);
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("url", &self.found.narinfo.url)
            .finish_non_exhaustive()
    }
}
