//! The access log, in the common log format.

use std::cell::RefCell;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::escape::escape;
use super::line_writer::{LineWriter, Sink};
use super::logger::Logger;
use super::timestamp::Moment;
use crate::observer::{Exchange, Incident, Observer};

/// Maximum delay before a line is written, so that a busy server writes lines in batches.
const LINGER: Duration = Duration::from_millis(20);

/// Capacity that a thread's line buffer keeps between lines, in bytes: one long URL must not occupy
/// memory permanently.
const LINE_LEN_KEPT: usize = 4096;

/// A log of responses, one line each, in the common log format that Apache and nginx also write:
///
/// ```text
/// 192.0.2.7 - - [29/Nov/2026:12:00:00 +0000] "GET /notes/1 HTTP/1.1" 200 13
/// ```
///
/// The fields are: the address of the client, or of the proxy in front of this server, and `-` for
/// a unix socket; two fields that are always `-`; the time of the request, in UTC; the request
/// line; the status; the number of sent bytes of the body. The line is written when the response
/// ends, so that of a WebSocket or an event stream comes late.
///
/// An observer of a router or another service. [Incidents](Incident) go to its [`Logger`]. Clones
/// write to the same file.
#[derive(Debug, Clone)]
pub struct AccessLog {
    writer: Arc<LineWriter>,
    logger: Logger,
}

impl AccessLog {
    /// Opens a log file; creates it if necessary. Lines are appended.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or the thread that writes it cannot be started.
    pub fn file(path: impl AsRef<Path>, logger: &Logger) -> io::Result<Self> {
        Self::open(Sink::file(path)?, logger)
    }

    /// Writes to a file, standard output or standard error. Errors of writing go to `logger`.
    ///
    /// # Errors
    ///
    /// If the thread that writes cannot be started.
    pub fn open(sink: Sink, logger: &Logger) -> io::Result<Self> {
        let errors = logger.clone();
        let writer = LineWriter::spawn("access log", sink, LINGER, move |trouble| {
            errors.warning(format_args!("access log: {trouble}"));
            Vec::new()
        })?;
        Ok(Self {
            writer: Arc::new(writer),
            logger: logger.clone(),
        })
    }

    /// Opens the file again under its name, for log rotation. If that fails, the old file stays in
    /// use, and the logger gets a warning. No effect on standard output and standard error. Does
    /// not reopen the file of the [`Logger`].
    pub fn reopen(&self) {
        self.writer.reopen();
    }

    /// Waits until all lines are written, at most for `timeout`. Returns whether they are.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.writer.flush(timeout)
    }
}

impl Observer for AccessLog {
    fn observes(&self) -> bool {
        true
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        thread_local! {
            static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        LINE.with_borrow_mut(|line| {
            line.clear();
            append_line(exchange, SystemTime::now(), line);
            // The writer counts and reports lines that are dropped.
            self.writer.push(line);
            line.shrink_to(LINE_LEN_KEPT);
        });
    }

    fn incident(&self, incident: &Incident<'_>) {
        self.logger.incident(incident);
    }
}

/// Appends the line for a response that has ended at `now`.
fn append_line(exchange: &Exchange<'_>, now: SystemTime, line: &mut Vec<u8>) {
    let head = &exchange.head;
    let received = now.checked_sub(exchange.duration).unwrap_or(now);
    append(line, format_args!("{} - - [", head.peer()));
    append(line, format_args!("{}] \"", Moment::of(received).common()));
    escape(head.method_name(), line);
    line.push(b' ');
    escape(head.target(), line);
    let (version, status) = (head.version(), exchange.status.code());
    append(
        line,
        format_args!(" {version}\" {status} {}\n", exchange.body_len),
    );
}

/// Appends formatted text. A vector accepts all bytes, so this cannot fail.
fn append(line: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    drop(line.write_fmt(text));
}
