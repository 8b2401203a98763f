//! Sending one file of a store path to a browser.
//!
//! # Theory of operation
//!
//! What is in a store may mean harm, and a browser shows it under the address of the cache. So each
//! file is sent with a policy that puts it into a sandbox: it has an origin of its own, runs no
//! script, sends no form, opens no window and is in nobody's frame. A type is said and not guessed
//! by the browser; what is not a text, a picture, a sound or a static page is saved rather than
//! shown.

use std::fs::File;
use std::os::unix::fs::FileExt;

use samovar_http::http::{Method, Status, range};
use samovar_http::{Body, Head, Response};
use samovar_nix::NarHash;

use super::url::encode;
use crate::known::small_nars::ACCEPT_RANGES;

/// Style and pictures of the same tree let documentation look as it should.
const POLICY: &str = "sandbox; default-src 'none'; style-src 'self' 'unsafe-inline'; \
                      img-src 'self' data:; font-src 'self' data:; media-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// How much of a file without a known ending is looked at.
const LOOK_LEN: usize = 4096;

const TEXT: &str = "text/plain; charset=utf-8";

/// What is known by its ending. Scripts are texts: they could run nowhere.
const TYPES: &[(&str, &[&str])] = &[
    ("text/html; charset=utf-8", &["html", "htm"]),
    ("text/css; charset=utf-8", &["css"]),
    ("application/json", &["json"]),
    ("image/svg+xml", &["svg"]),
    ("image/png", &["png"]),
    ("image/jpeg", &["jpg", "jpeg"]),
    ("image/gif", &["gif"]),
    ("image/webp", &["webp"]),
    ("image/avif", &["avif"]),
    ("image/x-icon", &["ico"]),
    ("font/woff2", &["woff2"]),
    ("font/woff", &["woff"]),
    ("font/ttf", &["ttf"]),
    ("font/otf", &["otf"]),
    ("audio/mpeg", &["mp3"]),
    ("audio/ogg", &["ogg", "oga", "opus"]),
    ("video/mp4", &["mp4"]),
    ("video/webm", &["webm"]),
];

/// A file that is to be sent.
#[derive(Debug)]
pub(crate) struct Sent<'a> {
    pub(crate) file: File,
    pub(crate) size: u64,
    /// Its name, or that of the path whose root it is.
    pub(crate) name: &'a [u8],
    /// Of the path it is in: as long as that is the same, so is the file.
    pub(crate) nar_hash: NarHash,
    /// Whether it is to be saved, whatever it is.
    pub(crate) is_saved: bool,
}

impl Sent<'_> {
    /// The answer: all of it, a range, or that it is what the client has already.
    pub(crate) fn response(self, head: Head<'_>) -> Response {
        let tag = format!(
            "\"{}\"",
            String::from_utf8_lossy(&self.nar_hash.nixbase32())
        );
        let fields = |response: Response| {
            response
                .header("ETag", &tag)
                // It may be asked for again in vain: the path may be gone, or denied.
                .header("Cache-Control", "no-cache")
                .header("Content-Security-Policy", POLICY)
                .header("X-Content-Type-Options", "nosniff")
                .header("X-Frame-Options", "DENY")
                .header("Referrer-Policy", "no-referrer")
        };
        if head
            .header("If-None-Match")
            .is_some_and(|tags| names_tag(tags, &tag))
        {
            return fields(Response::new(Status::NOT_MODIFIED, Body::Empty));
        }
        let is_same = head
            .header("If-Range")
            .is_none_or(|have| have == tag.as_bytes());
        let outcome = match head.header("Range") {
            Some(value) if head.method() == Method::Get && is_same => {
                range::resolve(value, self.size)
            }
            _ => range::RangeOutcome::Whole,
        };
        let (status, range) = match outcome {
            range::RangeOutcome::Whole => (Status::OK, 0..self.size),
            range::RangeOutcome::Part { start, end } => (Status::PARTIAL_CONTENT, start..end),
            range::RangeOutcome::Unsatisfiable => {
                let response = Response::text(
                    Status::RANGE_NOT_SATISFIABLE,
                    "Range beyond the end of the file.\n",
                );
                return response.header("Content-Range", format!("bytes */{}", self.size));
            }
        };
        let content_range = format!(
            "bytes {}-{}/{}",
            range.start,
            range.end.saturating_sub(1),
            self.size
        );
        let media_type = media_type(self.name, &self.file);
        let disposition = match media_type {
            Some(_) if !self.is_saved => "inline",
            _ => "attachment",
        };
        let disposition = format!("{disposition}; filename*=UTF-8''{}", encode(self.name));
        let response = fields(Response::new(status, Body::file_range(self.file, range)))
            .header(
                "Content-Type",
                media_type.unwrap_or("application/octet-stream"),
            )
            .header("Content-Disposition", disposition)
            .header(ACCEPT_RANGES.0, ACCEPT_RANGES.1)
            .uncompressed();
        match status {
            Status::PARTIAL_CONTENT => response.header("Content-Range", content_range),
            _ => response,
        }
    }
}

/// Whether a list of tags holds this one (RFC 9110, 13.1.2): weak ones count as well.
fn names_tag(tags: &[u8], tag: &str) -> bool {
    let mut tags = tags.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    tags.any(|have| have == b"*" || have.strip_prefix(b"W/").unwrap_or(have) == tag.as_bytes())
}

/// What a file is, if a browser may show it.
fn media_type(name: &[u8], file: &File) -> Option<&'static str> {
    let ending = name.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
    let known = |(_, endings): &&(&str, &[&str])| {
        endings
            .iter()
            .any(|known| ending.eq_ignore_ascii_case(known.as_bytes()))
    };
    if name.contains(&b'.')
        && let Some((media_type, _)) = TYPES.iter().find(known)
    {
        return Some(media_type);
    }
    let mut start = [0; LOOK_LEN];
    let len = file.read_at(&mut start, 0).ok()?;
    is_text(&start[..len]).then_some(TEXT)
}

/// Whether a file that begins so is a text for people.
fn is_text(start: &[u8]) -> bool {
    let valid = match std::str::from_utf8(start) {
        Ok(text) => text,
        // A character may be cut at the end of what was looked at.
        Err(error) if error.error_len().is_none() && start.len() == LOOK_LEN => {
            std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    !valid
        .chars()
        .any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{c}' | '\u{1b}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &[u8], content: &[u8], expected: Option<&str>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, content).unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(media_type(name, &file), expected, "{name:?}");
    }

    #[test]
    fn types_are_said_or_files_are_saved() {
        check(b"a.html", b"", Some("text/html; charset=utf-8"));
        check(b"A.PNG", b"x", Some("image/png"));
        check(b"html", b"<script>", Some(TEXT));
        check(b"a.js", b"alert(1)", Some(TEXT));
        check(b"a.xhtml", b"<script xmlns='x'/>", Some(TEXT));
        check(b"empty", b"", Some(TEXT));
        check(b"a.out", b"\x7fELF\0", None);
        check(b"a.pdf", b"%PDF-1.7\n\xff", None);
        check(b"latin", b"caf\xe9", None);
        let mut cut = vec![b'a'; LOOK_LEN - 1];
        cut.extend("ü".as_bytes());
        check(b"cut", &cut, Some(TEXT));
    }

    #[test]
    fn tags() {
        assert!(names_tag(b"\"a\", W/\"b\"", "\"b\""));
        assert!(names_tag(b"*", "\"b\""));
        assert!(!names_tag(b"\"bb\"", "\"b\""));
    }
}
