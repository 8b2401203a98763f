//! A thread that writes log lines.
//!
//! Lines are appended to `pending` under a lock that is held only for a copy. The thread swaps
//! `pending` with the buffer it has written out, so memory is twice [`BUFFER_LEN_MAX`] at most and
//! nothing is allocated once both have grown. A batch is one `write`: with `O_APPEND`, lines of
//! several processes do not mix. After the first line of a batch the thread waits for the sink's
//! linger time, so that a busy server pays for one wake-up in twenty milliseconds and not for one a
//! line.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Size of the buffer, bytes: 50 ms of a busy server, which logs about 20 MB/s, and more than the
/// longest line.
pub const BUFFER_LEN_MAX: usize = 1 << 20;

/// Destination of the lines.
#[derive(Debug)]
pub enum Sink {
    /// Standard output.
    StandardOutput,
    /// Standard error.
    StandardError,
    /// A file that is appended to and can be reopened.
    File {
        /// Its path.
        path: PathBuf,
        /// The open file.
        file: File,
    },
}

impl Sink {
    /// Opens `path` for appending; creates the file if necessary.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::File {
            path: path.to_owned(),
            file: open(path)?,
        })
    }

    fn reopen(&mut self) -> io::Result<()> {
        if let Self::File { path, file } = self {
            *file = open(path)?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            // Standard output holds back what follows the last line's end, and a batch ends with
            // one.
            Self::StandardOutput => io::stdout().lock().write(bytes),
            Self::StandardError => io::stderr().lock().write(bytes),
            Self::File { file, .. } => file.write(bytes),
        }
    }

    /// Writes everything; on an error, returns how many bytes were written.
    fn write_all(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        let mut written = 0;
        while written < bytes.len() {
            match self.write(&bytes[written..]) {
                Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Another process has made the shared terminal or pipe non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(RETRY),
                Err(error) => return Err((written, error)),
            }
        }
        if let Self::StandardOutput = self {
            io::stdout().flush().map_err(|error| (written, error))?;
        }
        Ok(())
    }
}

const RETRY: Duration = Duration::from_millis(10);

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// An error in the writing thread.
#[derive(Debug)]
pub enum Trouble<'a> {
    /// Lines were dropped because the buffer was full or could not be written. Reported once the
    /// buffer has space again.
    Lost(u64),
    /// Writing fails. Reported once, until it succeeds again.
    Write(&'a io::Error),
    /// The file could not be reopened; the old one stays in use.
    Reopen(&'a io::Error),
}

/// Lines for one sink. Dropping it writes the pending lines and ends the thread, without waiting
/// for it.
#[derive(Debug)]
pub struct LineWriter {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the thread.
    work: Condvar,
    /// Signals that everything is written.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pending: Vec<u8>,
    lost_count: u64,
    reopen: bool,
    closed: bool,
    /// A caller waits in `flush`.
    flush: bool,
    /// The thread is awake, and will read `pending` before it sleeps.
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
    /// Starts the thread.
    ///
    /// `linger` is the maximum delay of a line, for batches. `report` is called on the thread, and
    /// the line that it returns, or nothing, is written.
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

    /// Appends `line`, which must end with a newline. Returns `false` if it is dropped because the
    /// buffer is full.
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

    /// Reopens a file, for log rotation. Lines pushed before may go to either file.
    pub fn reopen(&self) {
        self.shared.lock().reopen = true;
        self.shared.work.notify_one();
    }

    /// Waits until everything is written, for `patience` at most. Returns whether it is.
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
    /// A panic elsewhere leaves a line half appended at worst.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Writer<R> {
    shared: Arc<Shared>,
    sink: Sink,
    linger: Duration,
    report: R,
    /// The last write failed, and the error was reported.
    failing: bool,
}

/// Work taken out of the lock, in addition to the lines.
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

    /// Waits for work and moves the pending lines into `batch`, which is empty; `None` at the end.
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
        // While writing fails, lost lines are only counted: the report would be lost too.
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
            // Part of a line is written. The next line must not look like its end.
            state.pending.insert(0, b'\n');
        }
        drop(state);
        if !std::mem::replace(&mut self.failing, true) {
            // The sink cannot take the line, but `report` may log it elsewhere.
            drop((self.report)(Trouble::Write(error)));
        }
    }
}

#[cfg(test)]
mod tests;
