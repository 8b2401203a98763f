//! Sending a file of a store path to a browser.
//!
//! # Theory of operation
//!
//! Files in a store may be malicious, and a browser displays them under the origin of the cache.
//! Each file is therefore sent with a Content Security Policy that sandboxes it: it gets an opaque
//! origin, and cannot run scripts, submit forms, open windows or be framed. The media type is sent
//! explicitly and sniffing disabled. Only text, images, audio, video and static pages are
//! displayed; everything else is downloaded.

use std::fs::File;
use std::os::unix::fs::FileExt;

use samovar_http::http::Status;
use samovar_http::{Body, Head, Response};
use samovar_nix::NarHash;

use super::url::encode;
use crate::answer::nar::Part;
use crate::known::small_nars::ACCEPT_RANGES;

/// Styles and images from the same origin are allowed, so that documentation is shown as designed.
const POLICY: &str = "sandbox; default-src 'none'; style-src 'self' 'unsafe-inline'; \
                      img-src 'self' data:; font-src 'self' data:; media-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Number of bytes examined to detect text in a file without a known extension.
const LOOK_LEN: usize = 4096;

/// Maximum size of a text file that is shown as a page. Browsers become slow with longer pages.
const VIEW_LEN_MAX: u64 = 4 << 20;

const TEXT: &str = "text/plain; charset=utf-8";

/// Media types by extension. Scripts are not listed, so they are sent as plain text.
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

/// A file that is sent to a browser, and how it is sent.
#[derive(Debug)]
pub(crate) struct Sent<'a> {
    pub(crate) file: File,
    pub(crate) size: u64,
    /// The file's name, or the name of the store path if the file is its root.
    pub(crate) name: &'a [u8],
    /// NAR hash of the store path, which serves as `ETag`: it changes whenever a file does.
    pub(crate) nar_hash: NarHash,
    /// Whether the browser must download the file instead of displaying it.
    pub(crate) is_saved: bool,
}

impl Sent<'_> {
    /// Whether the file is text that can be shown as a page.
    pub(crate) fn is_viewable(&self) -> bool {
        const SOURCES: [&str; 3] = [TEXT, "text/css; charset=utf-8", "application/json"];
        self.size <= VIEW_LEN_MAX
            && media_type(self.name, &self.file).is_some_and(|found| SOURCES.contains(&found))
    }

    /// Makes the response: the whole file, a range, 304 or 416.
    pub(crate) fn response(self, head: Head<'_>) -> Response {
        let tag = format!("\"{}\"", self.nar_hash.to_hash().nixbase32());
        let fields = |response: Response| {
            response
                .header("ETag", &tag)
                // Caches must revalidate: the path may have been garbage-collected or excluded.
                .header("Cache-Control", "no-cache")
                .header("Content-Security-Policy", POLICY)
                .header("X-Content-Type-Options", "nosniff")
                .header("X-Frame-Options", "DENY")
                .header("Referrer-Policy", "no-referrer")
                .header("X-Robots-Tag", "noindex")
        };
        if head
            .header("If-None-Match")
            .is_some_and(|tags| names_tag(tags, &tag))
        {
            return fields(Response::new(Status::NOT_MODIFIED, Body::Empty));
        }
        let part =
            match Part::of_tagged(head, self.size, &tag, "Range beyond the end of the file.\n") {
                Ok(part) => part,
                Err(unsatisfiable) => return unsatisfiable,
            };
        let media_type = media_type(self.name, &self.file);
        let disposition = match media_type {
            Some(_) if !self.is_saved => "inline",
            _ => "attachment",
        };
        let disposition = format!("{disposition}; filename*=UTF-8''{}", encode(self.name));
        let body = Body::file_range(self.file, part.start..part.end);
        let response = fields(Response::new(part.status, body))
            .header(
                "Content-Type",
                media_type.unwrap_or("application/octet-stream"),
            )
            .header("Content-Disposition", disposition)
            .header(ACCEPT_RANGES.0, ACCEPT_RANGES.1)
            .uncompressed();
        part.with_range(response)
    }
}

/// Whether a list of entity tags contains this one, weak or strong (RFC 9110, 13.1.2).
fn names_tag(tags: &[u8], tag: &str) -> bool {
    let mut tags = tags.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    tags.any(|have| have == b"*" || have.strip_prefix(b"W/").unwrap_or(have) == tag.as_bytes())
}

/// Returns the media type of a file that a browser may display; `None` for other files.
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

/// Whether a file that starts with these bytes is text.
fn is_text(start: &[u8]) -> bool {
    let valid = match std::str::from_utf8(start) {
        Ok(text) => text,
        // The limit may have cut the last character in two.
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
    fn text_and_known_types_are_displayed_and_other_files_have_no_type() {
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
    fn entity_tags_are_compared_weakly() {
        assert!(names_tag(b"\"a\", W/\"b\"", "\"b\""));
        assert!(names_tag(b"*", "\"b\""));
        assert!(!names_tag(b"\"bb\"", "\"b\""));
    }
}
