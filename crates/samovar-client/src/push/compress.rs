//! Reads NARs and compresses them with zstd, on several threads and in bounded memory. Compares
//! each NAR with its expected hash, because some caches do not check it.
//!
//! # Theory of operation
//!
//! One thread reads the NARs in order and makes jobs. A job is a list of small NARs, or a piece of
//! a large NAR. Each piece of a large NAR becomes one zstd frame, so all workers can compress the
//! same NAR. The calling thread receives the results in the order of the jobs. The frames do not
//! depend on the number of workers. With the same level and version of zstd, a NAR therefore always
//! becomes the same file, and an interrupted upload can be continued.
//!
//! Each job needs a buffer, and there are two more buffers than workers. A buffer is free again
//! after the consumer has used the job's results. A slow consumer therefore stops the reading.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | memory | 8 MiB for each worker, and 16 MiB | 4 MiB of a NAR, and its frame |

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};

use samovar_nix::PathInfo;
use samovar_nix::seek_table::{SeekTable, pad};
use samovar_store::{NarReader, Store};
use sha2::{Digest as _, Sha256};
use zstd::bulk::Compressor;

/// Length of the content of one zstd frame of a store path, in bytes.
pub const FRAME_LEN: usize = 4 << 20;

/// Maximum length of a NAR that is compressed as one frame, in bytes.
pub(super) const SMALL_LEN_MAX: u64 = 1 << 20;

/// Maximum number of small NARs in a job, and of their bytes together.
const BATCH_COUNT_MAX: usize = 64;
const BATCH_LEN_MAX: u64 = 1 << 20;

/// The NARs of a push.
pub(super) trait Nars: Sync {
    /// Opens the NAR of a path. `nar`: index of the path.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be read.
    fn open(&self, nar: usize, info: &PathInfo) -> Result<Box<dyn Read + '_>, String>;

    /// Returns the reason why a NAR that was read is not the expected one.
    fn differs(&self) -> &'static str;
}

/// The NARs of a store.
pub(super) struct StoreNars<'a>(pub(super) &'a dyn Store);

impl Nars for StoreNars<'_> {
    fn open(&self, _nar: usize, info: &PathInfo) -> Result<Box<dyn Read + '_>, String> {
        let tree = self.0.tree(&info.path);
        let nar = tree
            .map_err(|error| error.to_string())?
            .nar()
            .map_err(|error| error.to_string())?;
        Ok(Box::new(StoreNar(nar)))
    }

    fn differs(&self) -> &'static str {
        "its files differ from its registration: run nix-store --verify --check-contents"
    }
}

struct StoreNar(NarReader);

impl Read for StoreNar {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.fill(buffer).map_err(io::Error::other)
    }
}

/// A result of a job. Results are delivered in the order of the NARs.
#[derive(Debug)]
pub(super) enum Output {
    /// The next frame of a NAR. A small NAR has only one.
    Frame {
        nar: usize,
        bytes: Vec<u8>,
        /// Length before compression, in bytes.
        content_len: u64,
        is_last: bool,
    },
    /// The NAR cannot be read. Frames of it may have been delivered already.
    Failed { nar: usize, reason: String },
}

impl Output {
    /// Adds a frame to the seek table of its NAR. Appends the table to the last frame, unless that
    /// is the only one.
    fn add_to(&mut self, table: &mut SeekTable) {
        let Self::Frame {
            bytes,
            content_len,
            is_last,
            ..
        } = self
        else {
            *table = SeekTable::default();
            return;
        };
        let is_first = table.is_empty();
        table.add(
            bytes.len(),
            usize::try_from(*content_len).unwrap_or(usize::MAX),
        );
        if *is_last {
            if !is_first {
                table.write(bytes);
            }
            *table = SeekTable::default();
        }
    }
}

enum Job {
    Small(Vec<usize>),
    Frame { nar: usize, is_last: bool },
    Failed { nar: usize, reason: String },
}

/// A job with its sequence number and its buffer.
type Numbered = (u64, Job, Vec<u8>);

/// The results of a job, with the job's sequence number and buffer.
type Done = (u64, Vec<Output>, Vec<u8>);

/// Settings of the compression.
#[derive(Debug, Clone, Copy)]
pub struct Compressing {
    /// Number of compressing threads.
    pub worker_count: usize,
    /// Compression level of zstd.
    pub level: i32,
    /// Length of the content of one frame of a large NAR, in bytes.
    pub frame_len: usize,
    /// Whether the file of a large NAR ends in a seek table, so that clients can read parts of it.
    pub is_seekable: bool,
}

/// Compresses the NARs `nars` (indices into `infos`) in this order, and calls `consume` for each
/// result.
///
/// # Errors
///
/// The first error of `consume`, and errors of zstd.
pub(super) fn run(
    source: &dyn Nars,
    infos: &[PathInfo],
    nars: &[usize],
    settings: Compressing,
    mut consume: impl FnMut(Output) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let worker_count = settings.worker_count.max(1);
    let buffer_count = worker_count + 2;
    let (job_sender, jobs) = sync_channel::<Numbered>(buffer_count);
    let jobs = Mutex::new(jobs);
    let (done_sender, done) = channel::<anyhow::Result<Done>>();
    let (buffer_sender, buffers) = channel();
    for _ in 0..buffer_count {
        buffer_sender.send(Vec::new()).ok();
    }
    let source = Source {
        nars: source,
        infos,
        frame_len: settings.frame_len,
    };
    std::thread::scope(|scope| {
        scope.spawn(move || source.make_jobs(nars, &buffers, job_sender));
        for _ in 0..worker_count {
            let done_sender = done_sender.clone();
            let jobs = &jobs;
            scope.spawn(move || work(source, settings.level, jobs, done_sender));
        }
        drop(done_sender);
        let mut table = settings.is_seekable.then(SeekTable::default);
        let consumed = deliver(&done, &buffer_sender, |mut output| {
            if let Some(table) = &mut table {
                output.add_to(table);
            }
            consume(output)
        });
        // After an error, the other threads end as soon as they request a buffer or deliver a
        // result.
        drop(buffer_sender);
        drop(done);
        consumed
    })
}

/// Calls `consume` for the results in the order of the jobs' sequence numbers.
fn deliver(
    done: &Receiver<anyhow::Result<Done>>,
    buffers: &Sender<Vec<u8>>,
    mut consume: impl FnMut(Output) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut early = BTreeMap::new();
    let mut next = 0;
    for one in done {
        let (number, outputs, buffer) = one?;
        early.insert(number, (outputs, buffer));
        while let Some((outputs, buffer)) = early.remove(&next) {
            next += 1;
            for output in outputs {
                consume(output)?;
            }
            // Ignore errors: the thread that receives free buffers may have ended.
            buffers.send(buffer).ok();
        }
    }
    Ok(())
}

/// The NARs to read, and their paths.
#[derive(Clone, Copy)]
struct Source<'a> {
    nars: &'a dyn Nars,
    infos: &'a [PathInfo],
    frame_len: usize,
}

impl Source<'_> {
    fn make_jobs(&self, nars: &[usize], buffers: &Receiver<Vec<u8>>, jobs: SyncSender<Numbered>) {
        let mut number = 0;
        let mut send = |job, buffer| {
            number += 1;
            jobs.send((number - 1, job, buffer)).is_ok()
        };
        let mut batch = Vec::new();
        let mut batch_len = 0;
        for &nar in nars {
            let size = self.infos.get(nar).map_or(0, |info| info.nar_size);
            let is_small = size <= SMALL_LEN_MAX;
            let is_full = batch_len + size > BATCH_LEN_MAX || batch.len() >= BATCH_COUNT_MAX;
            if !batch.is_empty() && (is_full || !is_small) {
                let Ok(buffer) = buffers.recv() else { return };
                if !send(Job::Small(std::mem::take(&mut batch)), buffer) {
                    return;
                }
                batch_len = 0;
            }
            if is_small {
                batch.push(nar);
                batch_len += size;
            } else if !self.split(nar, buffers, &mut send) {
                return;
            }
        }
        if !batch.is_empty()
            && let Ok(buffer) = buffers.recv()
        {
            send(Job::Small(batch), buffer);
        }
    }

    /// Makes the jobs of a large NAR. Returns false if the other threads have ended and need no
    /// more jobs.
    fn split(
        &self,
        nar: usize,
        buffers: &Receiver<Vec<u8>>,
        send: &mut impl FnMut(Job, Vec<u8>) -> bool,
    ) -> bool {
        let mut reader = Reader::open(self, nar);
        loop {
            let Ok(mut buffer) = buffers.recv() else {
                return false;
            };
            let read = match &mut reader {
                Ok(reader) => reader.fill(&mut buffer, self.frame_len),
                Err(reason) => Err(std::mem::take(reason)),
            };
            let (job, is_over) = match read {
                Ok(is_last) => (Job::Frame { nar, is_last }, is_last),
                Err(reason) => (Job::Failed { nar, reason }, true),
            };
            if !send(job, buffer) {
                return false;
            }
            if is_over {
                return true;
            }
        }
    }

    fn read_whole(&self, nar: usize, buffer: &mut Vec<u8>) -> Result<(), String> {
        Reader::open(self, nar)?
            .fill(buffer, usize::MAX)
            .map(|_is_last| ())
    }
}

/// Reads the NAR of a path, and compares its length and hash with the registration.
struct Reader<'a> {
    info: &'a PathInfo,
    nar: Box<dyn Read + 'a>,
    differs: &'static str,
    /// Number of bytes still to read, according to the registration.
    left: u64,
    hash: Sha256,
}

impl<'a> Reader<'a> {
    fn open(source: &Source<'a>, nar: usize) -> Result<Self, String> {
        let info = source.infos.get(nar).ok_or("unknown path")?;
        Ok(Self {
            info,
            nar: source.nars.open(nar, info)?,
            differs: source.nars.differs(),
            left: info.nar_size,
            hash: Sha256::new(),
        })
    }

    /// Fills the buffer with the next bytes of the NAR, at most `len_max`. Returns whether the NAR
    /// ends there.
    fn fill(&mut self, buffer: &mut Vec<u8>, len_max: usize) -> Result<bool, String> {
        let len = usize::try_from(self.left).unwrap_or(len_max).min(len_max);
        buffer.resize(len, 0);
        let mut rest = &mut buffer[..];
        while !rest.is_empty() {
            let filled = self.nar.read(rest).map_err(|error| error.to_string())?;
            if filled == 0 {
                return Err("its NAR is shorter than expected".to_owned());
            }
            rest = rest.get_mut(filled..).unwrap_or_default();
        }
        self.left -= len as u64;
        self.hash.update(&buffer);
        if self.left > 0 {
            return Ok(false);
        }
        let more = self.nar.read(&mut [0]);
        let is_longer = more.map_err(|error| error.to_string())? > 0;
        let hash = std::mem::take(&mut self.hash).finalize();
        if is_longer || hash.as_slice() != self.info.nar_hash.as_bytes() {
            return Err(self.differs.to_owned());
        }
        Ok(true)
    }
}

/// Runs one compressing thread until there are no more jobs.
fn work(
    source: Source<'_>,
    level: i32,
    jobs: &Mutex<Receiver<Numbered>>,
    done: Sender<anyhow::Result<Done>>,
) {
    let mut compressor = match Compressor::new(level) {
        Ok(compressor) => compressor,
        Err(error) => return drop(done.send(Err(error.into()))),
    };
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((number, job, mut buffer)) = job else {
            return;
        };
        let outputs = job.run(source, &mut compressor, &mut buffer);
        if done
            .send(outputs.map(|outputs| (number, outputs, buffer)))
            .is_err()
        {
            return;
        }
    }
}

impl Job {
    fn run(
        self,
        source: Source<'_>,
        compressor: &mut Compressor<'_>,
        buffer: &mut Vec<u8>,
    ) -> anyhow::Result<Vec<Output>> {
        let mut frame = |nar, buffer: &[u8], is_last| -> anyhow::Result<Output> {
            let mut bytes = compressor.compress(buffer)?;
            pad(&mut bytes, buffer.len());
            Ok(Output::Frame {
                nar,
                bytes,
                content_len: buffer.len() as u64,
                is_last,
            })
        };
        match self {
            Self::Failed { nar, reason } => Ok(vec![Output::Failed { nar, reason }]),
            Self::Frame { nar, is_last } => Ok(vec![frame(nar, buffer, is_last)?]),
            Self::Small(nars) => {
                let mut outputs = Vec::with_capacity(nars.len());
                for nar in nars {
                    outputs.push(match source.read_whole(nar, buffer) {
                        Ok(()) => frame(nar, buffer, true)?,
                        Err(reason) => Output::Failed { nar, reason },
                    });
                }
                Ok(outputs)
            }
        }
    }
}
