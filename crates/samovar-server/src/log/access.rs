//! The access log, in Apache's combined format.
//!
//! # Format
//!
//! `%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-agent}i"`, as in
//!
//! ```text
//! 192.0.2.7 - - [01/Mar/2026:12:00:00 +0000] "GET /x.narinfo HTTP/1.1" 404 13 "-" "curl/8.0"
//! ```
//!
//! Times are in UTC, unlike Plack's, which are local. Bytes from clients are escaped, so that they
//! cannot forge a field or a line: see [`escape`].
//!
//! # Source
//!
//! Plack 1.0050, `Plack::Middleware::AccessLog`; `Apache::LogFormat::Compiler` 0.36.

use std::cell::RefCell;
use std::fmt;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use samovar_http::log::{LineWriter, Sink, escape};
use samovar_metrics::Routed;

use super::error::ErrorLog;
use super::json;
use super::masked::masked;
use super::utc::utc;
use crate::config::{LogForm, LogTarget};

/// One request and its response, to be logged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    /// `%h`: address of the client; `None` on a Unix socket.
    pub(crate) client: Option<IpAddr>,
    /// `%u`: the name of the client; `None` or empty if it was not authenticated.
    pub(crate) user: Option<&'a [u8]>,
    /// The name of a login that was refused; `None` if there was none. The client has chosen it.
    pub(crate) refused_user: Option<&'a [u8]>,
    /// The requested store path; `None` if unknown. Not in the combined format.
    pub(crate) path: Option<&'a str>,
    /// `%t`: time when the request was received.
    pub(crate) time: SystemTime,
    /// `%r`: method, target and version, as received; `None` if there was no request line.
    pub(crate) request: Option<Request<'a>>,
    /// `%>s`: status code of the response.
    pub(crate) status: u16,
    /// `%b`: length of the response body, bytes; `None` if unknown. A length of 0 is written as
    /// `0`, as by Plack; Apache writes `-`.
    pub(crate) body_len: Option<u64>,
    /// Request field `Referer`; `None` or empty if there is none.
    pub(crate) referer: Option<&'a [u8]>,
    /// Request field `User-Agent`; `None` or empty if there is none.
    pub(crate) user_agent: Option<&'a [u8]>,
    /// Time from the request to the end of the response. This field and all below are not in the
    /// combined format.
    pub(crate) duration: Duration,
    /// Whether the response was sent completely.
    pub(crate) is_complete: bool,
    /// Request field `X-Request-Id`, not validated; `None` if there is none.
    pub(crate) request_id: Option<&'a [u8]>,
}

/// The request line, as received.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Method, such as `GET`.
    pub(crate) method: &'a [u8],
    /// Target, such as `/nix-cache-info`.
    pub(crate) target: &'a [u8],
    /// Protocol version, such as `HTTP/1.1`.
    pub(crate) version: &'static str,
    /// The meaning of the target. Not in the combined format.
    pub(crate) routed: Routed,
}

/// Maximum delay before a line is written, so that a busy server writes lines in batches.
const LINGER: Duration = Duration::from_millis(20);

/// The access log. May be written to from any thread.
#[derive(Debug)]
pub(crate) struct AccessLog {
    writer: LineWriter,
    form: LogForm,
}

impl AccessLog {
    /// Opens the log. Errors that occur later are reported to `errors`.
    pub(crate) fn open(target: &LogTarget, form: LogForm, errors: ErrorLog) -> io::Result<Self> {
        let sink = match target {
            LogTarget::StandardOutput => Sink::stdout(),
            LogTarget::File(path) => Sink::file(path)?,
        };
        let writer = LineWriter::spawn("access log", sink, LINGER, move |trouble| {
            errors.warning(format_args!("access log: {trouble}"));
            Vec::new()
        })?;
        Ok(Self { writer, form })
    }

    /// Writes one line. Never waits for the disk: if the buffer is full, the line is dropped and
    /// counted.
    pub(crate) fn record(&self, entry: &Entry<'_>) {
        thread_local! {
            static LINE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        LINE.with_borrow_mut(|line| {
            line.clear();
            match self.form {
                LogForm::Combined => entry.append_line(line),
                LogForm::Json => json::append_line(entry, line),
            }
            self.writer.push(line);
            line.shrink_to(LINE_LEN_KEPT);
        });
    }

    /// Returns whether lines include the store path.
    pub(crate) fn names_paths(&self) -> bool {
        self.form == LogForm::Json
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

/// Capacity that a thread's line buffer keeps between lines, bytes: one long URL must not occupy
/// memory permanently.
const LINE_LEN_KEPT: usize = 4096;

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

impl Entry<'_> {
    /// Whether the status says that a login was refused. A hidden cache answers a refused login
    /// with 404, and a name in the log beside a 404 could be mistaken for the name of a user.
    fn shows_refused_user(&self) -> bool {
        matches!(self.status, 401 | 403 | 429)
    }

    /// Appends the entry as a line with a newline.
    pub(crate) fn append_line(&self, line: &mut Vec<u8>) {
        append_or_dash(self.client, line);
        line.extend_from_slice(b" - ");
        match self.refused_user.filter(|_| self.shows_refused_user()) {
            Some(name) if !name.is_empty() => append_word(name, line),
            _ => append_field(self.user, line),
        }
        let time = utc(self.time);
        let (year, month, day) = time.to_calendar_date();
        let (hour, minute, second) = time.to_hms();
        let month = MONTHS[usize::from(u8::from(month)) - 1];
        append(
            line,
            format_args!(
                " [{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000] \""
            ),
        );
        if let Some(request) = self.request {
            escape(request.method, line);
            line.push(b' ');
            escape(&masked(request.target), line);
            line.push(b' ');
            line.extend_from_slice(request.version.as_bytes());
        } else {
            line.push(b'-');
        }
        append(line, format_args!("\" {} ", self.status));
        append_or_dash(self.body_len, line);
        line.extend_from_slice(b" \"");
        append_field(self.referer.map(masked).as_deref(), line);
        line.extend_from_slice(b"\" \"");
        append_field(self.user_agent, line);
        line.extend_from_slice(b"\"\n");
    }
}

fn append(line: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    line.write_fmt(text).expect("a vector takes all bytes");
}

fn append_or_dash(value: Option<impl fmt::Display>, line: &mut Vec<u8>) {
    match value {
        Some(value) => append(line, format_args!("{value}")),
        None => line.push(b'-'),
    }
}

fn append_field(value: Option<&[u8]>, line: &mut Vec<u8>) {
    match value {
        Some(value) if !value.is_empty() => escape(value, line),
        _ => line.push(b'-'),
    }
}

/// Appends bytes of a client as one word.
fn append_word(value: &[u8], line: &mut Vec<u8>) {
    let mut words = value.split(|byte| *byte == b' ');
    escape(words.next().unwrap_or_default(), line);
    for word in words {
        line.extend_from_slice(b"\\x20");
        escape(word, line);
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use samovar_http::Tag;

    use super::*;
    use crate::log::error::Level;

    fn entry() -> Entry<'static> {
        Entry {
            client: Some("192.0.2.7".parse().expect("an address")),
            user: None,
            refused_user: None,
            path: None,
            time: UNIX_EPOCH + Duration::from_secs(971_211_336),
            request: Some(Request {
                method: b"GET",
                target: b"/nix-cache-info",
                version: "HTTP/1.1",
                routed: Routed::of(Tag::default()),
            }),
            status: 200,
            body_len: Some(52),
            referer: None,
            user_agent: Some(b"curl/8.0 Nix/2.31"),
            duration: Duration::from_micros(250),
            is_complete: true,
            request_id: None,
        }
    }

    #[track_caller]
    fn check(entry: &Entry<'_>, expected: &str) {
        let mut line = Vec::new();
        entry.append_line(&mut line);
        assert_eq!(String::from_utf8_lossy(&line), format!("{expected}\n"));
    }

    #[test]
    fn lines_are_those_of_plack() {
        check(
            &entry(),
            "192.0.2.7 - - [10/Oct/2000:20:55:36 +0000] \"GET /nix-cache-info HTTP/1.1\" 200 52 \
             \"-\" \"curl/8.0 Nix/2.31\"",
        );
        let nothing = Entry {
            client: None,
            request: None,
            status: 400,
            body_len: None,
            user_agent: Some(b""),
            ..entry()
        };
        check(
            &nothing,
            "- - - [10/Oct/2000:20:55:36 +0000] \"-\" 400 - \"-\" \"-\"",
        );
        let v6 = Entry {
            client: Some("::1".parse().expect("an address")),
            user: Some(b"ann"),
            body_len: Some(0),
            referer: Some(b"http://r/"),
            ..entry()
        };
        check(
            &v6,
            "::1 - ann [10/Oct/2000:20:55:36 +0000] \"GET /nix-cache-info HTTP/1.1\" 200 0 \
             \"http://r/\" \"curl/8.0 Nix/2.31\"",
        );
    }

    #[test]
    fn a_refused_user_is_one_word_of_a_refusal() {
        let of = |name: &'static [u8], status| {
            let mut line = Vec::new();
            let refused = Entry {
                refused_user: Some(name),
                status,
                ..entry()
            };
            refused.append_line(&mut line);
            let text = String::from_utf8(line).expect("is text");
            let end = text.find(" [").expect("a time");
            text["192.0.2.7 - ".len()..end].to_owned()
        };
        assert_eq!(of(b"ada", 401), "ada");
        assert_eq!(of(b"", 401), "-");
        assert_eq!(of(b"ada", 404), "-");
        assert_eq!(of(b"a [x] \"\n\xff", 403), r#"a\x20[x]\x20\"\x0a\xff"#);
    }

    #[test]
    fn no_field_can_be_forged() {
        let hostile = b"x\" 200 0 \"-\" \"-\"\n127.0.0.1 - admin";
        let request = Request {
            method: hostile,
            target: hostile,
            version: "HTTP/1.1",
            routed: Routed::of(Tag::default()),
        };
        let entry = Entry {
            user: Some(hostile),
            refused_user: Some(hostile),
            request: Some(request),
            referer: Some(hostile),
            user_agent: Some(hostile),
            ..entry()
        };
        let mut line = Vec::new();
        entry.append_line(&mut line);
        let text = String::from_utf8(line).expect("is text");
        assert_eq!(text.lines().count(), 1);
        let quotes = text.replace("\\\"", "").matches('"').count();
        assert_eq!(quotes, 6, "{text}");
    }

    #[test]
    fn a_recorded_entry_is_in_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let errors = ErrorLog::open("nix-serve", None, Level::Error).expect("opens");
        let log = AccessLog::open(&LogTarget::File(path.clone()), LogForm::Combined, errors)
            .expect("opens");
        log.record(&entry());
        assert!(log.flush(Duration::from_secs(20)));
        assert!(
            std::fs::read_to_string(&path)
                .expect("reads")
                .ends_with("Nix/2.31\"\n")
        );
    }
}
