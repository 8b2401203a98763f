//! Reads the files of a tree with several threads: [`hash`] and [`Packer`].
//!
//! # Theory of operation
//!
//! Threads claim runs of consecutive files and read them. Without a NAR, a run is only hashed. With
//! a NAR, a thread writes the bytes of its run, framing included, into pieces, each with its offset
//! in the NAR. The consumer takes the pieces in order. A thread that is ahead of the consumer by a
//! window of bytes waits. The thread with the next piece never waits: runs are claimed in order, so
//! its piece is in the window.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | length of a piece | 256 KiB | fits into the processor's cache |
//! | pieces ahead of the consumer | 8 MiB | hides the latency of a disk |
//! | open files and directories per thread | 5 | works with 64 descriptors |
//! | threads | 8 | more do not help: one thread computes the hash of the NAR |

use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use samovar_nix::NarHash;
use samovar_nix::nar::Encoder;
use sha2::{Digest, Sha256};

use crate::entries::{Framing, Kind, Step};
use crate::files::Files;
use crate::index::Index;
use crate::pipe::{Interrupt, PIECE_LEN, Pipe, Running, StopOnDrop, locked, panicked};
use crate::read_error::ReadError;
use crate::scan::{Options, Scanned};

/// A function that is called with the number of bytes that were read since its last call: bytes of
/// the NAR if its hash is computed, otherwise of files.
pub type Report<'a> = &'a (dyn Fn(u64) + Sync);

/// Length of a run of files, in bytes: most runs fit into one piece.
const RUN_LEN: u64 = 192 << 10;

/// Maximum number of files in a run.
const RUN_COUNT_MAX: usize = 256;

/// Number of links and directories between two checks of the length of a run.
const STEP_COUNT: usize = 16;

/// Number of times that a changing tree is read before the change counts as an error.
const ATTEMPTS_MAX: usize = 8;

/// Maximum number of reading threads.
const THREADS_MAX: usize = 8;

/// Returns the default number of reading threads: one for each processor, and at least two, so that
/// a disk always has something to read.
#[must_use]
pub fn default_threads() -> usize {
    let count = thread::available_parallelism().map_or(2, NonZeroUsize::get);
    count.clamp(2, THREADS_MAX)
}

/// A function that scans a tree again.
pub type Rescan<'a> = &'a dyn Fn(Options) -> Result<Scanned, ReadError>;

/// Scans the directory `root` and computes the digests of all files, and the hash of the NAR if it
/// is wanted. Takes the digests of unchanged files from the index. The result is the state of the
/// whole tree at one moment.
///
/// # Errors
///
/// [`ReadError::Changed`] if the tree keeps changing; any other [`ReadError`].
pub fn read_tree(
    root: &Path,
    index: Option<&Index>,
    needs_nar_hash: bool,
    threads: usize,
) -> Result<(Scanned, Option<NarHash>), ReadError> {
    let rescan = |options| Scanned::scan_with(root, options);
    let mut scanned = scan_again(&rescan, Options::default())?;
    if let Some(index) = index {
        index.apply(&mut scanned);
    }
    let nar_hash = hash_steady(&mut scanned, needs_nar_hash, threads, &|_| {}, &rescan)?;
    Ok((scanned, nar_hash))
}

/// Like [`hash()`], and scans the whole tree once more, to be sure that all entries, directories
/// included, were in the scanned state at one moment between the two scans. If the tree has
/// changed, or changed so shortly before the scan that a further change in the same tick of the
/// clock would be invisible, starts again with a new scan, a few times. Only what differs is read
/// again, unless the hash of the NAR is wanted.
///
/// # Errors
///
/// [`ReadError::Changed`] if the tree keeps changing; any other [`ReadError`].
pub fn hash_steady(
    scanned: &mut Scanned,
    needs_nar_hash: bool,
    threads: usize,
    report: Report<'_>,
    rescan: Rescan<'_>,
) -> Result<Option<NarHash>, ReadError> {
    let mut attempt = 1;
    loop {
        let changed = match try_hash_steady(scanned, needs_nar_hash, threads, report, rescan) {
            Ok(Steady::Yes(nar_hash)) => return Ok(nar_hash),
            Ok(Steady::TooEarly) => ReadError::Changed(scanned.root.clone()),
            Err(changed @ ReadError::Changed(_)) => changed,
            Err(error) => return Err(error),
        };
        if attempt == ATTEMPTS_MAX {
            return Err(changed);
        }
        attempt += 1;
        let known = Index::of(scanned);
        *scanned = scan_again(rescan, Options::WRITING)?;
        known.apply(scanned);
    }
}

/// Whether a tree was in the scanned state at one moment.
enum Steady {
    /// The tree was in this state. Contains the hash of its NAR, if that was wanted.
    Yes(Option<NarHash>),
    /// Not known: an entry has changed in the same tick of the clock in which it was scanned. That
    /// tick is over now.
    TooEarly,
}

fn try_hash_steady(
    scanned: &mut Scanned,
    needs_nar_hash: bool,
    threads: usize,
    report: Report<'_>,
    rescan: Rescan<'_>,
) -> Result<Steady, ReadError> {
    let unsettled = scanned.unsettled_time();
    if !unsettled.is_zero() {
        thread::sleep(unsettled);
        return Ok(Steady::TooEarly);
    }
    let nar_hash = hash(scanned, needs_nar_hash, threads, report)?;
    match scanned.difference(&rescan(Options::default())?) {
        None => Ok(Steady::Yes(nar_hash)),
        Some(path) => Err(ReadError::Changed(path)),
    }
}

/// Scans a tree, again if it changes meanwhile.
fn scan_again(rescan: Rescan<'_>, options: Options) -> Result<Scanned, ReadError> {
    for _ in 1..ATTEMPTS_MAX {
        match rescan(options) {
            Err(ReadError::Changed(_)) => {}
            outcome => return outcome,
        }
    }
    rescan(options)
}

/// Computes the missing digests, and the hash of the whole NAR if it is wanted, in one pass. With
/// the NAR, all files are read, and compared with their digests.
///
/// Each file is checked before and after it is read. Different files are read at different times.
///
/// # Errors
///
/// [`ReadError::Changed`] if a file is not in the scanned state; [`ReadError::Damaged`] if a file
/// differs from its digest; any other [`ReadError`]. Digests computed up to then are set.
pub fn hash(
    scanned: &mut Scanned,
    needs_nar_hash: bool,
    threads: usize,
    report: Report<'_>,
) -> Result<Option<NarHash>, ReadError> {
    let missing: Vec<usize> = scanned.files_without_digest().collect();
    let found = Mutex::new(Digests::new());
    let outcome = match needs_nar_hash {
        true => {
            let pipe = Pipe::new(scanned.entries.nar_size(), 0);
            let plan = Plan::Nar(scanned.entries.framing(), 0);
            let job = Job::new(scanned, plan, Some(&pipe), Some(&found));
            hash_nar(&job, &pipe, threads, report).map(Some)
        }
        false if missing.is_empty() => Ok(None),
        false => {
            let plan = Plan::Files(missing.iter());
            let job = Job::new(scanned, plan, None, Some(&found));
            hash_files(&job, threads, report).map(|()| None)
        }
    };
    for (index, digest) in found.into_inner().unwrap_or_else(PoisonError::into_inner) {
        scanned.entries.set_digest(index, digest);
    }
    outcome
}

fn hash_files(job: &Job<'_>, threads: usize, report: Report<'_>) -> Result<(), ReadError> {
    thread::scope(|scope| {
        let more = (1..threads.min(THREADS_MAX)).map_while(|_| {
            let thread = thread::Builder::new();
            thread.spawn_scoped(scope, || job.work(report)).ok()
        });
        let more: Vec<_> = more.collect();
        let first = job.work(report);
        let join = |thread: thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(outcome) => outcome,
            Err(_) => Err(panicked()),
        };
        more.into_iter().map(join).fold(first, Result::and)
    })
}

fn hash_nar(
    job: &Job<'_>,
    pipe: &Pipe,
    threads: usize,
    report: Report<'_>,
) -> Result<NarHash, ReadError> {
    thread::scope(|scope| {
        let _stop = StopOnDrop(pipe);
        for started in 0..threads.clamp(1, THREADS_MAX) {
            let running = pipe.start_thread();
            let spawned = thread::Builder::new().spawn_scoped(scope, move || {
                let _running = running;
                job.feed();
            });
            match spawned {
                Err(error) if started == 0 => return Err(ReadError::Thread(error)),
                Err(_) => break,
                Ok(_) => {}
            }
        }
        let mut hasher = Sha256::new();
        while let Some(piece) = pipe.take()? {
            hasher.update(&piece);
            report(piece.len() as u64);
            pipe.recycle(piece);
        }
        Ok(NarHash::from_bytes(hasher.finalize().into()))
    })
}

/// The NAR of a scanned tree, read from the directory. Each file is checked before and after it is
/// read; if one has changed, reading ends with an error. Threads read ahead.
#[derive(Debug)]
pub struct Packer {
    pipe: Arc<Pipe>,
    thread: Option<JoinHandle<()>>,
    piece: Vec<u8>,
    /// Number of bytes of `piece` that were read.
    at: usize,
}

impl Packer {
    /// Starts reading.
    ///
    /// # Errors
    ///
    /// [`ReadError::Thread`].
    pub fn start(scanned: Arc<Scanned>, threads: usize) -> Result<Self, ReadError> {
        let pipe = Arc::new(Pipe::new(scanned.entries.nar_size(), 1));
        let shared = Arc::clone(&pipe);
        let thread = thread::Builder::new().spawn(move || {
            let _running = Running(&shared);
            let job = Job::new(
                &scanned,
                Plan::Nar(scanned.entries.framing(), 0),
                Some(&shared),
                None,
            );
            thread::scope(|scope| {
                for _ in 1..threads.min(THREADS_MAX) {
                    let running = shared.start_thread();
                    let job = &job;
                    let spawned = thread::Builder::new().spawn_scoped(scope, move || {
                        let _running = running;
                        job.feed();
                    });
                    if spawned.is_err() {
                        break;
                    }
                }
                job.feed();
            });
        });
        Ok(Self {
            pipe,
            thread: Some(thread.map_err(ReadError::Thread)?),
            piece: Vec::new(),
            at: 0,
        })
    }
}

impl Read for Packer {
    /// Reads bytes of the NAR. Errors contain a [`ReadError`].
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() {
            self.pipe.recycle(std::mem::take(&mut self.piece));
            self.at = 0;
            let next = self.pipe.take().map_err(io::Error::other)?;
            self.piece = next.unwrap_or_default();
        }
        let piece = &self.piece[self.at..];
        let count = piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&piece[..count]);
        self.at += count;
        Ok(count)
    }
}

impl Drop for Packer {
    fn drop(&mut self) {
        self.pipe.stop();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the pipe.
            drop(thread.join());
        }
    }
}

/// Returns the NAR of a regular file that is not executable.
///
/// # Panics
///
/// Never: a file of any length in memory has a NAR.
#[must_use]
pub fn file_nar(contents: &[u8]) -> Vec<u8> {
    let mut nar = Vec::with_capacity(contents.len() + 256);
    let mut encoder = Encoder::new();
    let begun = encoder.begin(&mut nar);
    let begun = begun.and_then(|()| encoder.file(&mut nar, false, contents.len() as u64));
    nar.extend_from_slice(contents);
    let ended = encoder.end_file(&mut nar);
    debug_assert!(begun.is_ok() && ended.is_ok(), "the steps are in order");
    nar
}

/// Indices of files with their digests.
type Digests = Vec<(usize, [u8; 32])>;

/// What the threads have to do.
struct Job<'a> {
    scanned: &'a Scanned,
    plan: Mutex<Plan<'a>>,
    /// Where the bytes of the NAR go.
    pipe: Option<&'a Pipe>,
    /// Where missing digests go; `None` to compute no digests.
    found: Option<&'a Mutex<Digests>>,
}

/// The files that are not claimed yet.
enum Plan<'a> {
    /// Some files, to be hashed.
    Files(std::slice::Iter<'a, usize>),
    /// All files, and the offset in the NAR of the next run.
    Nar(Framing<'a>, u64),
    /// None.
    Done,
}

/// Consecutive files that one thread reads.
#[derive(Default)]
struct Run {
    /// Offset of the first byte in the NAR.
    offset: u64,
    framing: Vec<u8>,
    /// The files, each with the length of the framing up to its contents.
    files: Vec<(usize, usize)>,
}

impl<'a> Job<'a> {
    fn new(
        scanned: &'a Scanned,
        plan: Plan<'a>,
        pipe: Option<&'a Pipe>,
        found: Option<&'a Mutex<Digests>>,
    ) -> Self {
        Self {
            scanned,
            plan: Mutex::new(plan),
            pipe,
            found,
        }
    }

    /// Claims the next run. Returns `false` if there is none.
    fn claim(&self, run: &mut Run) -> Result<bool, ReadError> {
        run.framing.clear();
        run.files.clear();
        let mut plan = locked(&self.plan);
        let mut contents_len = 0;
        let is_full = |files_len: usize, framing_len: usize, contents_len: u64| {
            files_len >= RUN_COUNT_MAX || contents_len + framing_len as u64 >= RUN_LEN
        };
        match &mut *plan {
            Plan::Done => return Ok(false),
            Plan::Files(files) => {
                while !is_full(run.files.len(), 0, contents_len) {
                    let Some(index) = files.next() else { break };
                    contents_len += self.size(*index);
                    run.files.push((*index, 0));
                }
                return Ok(!run.files.is_empty());
            }
            Plan::Nar(framing, offset) => {
                run.offset = *offset;
                let mut is_at_end = false;
                while !is_full(run.files.len(), run.framing.len(), contents_len) {
                    let step = framing.step(&mut run.framing, STEP_COUNT);
                    let step = step.map_err(|error| ReadError::Entry {
                        path: self.scanned.root.clone(),
                        reason: error.into(),
                    })?;
                    match step {
                        Step::File(index) => {
                            contents_len += self.size(index);
                            run.files.push((index, run.framing.len()));
                        }
                        Step::More => {}
                        Step::End => {
                            is_at_end = true;
                            break;
                        }
                    }
                }
                *offset += contents_len + run.framing.len() as u64;
                if is_at_end {
                    *plan = Plan::Done;
                }
            }
        }
        Ok(true)
    }

    fn size(&self, index: usize) -> u64 {
        match self.scanned.entries.get(index).map(|entry| &entry.kind) {
            Some(Kind::File { size, .. }) => *size,
            _ => 0,
        }
    }

    /// Compares the digest of a file with the known one; returns it if there is none.
    fn missing_digest(&self, index: usize, found: [u8; 32]) -> Result<Option<[u8; 32]>, ReadError> {
        match self.scanned.entries.get(index).map(|entry| &entry.kind) {
            Some(Kind::File {
                digest: Some(known),
                ..
            }) if *known != found => Err(ReadError::Damaged(self.scanned.path(index))),
            Some(Kind::File { digest: None, .. }) => Ok(Some(found)),
            _ => Ok(None),
        }
    }

    /// Reads runs and hashes their files until there are none or one fails.
    fn work(&self, report: Report<'_>) -> Result<(), ReadError> {
        let mut files = Files::open_root(self.scanned)?;
        let mut run = Run::default();
        let mut buffer = Vec::with_capacity(PIECE_LEN);
        let mut digests = Vec::new();
        let mut read_all = || {
            while self.claim(&mut run)? {
                for (index, _) in &run.files {
                    buffer.clear();
                    let discard = |buffer: &mut Vec<u8>| {
                        report(buffer.len() as u64);
                        buffer.clear();
                        Ok::<(), ReadError>(())
                    };
                    let digest = files.read(*index, true, &mut buffer, discard)?;
                    report(buffer.len() as u64);
                    digests.extend(digest.map(|digest| (*index, digest)));
                }
            }
            Ok(())
        };
        let outcome = read_all();
        if outcome.is_err() {
            // The other threads need not continue.
            *locked(&self.plan) = Plan::Done;
        }
        if let Some(found) = self.found {
            locked(found).append(&mut digests);
        }
        outcome
    }

    /// Reads runs and sends their bytes into the pipe until there are none or one fails.
    fn feed(&self) {
        let Some(pipe) = self.pipe else { return };
        let mut digests = Vec::new();
        let outcome = self.feed_all(pipe, &mut digests);
        if let Some(found) = self.found {
            locked(found).append(&mut digests);
        }
        if let Err(Interrupt::Failed(error)) = outcome {
            pipe.fail(error);
        }
    }

    fn feed_all(&self, pipe: &Pipe, digests: &mut Digests) -> Result<(), Interrupt> {
        let mut files = Files::open_root(self.scanned)?;
        let mut run = Run::default();
        let mut buffer = pipe.buffer();
        while self.claim(&mut run)? {
            let mut offset = run.offset;
            let mut flush = |buffer: &mut Vec<u8>| {
                let len = buffer.len() as u64;
                let piece = std::mem::replace(buffer, pipe.buffer());
                pipe.put(offset, piece)?;
                offset += len;
                Ok(())
            };
            let mut framing = &run.framing[..];
            let mut framing_start = 0;
            for (index, framing_end) in &run.files {
                let (head, rest) = framing.split_at(framing_end - framing_start);
                append(&mut buffer, head, &mut flush)?;
                (framing, framing_start) = (rest, *framing_end);
                let needs_digest = self.found.is_some();
                let digest = files.read(*index, needs_digest, &mut buffer, &mut flush)?;
                if let Some(digest) = digest {
                    let missing = self.missing_digest(*index, digest)?;
                    digests.extend(missing.map(|digest| (*index, digest)));
                }
            }
            append(&mut buffer, framing, &mut flush)?;
            if !buffer.is_empty() {
                flush(&mut buffer)?;
            }
        }
        pipe.recycle(buffer);
        Ok(())
    }
}

/// Appends bytes to a buffer of fixed capacity.
fn append(
    buffer: &mut Vec<u8>,
    mut bytes: &[u8],
    mut flush: impl FnMut(&mut Vec<u8>) -> Result<(), Interrupt>,
) -> Result<(), Interrupt> {
    while !bytes.is_empty() {
        if buffer.len() == buffer.capacity() {
            flush(buffer)?;
        }
        let capacity = buffer.capacity() - buffer.len();
        let (now, later) = bytes.split_at(bytes.len().min(capacity));
        buffer.extend_from_slice(now);
        bytes = later;
    }
    Ok(())
}
