//! The error log, with one line per event.
//!
//! On standard error a line is `nix-serve: warning: text`, because the service manager adds the
//! time. In a file a line begins with the time, as in `2026-03-01T12:00:00Z nix-serve: warning:
//! text`.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use samovar_http::log::{LineWriter, Sink, Trouble, escape};
use samovar_metrics::RecentError;
use samovar_text::without_logins;

use super::utc::rfc_3339;

/// Severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// A failure of the server, its store or its configuration.
    Error,
    /// Something that the operator should check.
    Warning,
    /// A change of state.
    Info,
    /// Details for debugging.
    Debug,
}

/// A handle on the error log. Clones write to the same log, from any thread.
#[derive(Debug, Clone)]
pub(crate) struct ErrorLog {
    writer: Arc<LineWriter>,
    verbosity: Level,
    form: Form,
    recent: Arc<Mutex<VecDeque<RecentError>>>,
}

/// What precedes the message in each line.
#[derive(Debug, Clone, Copy)]
struct Form {
    program: &'static str,
    with_time: bool,
}

/// Number of recent errors and warnings that the status page shows.
const RECENT_COUNT: usize = 50;

/// Maximum length of a message kept for the status page, bytes: messages can quote clients.
const MESSAGE_LEN_MAX: usize = 4096;

impl ErrorLog {
    /// Opens the log of `program` in `file`, or on standard error without one. Drops events less
    /// severe than `verbosity`.
    pub(crate) fn open(
        program: &'static str,
        file: Option<&Path>,
        verbosity: Level,
    ) -> io::Result<Self> {
        let sink = file.map_or(Ok(Sink::stderr()), Sink::file)?;
        let form = Form {
            program,
            with_time: file.is_some(),
        };
        let report = move |trouble: Trouble<'_>| {
            line(form, Level::Warning, &format!("error log: {trouble}"))
        };
        let writer = LineWriter::spawn("error log", sink, Duration::ZERO, report)?;
        Ok(Self {
            writer: Arc::new(writer),
            verbosity,
            form,
            recent: Arc::default(),
        })
    }

    /// Writes one event. Never waits for the disk.
    pub(crate) fn write(&self, level: Level, message: impl Display) {
        if level <= self.verbosity {
            let message = without_logins(&message.to_string());
            // The writer counts and reports lines that are dropped.
            self.writer.push(&line(self.form, level, &message));
            self.remember(level, message);
        }
    }

    fn remember(&self, level: Level, mut text: String) {
        let level = match level {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Info | Level::Debug => return,
        };
        text.truncate(text.floor_char_boundary(MESSAGE_LEN_MAX));
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let time_ms = since_1970.unwrap_or_default().as_millis();
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.truncate(RECENT_COUNT - 1);
        recent.push_front(RecentError {
            time_ms: u64::try_from(time_ms).unwrap_or(u64::MAX),
            level: level.to_owned(),
            text,
        });
    }

    /// Returns recent errors and warnings, newest first.
    pub(crate) fn recent(&self) -> Vec<RecentError> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.iter().cloned().collect()
    }

    /// Logs a failure.
    pub(crate) fn error(&self, message: impl Display) {
        self.write(Level::Error, message);
    }

    /// Logs something that the operator should check.
    pub(crate) fn warning(&self, message: impl Display) {
        self.write(Level::Warning, message);
    }

    /// Logs a change of state.
    pub(crate) fn info(&self, message: impl Display) {
        self.write(Level::Info, message);
    }

    /// Logs details for debugging.
    pub(crate) fn debug(&self, message: impl Display) {
        self.write(Level::Debug, message);
    }

    /// Reopens the log file, for log rotation.
    pub(crate) fn reopen(&self) {
        self.writer.reopen();
    }

    /// Waits until all lines are written, at most for `patience`. Returns whether they are.
    pub(crate) fn flush(&self, patience: Duration) -> bool {
        self.writer.flush(patience)
    }
}

/// Formats the log line for `message`, with a newline.
fn line(form: Form, level: Level, message: &str) -> Vec<u8> {
    let mut line = Vec::with_capacity(message.len() + 64);
    if form.with_time {
        write!(line, "{}Z ", rfc_3339(SystemTime::now())).expect("a vector takes all bytes");
    }
    line.extend_from_slice(form.program.as_bytes());
    line.extend_from_slice(match level {
        Level::Error => b": error: ".as_slice(),
        Level::Warning => b": warning: ",
        Level::Info => b": ",
        Level::Debug => b": debug: ",
    });
    append_message(message, &mut line);
    line.push(b'\n');
    line
}

/// Appends a message with its control characters escaped, because file names and clients' bytes may
/// contain some. Leaves quotes unchanged.
fn append_message(message: &str, line: &mut Vec<u8>) {
    let end = message.floor_char_boundary(MESSAGE_LEN_MAX);
    for c in message[..end].chars() {
        let mut buffer = [0; 4];
        let bytes = c.encode_utf8(&mut buffer).as_bytes();
        if c.is_control() {
            escape(bytes, line)
        } else {
            line.extend_from_slice(bytes)
        }
    }
    if end < message.len() {
        line.extend_from_slice("…".as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: Form = Form {
        program: "nix-serve",
        with_time: false,
    };

    #[track_caller]
    fn check(level: Level, message: &str, expected: &str) {
        assert_eq!(
            String::from_utf8_lossy(&line(FORM, level, message)),
            expected
        );
    }

    #[test]
    fn each_event_is_one_line() {
        check(
            Level::Error,
            "no \"store\"",
            "nix-serve: error: no \"store\"\n",
        );
        check(Level::Warning, "é", "nix-serve: warning: é\n");
        check(
            Level::Info,
            "a\nnix-serve: error: b",
            "nix-serve: a\\x0anix-serve: error: b\n",
        );
        check(
            Level::Debug,
            "\u{85}\x1b[1m",
            "nix-serve: debug: \\xc2\\x85\\x1b[1m\n",
        );
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let line = line(FORM, Level::Info, &"é".repeat(MESSAGE_LEN_MAX));
        let text = String::from_utf8(line).expect("whole characters");
        assert!(text.ends_with("é…\n"));
        assert!(text.len() < MESSAGE_LEN_MAX + 32);
    }

    #[test]
    fn the_last_errors_and_warnings_are_remembered() {
        let log = ErrorLog::open("nix-serve", None, Level::Error).expect("opens");
        for number in 0..60 {
            log.error(number);
            log.warning("not written, so not remembered");
        }
        let recent = log.clone().recent();
        assert_eq!(recent.len(), RECENT_COUNT);
        assert_eq!((&*recent[0].text, &*recent[49].text), ("59", "10"));
        assert!(
            recent
                .iter()
                .all(|one| one.level == "error" && one.time_ms > 0)
        );
    }

    #[test]
    fn a_file_has_times_and_only_what_matters() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let log = ErrorLog::open("nix-serve", Some(&path), Level::Info).expect("opens");
        log.info("here");
        log.debug("not here");
        assert!(log.flush(Duration::from_secs(20)));
        let text = std::fs::read_to_string(&path).expect("reads");
        assert!(text.ends_with("Z nix-serve: here\n"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}
