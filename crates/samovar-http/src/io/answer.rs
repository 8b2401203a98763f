//! Answers that the engine gives by itself.

use std::time::SystemTime;

use crate::http::{Status, Version};
use crate::proto::encode::{self, Delimiter};

/// A line of text; returns the length of the body sent.
pub(super) fn plain(
    out: &mut Vec<u8>,
    status: Status,
    body: &[u8],
    version: Version,
    is_head: bool,
    keep: bool,
    date: &Date,
) -> u64 {
    encode::status_line(out, status);
    encode::field(out, "Content-Type", b"text/plain");
    finish(out, body, version, is_head, keep, date)
}

/// 503, and come again.
pub(super) fn overload(out: &mut Vec<u8>, is_head: bool, date: &Date) {
    encode::status_line(out, Status::SERVICE_UNAVAILABLE);
    encode::field(out, "Content-Type", b"text/plain");
    encode::field(out, "Retry-After", b"1");
    let body = b"overloaded, try again\n";
    finish(out, body, Version::Http11, is_head, false, date);
}

fn finish(
    out: &mut Vec<u8>,
    body: &[u8],
    version: Version,
    is_head: bool,
    keep: bool,
    date: &Date,
) -> u64 {
    encode::delimiter(out, Delimiter::Length(body.len() as u64));
    encode::finish(out, version, keep, date.text());
    // RFC 9110, 9.3.2: no content after the head, or the peer takes it for the next answer.
    let body = if is_head { &[][..] } else { body };
    out.extend_from_slice(body);
    body.len() as u64
}

/// The `Date` field's text, made anew when the second changes.
#[derive(Debug)]
pub(super) struct Date {
    second: u64,
    text: String,
}

impl Default for Date {
    fn default() -> Self {
        Self {
            second: 0,
            text: httpdate::fmt_http_date(SystemTime::UNIX_EPOCH),
        }
    }
}

impl Date {
    pub(super) fn refresh(&mut self) {
        let now = SystemTime::now();
        let second = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |time| time.as_secs());
        if second != self.second {
            self.second = second;
            self.text = httpdate::fmt_http_date(now);
        }
    }

    pub(super) fn text(&self) -> &[u8] {
        self.text.as_bytes()
    }
}
