//! The log of messages: incidents of the server, and what the application reports.

use std::fmt::{self, Display, Write as _};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::line_writer::{LineWriter, Sink, Trouble};
use super::timestamp::Moment;
use crate::escaped::Escaped;
use crate::observer::{Incident, Observer};

/// Maximum length of a message, in bytes; a longer one is cut off, with an ellipsis. Messages can
/// quote clients.
const MESSAGE_LEN_MAX: usize = 4096;

/// Severity of a message. The most severe is the least value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Something has failed, and it is not the fault of a client.
    Error,
    /// Something that an operator should check.
    Warning,
    /// A change of state.
    Info,
    /// Details, such as mistakes of clients.
    Debug,
}

impl Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        })
    }
}

/// A log of messages, with time and level:
///
/// ```text
/// 2026-11-29T12:00:00Z error: GET /notes/1 failed: 500 Internal Server Error: disk I/O error
/// ```
///
/// Clones write to the same file, from any thread, and never wait for the disk.
///
/// As an observer of a service, it logs [incidents](Incident): failures of handlers and of the
/// machine as errors, full queues as warnings, mistakes of clients for debugging. An
/// [`AccessLog`](super::AccessLog) does the same with its logger, and logs responses as well.
#[derive(Debug, Clone)]
pub struct Logger {
    writer: Arc<LineWriter>,
    level: Level,
}

impl Logger {
    /// Opens a log file; creates it if necessary. Lines are appended.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or the thread that writes it cannot be started.
    pub fn file(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::open(Sink::file(path)?)
    }

    /// Logs to standard error.
    ///
    /// # Errors
    ///
    /// If the thread that writes cannot be started.
    pub fn stderr() -> io::Result<Self> {
        Self::open(Sink::stderr())
    }

    fn open(sink: Sink) -> io::Result<Self> {
        let report =
            |trouble: Trouble<'_>| line(Level::Warning, format_args!("this log: {trouble}"));
        // Messages are rare, and the last ones before a crash matter, so they are written at once.
        let writer = LineWriter::spawn("log", sink, Duration::ZERO, report)?;
        Ok(Self {
            writer: Arc::new(writer),
            level: Level::Info,
        })
    }

    /// Returns a logger for the same file that drops messages less severe than `level`. Default:
    /// [`Level::Info`].
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// Logs a message as one line.
    pub fn log(&self, level: Level, message: impl Display) {
        if level <= self.level {
            // The writer counts and reports lines that are dropped.
            self.writer.push(&line(level, message));
        }
    }

    /// Logs a failure.
    pub fn error(&self, message: impl Display) {
        self.log(Level::Error, message);
    }

    /// Logs something that an operator should check.
    pub fn warning(&self, message: impl Display) {
        self.log(Level::Warning, message);
    }

    /// Logs a change of state.
    pub fn info(&self, message: impl Display) {
        self.log(Level::Info, message);
    }

    /// Logs details.
    pub fn debug(&self, message: impl Display) {
        self.log(Level::Debug, message);
    }

    /// Opens the file again under its name, for log rotation. If that fails, the old file stays in
    /// use, and gets a warning. No effect on standard error.
    pub fn reopen(&self) {
        self.writer.reopen();
    }

    /// Waits until all lines are written, at most for `timeout`. Returns whether they are.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.writer.flush(timeout)
    }
}

impl Observer for Logger {
    fn incident(&self, incident: &Incident<'_>) {
        self.log(level_of(incident), incident);
    }
}

/// Returns the level of an incident: by who has caused it.
fn level_of(incident: &Incident<'_>) -> Level {
    match incident {
        Incident::HandlerPanicked { .. }
        | Incident::HandlerFailed { .. }
        | Incident::BodyFailed { .. }
        | Incident::SocketHandlerPanicked { .. }
        | Incident::AcceptFailed { .. } => Level::Error,
        Incident::ConnectionsFull | Incident::WorkersFull => Level::Warning,
        Incident::Refused { .. }
        | Incident::TooSlow { .. }
        | Incident::HandshakeFailed { .. }
        | Incident::SocketFailed { .. }
        | Incident::Abused { .. }
        | Incident::GaveWay { .. } => Level::Debug,
    }
}

/// A message with its control characters escaped.
struct Message<D>(D);

impl<D: Display> Display for Message<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaped(f), "{}", self.0)
    }
}

/// Formats a message as a line.
fn line(level: Level, message: impl Display) -> Vec<u8> {
    let time = Moment::of(SystemTime::now());
    let mut line = format!("{} {level}: ", time.rfc_3339());
    let mut message = Message(message).to_string();
    if message.len() > MESSAGE_LEN_MAX {
        let end = (0..=MESSAGE_LEN_MAX).rfind(|&at| message.is_char_boundary(at));
        message.truncate(end.unwrap_or_default());
        message += "…";
    }
    line += &message;
    line += "\n";
    line.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(level: Level, message: &str, expected: &str) {
        let line = String::from_utf8(line(level, message)).unwrap();
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.len() == 20 && time.ends_with('Z'), "{time}");
        assert_eq!(rest, expected);
    }

    #[test]
    fn each_message_is_one_line() {
        check(Level::Error, "no \"notes\"", "error: no \"notes\"\n");
        check(Level::Warning, "é", "warning: é\n");
        check(
            Level::Info,
            "a\n2026-11-29T12:00:00Z error: b",
            "info: a\\n2026-11-29T12:00:00Z error: b\n",
        );
        check(Level::Debug, "\u{85}\x1b[1m", "debug: \\u{85}\\u{1b}[1m\n");
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let line = line(Level::Info, "é".repeat(MESSAGE_LEN_MAX));
        let text = String::from_utf8(line).unwrap();
        assert!(text.ends_with("é…\n"));
        assert!(text.len() < MESSAGE_LEN_MAX + 64);
    }
}
