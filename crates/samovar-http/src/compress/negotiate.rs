//! Decides whether to compress a response, and adapts its header fields.

use std::sync::Arc;

use super::encoder::{Encoder, compress};
use super::media_type::is_compressible;
use super::source::Compressed;
use crate::head::Head;
use crate::http::accept_encoding::{self, Coding};
use crate::http::{Status, Version};
use crate::memory::Budget;
use crate::proto::encode;
use crate::response::{Body, Response};

/// Maximum length of a body that is compressed at once in memory, in bytes. Such a response has a
/// `Content-Length`, and keeps a worker busy for a few milliseconds at most.
const WHOLE_LEN_MAX: usize = 64 * 1024;

/// Minimum length of a compressed body, in bytes. Bodies of unknown length are compressed.
const LEN_MIN: u64 = 860;

/// Maximum number of bodies that are compressed while they are sent.
const STREAMS_MAX: usize = 64;

/// Media type of server-sent events.
const EVENTS: &[u8] = b"text/event-stream";

/// The compression of one server.
#[derive(Debug)]
pub(crate) struct Compression {
    /// Budget of bodies that are compressed while they are sent.
    streams: Arc<Budget>,
    /// Whether event streams are compressed, too.
    includes_events: bool,
}

/// Returns whether a response may be compressed, or may need `Vary`, judging by what is cheap to
/// find out. `is_inline`: its handler runs on the I/O thread, which must not spend the time. For a
/// deferred response, it is the handler's response in place of it.
pub(crate) fn concerns(response: &Response, is_inline: bool) -> bool {
    if response.is_uncompressed {
        return false;
    }
    let is_long = response.body_len.is_none_or(|len| len >= LEN_MIN);
    let is_now = is_long || response.status == Status::NOT_MODIFIED;
    response.later.is_some() || (is_now && !is_inline)
}

/// Returns the coding for the response to a request; `None` for a plain response.
pub(crate) fn coding(request: Head<'_>) -> Option<Coding> {
    let values = request
        .headers()
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"Accept-Encoding"))
        .map(|(_, value)| value);
    accept_encoding::choose(values)
}

impl Compression {
    /// `includes_events`: whether event streams are compressed, too.
    pub(crate) fn new(includes_events: bool) -> Self {
        Self {
            streams: Arc::new(Budget::new(STREAMS_MAX)),
            includes_events,
        }
    }

    /// Compresses a response if it meets the conditions listed in [`compress`](super). `coding` is
    /// the result of [`coding`] for the request.
    pub(crate) fn negotiate(
        &self,
        coding: Option<Coding>,
        version: Version,
        mut response: Response,
    ) -> Response {
        if response.is_uncompressed {
            return response;
        }
        if response.status == Status::NOT_MODIFIED {
            // A 304 has the same fields as the 200 response would have (RFC 9110, 15.4.5).
            if has(&response.fields, "ETag") {
                vary(&mut response.fields);
                if coding.is_some() {
                    response.fields = weakened(&response.fields);
                }
            }
            return response;
        }
        if !is_worth_it(&response) || !self.includes_events && is_event_stream(&response) {
            return response;
        }
        vary(&mut response.fields);
        let Some(coding) = coding else {
            return response;
        };
        let compressed = match response.body.in_memory() {
            Some(bytes) if bytes.len() <= WHOLE_LEN_MAX => whole(coding, bytes),
            // In HTTP/1.0, a body of unknown length ends with the connection, so the client could
            // not detect truncation.
            _ if version == Version::Http10 => None,
            _ => streamed(&self.streams, coding, &mut response.body),
        };
        if let Some(body) = compressed {
            response.fields = weakened(&response.fields);
            let token = coding.token().as_bytes();
            encode::field(&mut response.fields, "Content-Encoding", token);
            (response.body_len, response.body) = (body.len(), body);
        }
        response
    }
}

/// Returns whether the body is a stream of server-sent events.
fn is_event_stream(response: &Response) -> bool {
    let essence = |value: &'_ [u8]| {
        let essence = value.split(|&byte| byte == b';').next().unwrap_or_default();
        essence.trim_ascii().eq_ignore_ascii_case(EVENTS)
    };
    values(&response.fields, "Content-Type").any(essence)
}

/// Returns whether the response is suitable for compression, regardless of this client.
fn is_worth_it(response: &Response) -> bool {
    const AGAINST: [&str; 6] = [
        "Content-Encoding",
        "Content-Range",
        "Content-Digest",
        "Repr-Digest",
        "Digest",
        "Content-MD5",
    ];
    let fields = &response.fields;
    let is_long = response.body_len.is_none_or(|len| len >= LEN_MIN);
    is_long
        && response.status.allows_body()
        && response.status != Status::PARTIAL_CONTENT
        && values(fields, "Content-Type").any(is_compressible)
        && !AGAINST.iter().any(|name| has(fields, name))
        && !values(fields, "Cache-Control").any(|value| {
            let mut directives = value.split(|&byte| byte == b',');
            directives.any(|name| name.trim_ascii().eq_ignore_ascii_case(b"no-transform"))
        })
}

/// Compresses a body in memory; returns `None` if the result is not shorter, or if memory is
/// exhausted.
fn whole(coding: Coding, bytes: &[u8]) -> Option<Body> {
    let short = compress(coding, bytes).ok()?;
    (short.len() < bytes.len()).then(|| short.into())
}

/// Wraps a body in a source that compresses it while it is sent. Returns `None` and leaves the body
/// unchanged if a memory limit is reached.
fn streamed(streams: &Arc<Budget>, coding: Coding, body: &mut Body) -> Option<Body> {
    let slot = streams.take_one()?;
    let encoder = Encoder::new(coding).ok()?;
    let inner = std::mem::replace(body, Body::Empty).into_source();
    let source = Compressed::new(inner, encoder, slot);
    Some(Body::Source(Box::new(source)))
}

/// Iterates over rendered header fields; yields name, value and the whole line.
fn lines(fields: &[u8]) -> impl Iterator<Item = (&[u8], &[u8], &[u8])> {
    fields.split_inclusive(|&byte| byte == b'\n').map(|line| {
        let colon = line.iter().position(|&byte| byte == b':');
        let (name, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        (name, value.trim_ascii(), line)
    })
}

fn values<'a>(fields: &'a [u8], name: &str) -> impl Iterator<Item = &'a [u8]> {
    lines(fields)
        .filter(move |(field, ..)| field.eq_ignore_ascii_case(name.as_bytes()))
        .map(|(_, value, _)| value)
}

fn has(fields: &[u8], name: &str) -> bool {
    values(fields, name).next().is_some()
}

/// Adds `Vary: Accept-Encoding`, because another client may receive different bytes (RFC 9110,
/// 12.5.5).
fn vary(fields: &mut Vec<u8>) {
    let is_set = values(fields, "Vary").any(|value| {
        let mut names = value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        names.any(|name| name == b"*" || name.eq_ignore_ascii_case(b"Accept-Encoding"))
    });
    if !is_set {
        encode::field(fields, "Vary", b"Accept-Encoding");
    }
}

/// Returns the fields for a body that differs from the handler's. A strong entity tag becomes weak,
/// because otherwise bodies in different codings would have equal tags. `Accept-Ranges` is omitted.
fn weakened(fields: &[u8]) -> Vec<u8> {
    let mut weak = Vec::with_capacity(fields.len() + 32);
    for (name, value, line) in lines(fields) {
        if name.eq_ignore_ascii_case(b"Accept-Ranges") {
            continue;
        }
        if name.eq_ignore_ascii_case(b"ETag") && !value.starts_with(b"W/") {
            encode::field(&mut weak, "ETag", &[b"W/", value].concat());
        } else {
            weak.extend_from_slice(line);
        }
    }
    weak
}

#[cfg(test)]
mod tests;
