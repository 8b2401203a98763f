//! A thread that writes log lines.
//!
//! A caller appends its line to `pending`, under a lock that is held only for the copy. The thread
//! swaps `pending` with the buffer that it has written, so the memory is at most twice
//! [`BUFFER_LEN_MAX`], and nothing is allocated once both buffers have grown. A batch is one
//! `write`: with `O_APPEND`, lines of several processes do not mix. After the first line of a batch
//! the thread waits for the linger time, so that a busy server pays for one wake-up per twenty
//! milliseconds, not per line.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::sync::Lock;

/// Maximum length of the pending lines, bytes: 50 ms of a busy server, which logs about 20 MB/s,
/// and more than the longest line.
const BUFFER_LEN_MAX: usize = 1 << 20;

/// Destination of log lines.
#[derive(Debug)]
pub struct Sink(Target);

#[derive(Debug)]
enum Target {
    StandardOutput,
    StandardError,
    /// A file, to which lines are appended, and which can be reopened.
    File {
        /// Path at which the log file is opened, and reopened after log rotation.
        path: PathBuf,
        /// The open log file, in append mode.
        file: File,
    },
}

impl Sink {
    /// Standard output.
    pub fn stdout() -> Self {
        Self(Target::StandardOutput)
    }

    /// Standard error.
    pub fn stderr() -> Self {
        Self(Target::StandardError)
    }

    /// Opens a file for appending; creates it if necessary.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub fn file(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        Ok(Self(Target::File {
            path: path.to_owned(),
            file: open(path)?,
        }))
    }

    fn reopen(&mut self) -> io::Result<()> {
        if let Target::File { path, file } = &mut self.0 {
            *file = open(path)?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            // `stdout` buffers bytes after the last newline; a batch ends with a newline, so none
            // remain.
            Target::StandardOutput => io::stdout().lock().write(bytes),
            Target::StandardError => io::stderr().lock().write(bytes),
            Target::File { file, .. } => file.write(bytes),
        }
    }

    /// Writes all bytes. On an error, also returns the number of bytes written.
    fn write_all(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        let mut written = 0;
        while written < bytes.len() {
            match self.write(&bytes[written..]) {
                Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Another process that shares the terminal or pipe has made it non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(RETRY),
                Err(error) => return Err((written, error)),
            }
        }
        if let Target::StandardOutput = self.0 {
            io::stdout().flush().map_err(|error| (written, error))?;
        }
        Ok(())
    }
}

const RETRY: Duration = Duration::from_millis(10);

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// An error of the writing thread, which `report` of [`LineWriter::spawn`] turns into a log line.
#[derive(Debug)]
#[non_exhaustive]
pub enum Trouble<'a> {
    /// Lines were dropped because the buffer was full or could not be written. Reported once the
    /// buffer has space again.
    Lost(u64),
    /// Writing fails. Reported once, until it succeeds again.
    Write(&'a io::Error),
    /// The file could not be reopened; the old one stays in use.
    Reopen(&'a io::Error),
}

impl fmt::Display for Trouble<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(count) => write!(
                f,
                "{count} lines were lost, because they could not be written, or not fast enough"
            ),
            Self::Write(error) => write!(f, "cannot write: {error}"),
            Self::Reopen(error) => write!(
                f,
                "cannot reopen the file, so the old file stays in use: {error}"
            ),
        }
    }
}

/// A queue of lines for one [`Sink`], and the thread that writes them. No caller waits for the
/// disk.
///
/// Dropping it writes the pending lines and ends the thread, without waiting for either.
///
/// ```
/// use std::time::Duration;
/// use samovar_http::log::{LineWriter, Sink};
///
/// # fn main() -> std::io::Result<()> {
/// let linger = Duration::from_millis(20);
/// let writer = LineWriter::spawn("my log", Sink::stderr(), linger, |trouble| {
///     format!("my log: {trouble}\n").into_bytes()
/// })?;
/// writer.push(b"one line\n");
/// writer.flush(Duration::from_secs(1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct LineWriter {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the writing thread when there are lines to write.
    work: Condvar,
    /// Wakes callers of `flush` when all lines are written.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pending: Vec<u8>,
    lost_count: u64,
    reopen: bool,
    closed: bool,
    /// Whether a caller waits in `flush`.
    flush: bool,
    /// Whether the writing thread is awake, and will read `pending` before it sleeps.
    awake: bool,
}

impl State {
    fn is_idle(&self) -> bool {
        self.pending.is_empty() && !self.reopen && !self.awake
    }

    fn is_urgent(&self) -> bool {
        self.flush || self.closed || self.reopen || self.pending.len() >= BUFFER_LEN_MAX / 2
    }
}

impl LineWriter {
    /// Starts the writing thread.
    ///
    /// `name` is the name of the thread. `linger` is the maximum delay of a line, which allows
    /// batches. `report` is called on the thread for each error; the thread writes the line that it
    /// returns, which may be empty.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn spawn(
        name: &str,
        sink: Sink,
        linger: Duration,
        report: impl FnMut(Trouble<'_>) -> Vec<u8> + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let writer = Writer {
            shared: Arc::clone(&shared),
            sink,
            linger,
            report,
            failing: false,
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || writer.run())?;
        Ok(Self { shared })
    }

    /// Appends `line`, which must end with a newline. Returns `false` if the buffer is full; the
    /// line is then dropped.
    ///
    /// Never waits for the sink.
    pub fn push(&self, line: &[u8]) -> bool {
        debug_assert!(line.ends_with(b"\n"), "lines are whole");
        let mut state = self.shared.lock();
        if line.len() > BUFFER_LEN_MAX - state.pending.len() {
            state.lost_count += 1;
            return false;
        }
        state.pending.extend_from_slice(line);
        if !state.awake || state.is_urgent() {
            self.shared.work.notify_one();
        }
        true
    }

    /// Reopens the file, for log rotation. Lines pushed before may go to the old file or the new
    /// one.
    pub fn reopen(&self) {
        self.shared.lock().reopen = true;
        self.shared.work.notify_one();
    }

    /// Waits until all lines are written, at most for `patience`. Returns whether they are.
    pub fn flush(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.shared.lock();
        while !state.is_idle() {
            state.flush = true;
            self.shared.work.notify_one();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.idle.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_one();
    }
}

impl Shared {
    /// Locks the state, even if poisoned: a panic elsewhere leaves at worst half a line.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.locked()
    }
}

struct Writer<R> {
    shared: Arc<Shared>,
    sink: Sink,
    linger: Duration,
    report: R,
    /// Whether the last write failed. The error has then been reported.
    failing: bool,
}

/// The tasks of the writing thread besides writing lines: reporting lost lines and reopening the
/// file.
struct Work {
    lost_count: u64,
    reopen: bool,
}

impl<R: FnMut(Trouble<'_>) -> Vec<u8>> Writer<R> {
    fn run(mut self) {
        let mut batch = Vec::new();
        while let Some(work) = self.next(&mut batch) {
            if work.reopen
                && let Err(error) = self.sink.reopen()
            {
                batch.splice(..0, (self.report)(Trouble::Reopen(&error)));
            }
            if work.lost_count > 0 {
                batch.extend((self.report)(Trouble::Lost(work.lost_count)));
            }
            self.write(&batch);
            batch.clear();
        }
    }

    /// Waits for work and moves the pending lines into `batch`, which must be empty. Returns `None`
    /// when the thread must end.
    fn next(&mut self, batch: &mut Vec<u8>) -> Option<Work> {
        let mut state = self.shared.lock();
        state.awake = false;
        while state.pending.is_empty() && !state.reopen {
            state.flush = false;
            self.shared.idle.notify_all();
            if state.closed {
                return None;
            }
            state = self
                .shared
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.awake = true;
        let mut state = self.linger(state);
        std::mem::swap(&mut state.pending, batch);
        // While writing fails, lost lines are only counted: a report would be lost too.
        let lost_count = if self.failing {
            0
        } else {
            std::mem::take(&mut state.lost_count)
        };
        Some(Work {
            lost_count,
            reopen: std::mem::take(&mut state.reopen),
        })
    }

    fn linger<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let deadline = Instant::now() + self.linger;
        while !state.is_urgent() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.work.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    fn write(&mut self, batch: &[u8]) {
        match self.sink.write_all(batch) {
            Ok(()) => self.failing = self.failing && batch.is_empty(),
            Err((written, error)) => self.write_failed(batch, written, &error),
        }
    }

    fn write_failed(&mut self, batch: &[u8], written: usize, error: &io::Error) {
        let (out, rest) = batch.split_at(written);
        let line_count: u64 = rest.iter().map(|&byte| u64::from(byte == b'\n')).sum();
        let mut state = self.shared.lock();
        state.lost_count += line_count;
        if out.last().is_some_and(|&byte| byte != b'\n') && state.pending.len() < BUFFER_LEN_MAX {
            // A part of a line was written: begin a new line, so that the next entry does not look
            // like its end.
            state.pending.insert(0, b'\n');
        }
        drop(state);
        if !std::mem::replace(&mut self.failing, true) {
            // Drop the line that `report` returns, because the sink cannot take it. `report` may
            // have logged the error elsewhere.
            drop((self.report)(Trouble::Write(error)));
        }
    }
}

#[cfg(test)]
mod tests;
