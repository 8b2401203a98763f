//! Parser of request heads: request line and header fields.
//!
//! `httparse` splits the head. This module adds the checks that `httparse` omits, and interprets
//! the fields for body framing and connection persistence.
//!
//! | limit | default | unit | reason |
//! |---|---|---|---|
//! | `head_len_max` | 16384 | bytes | more than other servers accept; 431 |
//! | `target_len_max` | 8192 | bytes | RFC 9112, section 3 recommends 8000; 414 |
//! | `header_count_max` | 100 | lines | clients send less than half of it; 431 |
//!
//! # Source
//!
//! RFC 9112, sections 2 to 7; RFC 9110, sections 7.2, 8.6 and 10.1.1.

use std::mem::MaybeUninit;

use super::Refusal;
use crate::http::{Method, Version, trim_ows};

/// Upper bound of [`HeadLimits::header_count_max`].
pub const HEADER_COUNT_CEILING: usize = 128;

/// Limits of a request head. Later versions may add limits, so end a literal with
/// `..HeadLimits::default()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLimits {
    /// Maximum length of the request line, header lines and empty line, in bytes.
    pub head_len_max: usize,
    /// Maximum length of the request target, in bytes.
    pub target_len_max: usize,
    /// Maximum number of header lines; at most [`HEADER_COUNT_CEILING`].
    pub header_count_max: usize,
    // Forces users to end a literal with the defaults, so a later version can add a field. The
    // attribute `non_exhaustive` would forbid that form, too.
    #[doc(hidden)]
    pub more: (),
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self {
            head_len_max: 16 * 1024,
            target_len_max: 8 * 1024,
            header_count_max: 100,
            more: (),
        }
    }
}

/// A range of bytes within a head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// Returns the bytes of the span in `raw`, the head that was parsed; empty if out of range.
    pub fn of(self, raw: &[u8]) -> &[u8] {
        let start = self.start as usize;
        raw.get(start..start.saturating_add(self.len as usize))
            .unwrap_or_default()
    }

    /// Locates `part`, a slice of `raw`.
    fn locate(raw: &[u8], part: &[u8]) -> Self {
        let start = (part.as_ptr() as usize).saturating_sub(raw.as_ptr() as usize);
        // Heads are bounded by `head_len_max`, far below 4 GiB.
        Self {
            start: u32::try_from(start).unwrap_or(u32::MAX),
            len: u32::try_from(part.len()).unwrap_or(u32::MAX),
        }
    }
}

/// Name and value of one header line, as spans within the head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeaderSpan {
    /// The field name, as sent.
    pub name: Span,
    /// The field value without surrounding white space.
    pub value: Span,
}

/// Framing of a request body (RFC 9112, section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// The request has no body.
    #[default]
    None,
    /// `Content-Length` in bytes; never 0.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// A parsed request head, as spans into its bytes. Reused for all requests of a connection, so that
/// parsing allocates nothing once `headers` has grown.
#[derive(Debug, Clone, Default)]
pub struct HeadIndex {
    /// The request method.
    pub method: Method,
    /// The method token as sent.
    pub method_name: Span,
    /// The request target as sent.
    pub target: Span,
    /// The path within the target: from the first `/` after an authority, up to `?`.
    pub path: Span,
    /// The query, without `?`; `None` if the target has no `?`.
    pub query: Option<Span>,
    /// The protocol version of the request line.
    pub version: Version,
    /// All header lines, in the order sent.
    pub headers: Vec<HeaderSpan>,
    /// Framing of the body, which selects the body decoder.
    pub framing: Framing,
    /// Whether the peer wants the connection to stay open.
    pub keep_alive: bool,
    /// Whether the peer waits for `100 Continue` before sending the body.
    pub expect_continue: bool,
}

/// Parses the head at the start of `input`; later bytes are ignored.
///
/// Returns the length of the head, or `None` while it is incomplete: call again with all bytes from
/// the start. Spans in `index` are relative to `input`.
///
/// # Errors
///
/// Any [`Refusal`]; the connection must then be closed.
pub fn parse(
    input: &[u8],
    limits: &HeadLimits,
    index: &mut HeadIndex,
) -> Result<Option<usize>, Refusal> {
    // RFC 9112, 2.2: "a server that is expecting to receive and parse a request-line SHOULD ignore
    // at least one empty line (CRLF) received prior to the request-line." This parser ignores one.
    let empty_line_len = match input {
        [b'\r', b'\n', ..] => 2,
        [b'\r'] => return Ok(None),
        [b'\r' | b'\n' | b' ', ..] => return Err(Refusal::RequestLine),
        _ => 0,
    };
    let head = input.get(empty_line_len..).unwrap_or_default();
    // Ignore bytes beyond the limit, so that the result does not depend on how the input is split.
    let head = head.get(..limits.head_len_max).unwrap_or(head);
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
        Err(error) => return refused(error, head, limits),
    };
    if is_target_too_long(head, limits) {
        return Err(Refusal::TargetTooLong);
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
    index.target = Span::locate(input, target.as_bytes());
    let parts = split_target(index.method, target.as_bytes())?;
    index.path = Span::locate(input, parts.path);
    index.query = parts.query.map(|query| Span::locate(input, query));
    read_fields(input, request.headers, parts.authority, index)?;
    Ok(Some(empty_line_len.saturating_add(head_len)))
}

/// Handles an incomplete head: returns `None` to ask for more input, or a refusal if the head
/// already exceeds a limit.
fn partial(head: &[u8], limits: &HeadLimits) -> Result<Option<usize>, Refusal> {
    if is_target_too_long(head, limits) {
        Err(Refusal::TargetTooLong)
    } else if head.len() >= limits.head_len_max {
        Err(Refusal::HeadTooLarge)
    } else {
        Ok(None)
    }
}

/// Returns whether the incomplete request line already exceeds the limit of the target.
fn is_target_too_long(head: &[u8], limits: &HeadLimits) -> bool {
    target_start(head).is_some_and(|start| {
        let rest = head.get(start..).unwrap_or_default();
        let end = memchr::memchr3(b' ', b'\r', b'\n', rest).unwrap_or(rest.len());
        end > limits.target_len_max
    })
}

fn target_start(head: &[u8]) -> Option<usize> {
    let end = memchr::memchr2(b' ', b'\n', head)?;
    (head.get(end) == Some(&b' ')).then(|| end.saturating_add(1))
}

fn refused(
    error: httparse::Error,
    head: &[u8],
    limits: &HeadLimits,
) -> Result<Option<usize>, Refusal> {
    if is_target_too_long(head, limits) && !is_refused_before_target_limit(head, limits) {
        return Err(Refusal::TargetTooLong);
    }
    Err(match error {
        httparse::Error::TooManyHeaders => Refusal::TooManyHeaders,
        httparse::Error::Version => match other_version(head) {
            Some(true) => Refusal::HttpVersion,
            Some(false) => Refusal::RequestLine,
            // The version number is still incomplete, so 505 and 400 are both possible.
            None => return partial(head, limits),
        },
        httparse::Error::HeaderName | httparse::Error::HeaderValue => Refusal::HeaderField,
        httparse::Error::NewLine => Refusal::BareLf,
        httparse::Error::Status | httparse::Error::Token => Refusal::RequestLine,
    })
}

/// Returns whether a head has an error before the byte at which its target exceeds the limit. The
/// first error is reported, so that the result is the same if bytes arrive one at a time.
fn is_refused_before_target_limit(head: &[u8], limits: &HeadLimits) -> bool {
    let end = target_start(head)
        .unwrap_or_default()
        .saturating_add(limits.target_len_max)
        .saturating_add(1);
    let start = head.get(..end).unwrap_or(head);
    httparse::Request::new(&mut []).parse(start).is_err()
}

/// Returns whether the third part of the request line starts with `HTTP/` DIGIT `.` DIGIT, which
/// makes it an unsupported version; `None` if too few bytes have arrived to decide that.
fn other_version(head: &[u8]) -> Option<bool> {
    let third = head.splitn(3, |byte| *byte == b' ').nth(2)?;
    let shown = third.iter().zip(b"HTTP/0.0");
    let is_version = shown
        .clone()
        .all(|(byte, expected)| byte == expected || (*expected == b'0' && byte.is_ascii_digit()));
    (!is_version || shown.len() == 8).then_some(is_version)
}

/// Refuses a bare LF. `httparse` accepts it as a line end, as RFC 9112, 2.2 permits. A proxy in
/// front of the server may not accept it, and such differences enable request smuggling.
fn refuse_bare_lf(head: &[u8]) -> Result<(), Refusal> {
    for at in memchr::memchr_iter(b'\n', head) {
        if at.checked_sub(1).and_then(|before| head.get(before)) != Some(&b'\r') {
            return Err(Refusal::BareLf);
        }
    }
    Ok(())
}

/// The parts of a split request target.
#[derive(Debug, Default)]
struct Target<'a> {
    /// Authority of a target in absolute form, never empty; `None` for any other form.
    authority: Option<&'a [u8]>,
    path: &'a [u8],
    query: Option<&'a [u8]>,
}

/// Splits a request target (RFC 9112, section 3.2).
fn split_target(method: Method, target: &[u8]) -> Result<Target<'_>, Refusal> {
    // Clients must not send a fragment (RFC 9110, 7.1), and servers disagree about the end of such
    // a path. The loop has no early exit, so that the compiler can vectorize it.
    let is_sound = target.iter().fold(true, |is_sound, byte| {
        is_sound & byte.is_ascii_graphic() & (*byte != b'#')
    });
    if !is_sound {
        return Err(Refusal::Target);
    }
    let mut parts = Target::default();
    let origin = match target {
        _ if method == Method::Connect => {
            return is_tunnel(target).then_some(parts).ok_or(Refusal::Target);
        }
        [b'/', ..] => target,
        b"*" if method == Method::Options => {
            parts.path = target;
            return Ok(parts);
        }
        _ => {
            let (authority, origin) = split_absolute(target).ok_or(Refusal::Target)?;
            parts.authority = Some(authority);
            origin
        }
    };
    parts.path = origin;
    if let Some(at) = memchr::memchr(b'?', origin) {
        let (path, query) = origin.split_at(at);
        (parts.path, parts.query) = (path, query.get(1..));
    }
    Ok(parts)
}

/// Returns whether a target is a host with a valid port, as CONNECT requires (RFC 9110, 9.3.6).
fn is_tunnel(target: &[u8]) -> bool {
    let digits_len = target
        .iter()
        .rev()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let Some((host, digits)) = target.split_at_checked(target.len().saturating_sub(digits_len))
    else {
        return false;
    };
    let port = std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse::<u16>().ok());
    host.len() > 1 && host.ends_with(b":") && is_host(target) && port.is_some_and(|port| port > 0)
}

/// Splits an absolute-form target into its authority and the rest; an empty rest means the root.
/// Returns `None` if the target does not start with `http://` or `https://` and a valid authority.
fn split_absolute(target: &[u8]) -> Option<(&[u8], &[u8])> {
    let scheme_len = [&b"http://"[..], &b"https://"[..]]
        .into_iter()
        .find(|scheme| {
            target
                .get(..scheme.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        })?
        .len();
    let rest = target.get(scheme_len..)?;
    let authority_len = memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len());
    let (authority, origin) = rest.split_at(authority_len);
    (!authority.is_empty() && is_host(authority)).then_some((authority, origin))
}

/// Indexes all header fields, and interprets those for the connection and the body.
fn read_fields(
    input: &[u8],
    headers: &[httparse::Header<'_>],
    authority: Option<&[u8]>,
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
                // RFC 9112, 3.2.2 gives precedence to the host of the target. A `Host` that differs
                // is refused, because a proxy in front of the server may have routed by it.
                let is_other = authority.is_some_and(|host| !host.eq_ignore_ascii_case(value));
                if is_other {
                    return Err(Refusal::OtherHost);
                }
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
                // A repeated length is refused even if both values are equal: RFC 9112, 6.3 permits
                // the refusal, and clients send only one.
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
    // and the framing of an HTTP/1.0 message with one is faulty.
    if content_length.is_some() || version == Version::Http10 || !codings.chunked_last {
        return Err(Refusal::TransferEncoding);
    }
    if codings.others {
        Err(Refusal::TransferCoding)
    } else {
        Ok(Framing::Chunked)
    }
}

/// Transfer codings found so far; the `Transfer-Encoding` lines are read in order.
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
            // No coding may follow `chunked`, not even a second one.
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

/// The tokens in all `Connection` lines that decide whether the connection persists.
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

    /// Returns whether the connection persists (RFC 9112, section 9.3).
    fn keep_alive(&self, version: Version) -> bool {
        !self.close && (version != Version::Http10 || self.keep_alive)
    }
}

/// Parses a decimal number; returns `None` for a sign, white space, a list, or any other text.
fn decimal(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Returns whether a value is `host [ ":" port ]` (RFC 3986, section 3.2), or empty (RFC 9112,
/// 3.2). The RFC allows a comma in a host, but such a value looks like a list of hosts, so it is
/// refused.
fn is_host(value: &[u8]) -> bool {
    let (host, port) = match value {
        [] => return true,
        [b'[', rest @ ..] => {
            let Some(end) = memchr::memchr(b']', rest) else {
                return false;
            };
            let (address, port) = rest.split_at(end);
            let is_address = !address.is_empty()
                && address
                    .iter()
                    .all(|byte| byte.is_ascii_alphanumeric() || b":.-_~".contains(byte));
            if !is_address {
                return false;
            }
            (&b""[..], port.get(1..).unwrap_or_default())
        }
        _ => {
            let end = memchr::memchr(b':', value).unwrap_or(value.len());
            if end == 0 {
                return false;
            }
            value.split_at(end)
        }
    };
    let is_port = match port {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    is_port && is_reg_name(host)
}

fn is_reg_name(name: &[u8]) -> bool {
    let is_plain = |byte: &u8| IS_REG_NAME_BYTE.get(usize::from(*byte)) == Some(&true);
    let mut parts = name.split(|byte| *byte == b'%');
    let first = parts.next().unwrap_or_default();
    first.iter().all(is_plain)
        && parts.all(|part| match part {
            [high, low, rest @ ..] => {
                high.is_ascii_hexdigit() && low.is_ascii_hexdigit() && rest.iter().all(is_plain)
            }
            _ => false,
        })
}

/// Table that is true for each byte in `unreserved` or `sub-delims` of RFC 3986, except the comma.
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const IS_REG_NAME_BYTE: [bool; 256] = {
    let mut is_allowed = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        is_allowed[byte as usize] = byte.is_ascii_alphanumeric();
        byte += 1;
    }
    let marks = b"-._~!$&'()*+;=";
    let mut at = 0;
    while at < marks.len() {
        is_allowed[marks[at] as usize] = true;
        at += 1;
    }
    is_allowed
};

#[cfg(test)]
mod tests;
