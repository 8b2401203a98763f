//! The head of a request: request line and header fields.
//!
//! `httparse` finds the parts; this module adds what it leaves open and what the fields mean for the
//! connection: where the body ends, whether the connection lives on.
//!
//! | limit | default | unit | reason |
//! |---|---|---|---|
//! | `head_len_max` | 16384 | bytes | what other servers accept, with room; answer 431 |
//! | `target_len_max` | 8192 | bytes | RFC 9112, section 3 asks for 8000; answer 414 |
//! | `header_count_max` | 100 | lines | no client sends half of it; answer 431 |
//!
//! # Source
//!
//! RFC 9112, sections 2 to 7; RFC 9110, sections 7.2, 8.6 and 10.1.1.

use std::mem::MaybeUninit;

use super::Refusal;
use crate::http::{Method, Version};

/// The most header lines a head may be allowed to have, whatever the configured limit.
pub const HEADER_COUNT_CEILING: usize = 128;

/// Limits of one request head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLimits {
    /// Request line, header lines and the empty line, in bytes.
    pub head_len_max: usize,
    /// The request target, in bytes.
    pub target_len_max: usize,
    /// Header lines; at most [`HEADER_COUNT_CEILING`].
    pub header_count_max: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self {
            head_len_max: 16 * 1024,
            target_len_max: 8 * 1024,
            header_count_max: 100,
        }
    }
}

/// A run of bytes within a head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// The bytes, or nothing if `raw` is not the text this span was made for.
    pub fn of(self, raw: &[u8]) -> &[u8] {
        let start = self.start as usize;
        raw.get(start..start.saturating_add(self.len as usize))
            .unwrap_or_default()
    }

    /// Where `part`, a slice of `raw`, lies.
    fn locate(raw: &[u8], part: &[u8]) -> Self {
        let start = (part.as_ptr() as usize).saturating_sub(raw.as_ptr() as usize);
        // Heads are bounded by `head_len_max`, far below 4 GiB.
        Self {
            start: u32::try_from(start).unwrap_or(u32::MAX),
            len: u32::try_from(part.len()).unwrap_or(u32::MAX),
        }
    }
}

/// One header line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeaderSpan {
    /// The field name, as sent.
    pub name: Span,
    /// The field value without surrounding white space.
    pub value: Span,
}

/// Where the body of a request ends (RFC 9112, section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// There is none.
    #[default]
    None,
    /// After this many bytes; never 0.
    Length(u64),
    /// With the last chunk.
    Chunked,
}

/// What a head says, as spans into its bytes. Reused from request to request: nothing is allocated
/// once the vector has grown.
#[derive(Debug, Clone)]
pub struct HeadIndex {
    /// The method.
    pub method: Method,
    /// Its token as sent.
    pub method_name: Span,
    /// The request target as sent.
    pub target: Span,
    /// The path within the target: from the first `/` after an authority, up to `?`.
    pub path: Span,
    /// The query, without `?`.
    pub query: Option<Span>,
    /// The protocol version.
    pub version: Version,
    /// The header lines in order.
    pub headers: Vec<HeaderSpan>,
    /// Where the body ends.
    pub framing: Framing,
    /// Whether the peer wants the connection kept.
    pub keep_alive: bool,
    /// Whether the peer waits for `100 Continue` before it sends the body.
    pub expect_continue: bool,
}

impl Default for HeadIndex {
    fn default() -> Self {
        Self {
            method: Method::Get,
            method_name: Span::default(),
            target: Span::default(),
            path: Span::default(),
            query: None,
            version: Version::Http11,
            headers: Vec::new(),
            framing: Framing::None,
            keep_alive: false,
            expect_continue: false,
        }
    }
}

/// Parses a head from the start of `input`, which may hold more than the head.
///
/// Returns the head's length when it is complete, `None` while it is not: read more, call again
/// with everything from the start. Spans in `index` are relative to `input`.
///
/// # Errors
///
/// Any [`Refusal`]; all are final for the connection.
pub fn parse(
    input: &[u8],
    limits: &HeadLimits,
    index: &mut HeadIndex,
) -> Result<Option<usize>, Refusal> {
    // RFC 9112, 2.2: "a server that is expecting to receive and parse a request-line SHOULD ignore
    // at least one empty line (CRLF) received prior to the request-line." One, not any number.
    let lead_len = match input {
        [b'\r', b'\n', ..] => 2,
        [b'\r'] => return Ok(None),
        [b'\r' | b'\n' | b' ', ..] => return Err(Refusal::RequestLine),
        _ => 0,
    };
    let head = input.get(lead_len..).unwrap_or_default();
    if matches!(head, [b'\r' | b'\n' | b' ', ..]) {
        return Err(Refusal::RequestLine);
    }
    let mut storage =
        [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; HEADER_COUNT_CEILING];
    let count_max = limits.header_count_max.min(HEADER_COUNT_CEILING);
    let slots = storage.get_mut(..count_max).unwrap_or_default();
    let mut request = httparse::Request::new(&mut []);
    let status = request.parse_with_uninit_headers(head, slots);
    let head_len = match status {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return partial(head, limits),
        Err(error) => return Err(refusal(error, head, limits)),
    };
    if head_len > limits.head_len_max {
        return Err(oversize(head, limits));
    }
    refuse_bare_lf(head.get(..head_len).unwrap_or_default())?;
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version)
    else {
        return Err(Refusal::RequestLine);
    };
    index.method = Method::from_token(method);
    index.method_name = Span::locate(input, method.as_bytes());
    index.version = if minor == 0 {
        Version::Http10
    } else {
        Version::Http11
    };
    if target.len() > limits.target_len_max {
        return Err(Refusal::TargetTooLong);
    }
    index.target = Span::locate(input, target.as_bytes());
    let (path, query) = split_target(index.method, target.as_bytes())?;
    index.path = Span::locate(input, path);
    index.query = query.map(|query| Span::locate(input, query));
    read_fields(input, request.headers, index)?;
    Ok(Some(lead_len.saturating_add(head_len)))
}

/// A head that is not complete yet: wait, unless it is too long already.
fn partial(head: &[u8], limits: &HeadLimits) -> Result<Option<usize>, Refusal> {
    if head.len() >= limits.head_len_max {
        return Err(oversize(head, limits));
    }
    if memchr::memchr(b'\n', head).is_none() {
        // Still in the request line, which is its target but for a few bytes.
        let target_start = memchr::memchr(b' ', head).map_or(head.len(), |at| at.saturating_add(1));
        if head.len().saturating_sub(target_start) > limits.target_len_max {
            return Err(Refusal::TargetTooLong);
        }
    }
    Ok(None)
}

/// Whether it is the target or the fields that made a head too long.
fn oversize(head: &[u8], limits: &HeadLimits) -> Refusal {
    let line_len = memchr::memchr(b'\n', head).unwrap_or(head.len());
    if line_len > limits.target_len_max {
        Refusal::TargetTooLong
    } else {
        Refusal::HeadTooLarge
    }
}

fn refusal(error: httparse::Error, head: &[u8], limits: &HeadLimits) -> Refusal {
    match error {
        httparse::Error::TooManyHeaders if head.len() >= limits.head_len_max => {
            oversize(head, limits)
        }
        httparse::Error::TooManyHeaders => Refusal::TooManyHeaders,
        httparse::Error::Version if looks_like_another_version(head) => Refusal::HttpVersion,
        httparse::Error::HeaderName | httparse::Error::HeaderValue => Refusal::HeaderField,
        httparse::Error::NewLine => Refusal::BareLf,
        httparse::Error::Version | httparse::Error::Status | httparse::Error::Token => {
            Refusal::RequestLine
        }
    }
}

/// `HTTP/` DIGIT `.` DIGIT as third part of the request line: a version, only not one of ours.
fn looks_like_another_version(head: &[u8]) -> bool {
    let line = head
        .get(..memchr::memchr(b'\r', head).unwrap_or(head.len()))
        .unwrap_or_default();
    let mut parts = line.split(|byte| *byte == b' ').skip(2);
    matches!(
        (parts.next(), parts.next()),
        (
            Some([b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9']),
            None
        )
    )
}

/// `httparse` takes a bare LF for a line end, as RFC 9112, 2.2 permits. A proxy in front of us may
/// not, and that difference is how requests are smuggled.
fn refuse_bare_lf(head: &[u8]) -> Result<(), Refusal> {
    for at in memchr::memchr_iter(b'\n', head) {
        if at.checked_sub(1).and_then(|before| head.get(before)) != Some(&b'\r') {
            return Err(Refusal::BareLf);
        }
    }
    Ok(())
}

/// Path and query of a request target (RFC 9112, section 3.2).
fn split_target(method: Method, target: &[u8]) -> Result<(&[u8], Option<&[u8]>), Refusal> {
    if !target.iter().all(|byte| byte.is_ascii_graphic()) {
        return Err(Refusal::Target);
    }
    let origin = match target {
        [b'/', ..] => target,
        b"*" if method == Method::Options => return Ok((target, None)),
        _ if method == Method::Connect => return Ok((b"", None)),
        _ => after_authority(target).ok_or(Refusal::Target)?,
    };
    Ok(match memchr::memchr(b'?', origin) {
        Some(at) => {
            let (path, query) = origin.split_at(at);
            (path, query.get(1..))
        }
        None => (origin, None),
    })
}

/// The part of an absolute-form target behind its authority; empty means the root.
fn after_authority(target: &[u8]) -> Option<&[u8]> {
    let scheme_len = [&b"http://"[..], &b"https://"[..]]
        .into_iter()
        .find(|scheme| {
            target
                .get(..scheme.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        })?
        .len();
    let rest = target.get(scheme_len..)?;
    let authority_len = rest
        .iter()
        .position(|byte| matches!(byte, b'/' | b'?'))
        .unwrap_or(rest.len());
    let (authority, origin) = rest.split_at(authority_len);
    if authority.is_empty() || !is_host(authority) {
        return None;
    }
    Some(origin)
}

/// Reads what header fields say about the connection and the body, and keeps all of them.
fn read_fields(
    input: &[u8],
    headers: &[httparse::Header<'_>],
    index: &mut HeadIndex,
) -> Result<(), Refusal> {
    index.headers.clear();
    let mut host_count = 0_u32;
    let mut content_length = None;
    let mut codings = Codings::default();
    let mut connection = ConnectionTokens::default();
    index.expect_continue = false;
    for header in headers {
        let value = trim_ows(header.value);
        index.headers.push(HeaderSpan {
            name: Span::locate(input, header.name.as_bytes()),
            value: Span::locate(input, value),
        });
        match header.name.len() {
            4 if header.name.eq_ignore_ascii_case("host") => {
                host_count = host_count.saturating_add(1);
                if !is_host(value) {
                    return Err(Refusal::Host);
                }
            }
            6 if header.name.eq_ignore_ascii_case("expect") => {
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(Refusal::Expectation);
                }
                index.expect_continue = true;
            }
            10 if header.name.eq_ignore_ascii_case("connection") => connection.read(value),
            14 if header.name.eq_ignore_ascii_case("content-length") => {
                // Even two equal lengths are refused: RFC 9112, 6.3 leaves the choice, and no
                // client sends them.
                if content_length.is_some() {
                    return Err(Refusal::ContentLength);
                }
                content_length = Some(decimal(value).ok_or(Refusal::ContentLength)?);
            }
            17 if header.name.eq_ignore_ascii_case("transfer-encoding") => codings.read(value)?,
            _ => {}
        }
    }
    // RFC 9112, 3.2: "A server MUST respond with a 400 (Bad Request) status code to any HTTP/1.1
    // request message that lacks a Host header field and to any request message that contains more
    // than one Host header field line or a Host header field with an invalid field value."
    if host_count > 1 || (host_count == 0 && index.version == Version::Http11) {
        return Err(Refusal::Host);
    }
    index.framing = framing(index.version, content_length, &codings)?;
    index.keep_alive = connection.keep_alive(index.version);
    // RFC 9110, 10.1.1: an expectation in an HTTP/1.0 request is ignored, and so is one without a
    // body to wait for.
    if index.version == Version::Http10 || index.framing == Framing::None {
        index.expect_continue = false;
    }
    Ok(())
}

fn framing(
    version: Version,
    content_length: Option<u64>,
    codings: &Codings,
) -> Result<Framing, Refusal> {
    if !codings.present {
        return Ok(match content_length {
            None | Some(0) => Framing::None,
            Some(len) => Framing::Length(len),
        });
    }
    // RFC 9112, 6.1: a Transfer-Encoding beside a Content-Length "ought to be handled as an error",
    // and one in an HTTP/1.0 message is framing that cannot be trusted.
    if content_length.is_some() || version == Version::Http10 || !codings.chunked_last {
        return Err(Refusal::TransferEncoding);
    }
    if codings.others {
        Err(Refusal::TransferCoding)
    } else {
        Ok(Framing::Chunked)
    }
}

/// The transfer codings of all `Transfer-Encoding` lines, in order.
#[derive(Default)]
struct Codings {
    present: bool,
    chunked_last: bool,
    others: bool,
}

impl Codings {
    fn read(&mut self, value: &[u8]) -> Result<(), Refusal> {
        self.present = true;
        for coding in value.split(|byte| *byte == b',') {
            // Nothing may follow `chunked`, not even itself.
            if self.chunked_last {
                return Err(Refusal::TransferEncoding);
            }
            let coding = trim_ows(coding);
            if coding.is_empty() {
                return Err(Refusal::TransferEncoding);
            }
            self.chunked_last = coding.eq_ignore_ascii_case(b"chunked");
            self.others |= !self.chunked_last;
        }
        Ok(())
    }
}

/// The tokens of all `Connection` lines that matter here.
#[derive(Default)]
struct ConnectionTokens {
    close: bool,
    keep_alive: bool,
}

impl ConnectionTokens {
    fn read(&mut self, value: &[u8]) {
        for token in value.split(|byte| *byte == b',').map(trim_ows) {
            self.close |= token.eq_ignore_ascii_case(b"close");
            self.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    /// RFC 9112, section 9.3.
    fn keep_alive(&self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive)
    }
}

fn trim_ows(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// A plain decimal number: no sign, no white space, no list.
fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// The bytes RFC 3986 allows in `host [ ":" port ]`; empty is allowed (RFC 9112, 3.2).
fn is_host(value: &[u8]) -> bool {
    value.iter().all(|byte| {
        byte.is_ascii_alphanumeric()
            || matches!(
                byte,
                b'-' | b'.'
                    | b'_'
                    | b'~'
                    | b'%'
                    | b'!'
                    | b'$'
                    | b'&'
                    | b'\''
                    | b'('
                    | b')'
                    | b'*'
                    | b'+'
                    | b';'
                    | b'='
                    | b':'
                    | b'['
                    | b']'
            )
    })
}

#[cfg(test)]
mod tests;
