//! Decides whether a response is compressed, and adapts its header fields.

use std::borrow::Cow;
use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::Compression;
use super::encoder::{Encoder, compress};
use super::media_type::is_compressible;
use super::source::{Compressed, Slot};
use crate::body::{Source, sources};
use crate::head::Head;
use crate::http::accept_encoding::{AcceptEncoding, Coding};
use crate::http::{Status, Version};
use crate::proto::encode;
use crate::response::{Body, Response};

/// Limit for compressing a body in memory at once, in bytes: the response has a `Content-Length`,
/// and a worker is busy for some milliseconds at most.
const WHOLE_LEN_MAX: usize = 64 * 1024;

/// Compression state of a server.
#[derive(Debug)]
pub(crate) struct Negotiator {
    compression: Compression,
    stream_count: Arc<AtomicUsize>,
}

impl Negotiator {
    pub(crate) fn new(compression: Compression) -> Self {
        Self {
            compression,
            stream_count: Arc::default(),
        }
    }

    /// Returns the coding for the response to a request, if any.
    pub(crate) fn coding(&self, request: Head<'_>) -> Option<Coding> {
        let fields = request.headers();
        let values = fields
            .filter(|(name, _)| name.eq_ignore_ascii_case(b"Accept-Encoding"))
            .map(|(_, value)| value);
        AcceptEncoding::parse(values).choose(&self.compression.codings)
    }
}

/// Compresses a response if the conditions hold. `coding`: result of [`Negotiator::coding`].
/// `body_len`: length of the body, if known. Returns the response and its new body length.
pub(crate) fn negotiate(
    negotiator: &Negotiator,
    coding: Option<Coding>,
    version: Version,
    mut response: Response,
    body_len: Option<u64>,
) -> (Response, Option<u64>) {
    if response.is_uncompressed {
        return (response, body_len);
    }
    if response.status == Status::NOT_MODIFIED {
        // A 304 has the same fields as the 200 would have (RFC 9110, 15.4.5).
        if has(&response.fields, "ETag") {
            vary(&mut response.fields);
            if coding.is_some() {
                response.fields = weakened(&response.fields);
            }
        }
        return (response, body_len);
    }
    if !is_worth_it(&negotiator.compression, &response, body_len) {
        return (response, body_len);
    }
    vary(&mut response.fields);
    let Some(coding) = coding else {
        return (response, body_len);
    };
    let body = match std::mem::replace(&mut response.body, Body::Empty) {
        Body::Bytes(bytes) if bytes.len() <= WHOLE_LEN_MAX => whole(coding, Body::Bytes(bytes)),
        Body::Shared(bytes) if bytes.len() <= WHOLE_LEN_MAX => whole(coding, Body::Shared(bytes)),
        // The body would end with the connection, so truncation would look like a complete body.
        body if version == Version::Http10 => Err(body),
        body => streamed(negotiator, coding, body),
    };
    match body {
        Ok((body, len)) => {
            response.fields = weakened(&response.fields);
            let token = coding.token().as_bytes();
            encode::field(&mut response.fields, "Content-Encoding", token);
            response.body = body;
            (response, len)
        }
        Err(body) => {
            response.body = body;
            (response, body_len)
        }
    }
}

/// Whether the response may be compressed for some client.
fn is_worth_it(compression: &Compression, response: &Response, body_len: Option<u64>) -> bool {
    const AGAINST: [&str; 7] = [
        "Content-Encoding",
        "Content-Range",
        "Content-Digest",
        "Repr-Digest",
        "Digest",
        "Content-MD5",
        "Trailer",
    ];
    let fields = &response.fields;
    let is_long = body_len.is_none_or(|len| len >= compression.len_min.max(1));
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

/// Compresses a body in memory; returns it unchanged if that is not shorter.
fn whole(coding: Coding, body: Body) -> Result<(Body, Option<u64>), Body> {
    let bytes: &[u8] = match &body {
        Body::Bytes(bytes) => bytes,
        Body::Shared(bytes) => bytes,
        Body::Empty | Body::Source(_) => &[],
    };
    match compress(coding, bytes) {
        Ok(short) if short.len() < bytes.len() => {
            let len = short.len() as u64;
            Ok((Body::Bytes(Cow::Owned(short)), Some(len)))
        }
        // No gain, or no memory to find out.
        Ok(_) | Err(_) => Err(body),
    }
}

/// A body compressed on its way, or as it was if that takes more memory than there is.
fn streamed(
    negotiator: &Negotiator,
    coding: Coding,
    body: Body,
) -> Result<(Body, Option<u64>), Body> {
    let max = negotiator.compression.streams_max;
    let Some(slot) = Slot::take(&negotiator.stream_count, max) else {
        return Err(body);
    };
    let Ok(encoder) = Encoder::new(coding) else {
        return Err(body);
    };
    let inner: Box<dyn Source> = match body {
        Body::Empty => return Err(body),
        Body::Bytes(bytes) => Box::new(sources::Reader::new(Cursor::new(bytes), None)),
        Body::Shared(bytes) => Box::new(sources::Reader::new(Cursor::new(bytes), None)),
        Body::Source(source) => source,
    };
    let source = Compressed::new(inner, encoder, slot);
    Ok((Body::Source(Box::new(source)), None))
}

/// Lines of rendered fields: name, value, the line whole.
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

/// Tells caches that another client may get other bytes (RFC 9110, 12.5.5).
fn vary(fields: &mut Vec<u8>) {
    let says_so = values(fields, "Vary").any(|value| {
        let mut names = value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        names.any(|name| name == b"*" || name.eq_ignore_ascii_case(b"Accept-Encoding"))
    });
    if !says_so {
        encode::field(fields, "Vary", b"Accept-Encoding");
    }
}

/// The fields of bytes that are no longer the handler's own: a strong entity tag becomes weak, for
/// two clients with other codings would compare equal, and ranges are not offered.
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
