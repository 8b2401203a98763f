//! Conversion of request and response heads between the `http` crate and HTTP/1.1 text.

use ::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use ::http::{Method, Request, Response, StatusCode};

use crate::h1::head::{self as proto_head, Framing, HeadIndex, HeadLimits};
use crate::h1::{Refusal, encode};
use crate::http::Version;

/// Reason for rejecting a request head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadError {
    /// Malformed: a stream error (RFC 9113, 8.1.1).
    Malformed,
    /// Well-formed, but refused with an error status.
    Refused(Refusal),
}

impl From<Refusal> for HeadError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Writes a request head as HTTP/1.1 text, and parses this text into `index`.
///
/// `h2` removes a fragment from `:path`, whereas the HTTP/1.1 parser refuses it. Handlers see no
/// fragment in either case.
///
/// `h2` has checked that names are in lower case, values contain no CR, LF or NUL, pseudo-headers
/// are known, unique and before the fields, and there are no connection-specific fields (RFC 9113,
/// 8.2 and 8.3).
pub(super) fn request<B>(
    request: &Request<B>,
    is_end: bool,
    limits: &HeadLimits,
    text: &mut Vec<u8>,
    index: &mut HeadIndex,
) -> Result<(), HeadError> {
    if request.method() == Method::CONNECT {
        return Err(Refusal::Connect.into());
    }
    // RFC 9113, 8.3.1: "All HTTP/2 requests MUST include exactly one valid value for the
    // ":method", ":scheme", and ":path" pseudo-header fields, unless they are CONNECT requests".
    let target = request.uri().path_and_query().ok_or(HeadError::Malformed)?;
    text.clear();
    text.extend_from_slice(request.method().as_str().as_bytes());
    text.push(b' ');
    text.extend_from_slice(target.as_str().as_bytes());
    text.extend_from_slice(b" HTTP/1.1\r\n");
    let authority = request
        .uri()
        .authority()
        .map(|name| name.as_str().as_bytes());
    if let Some(authority) = authority {
        encode::field(text, "host", authority);
    }
    fields(request.headers(), authority, text)?;
    text.extend_from_slice(b"\r\n");
    if proto_head::parse(text, limits, index)?.is_none() {
        // The head is complete, so an incomplete result means that it exceeds the limit.
        return Err(Refusal::HeadTooLarge.into());
    }
    index.version = Version::Http2;
    index.keep_alive = true;
    index.framing = match index.framing {
        _ if is_end => Framing::None,
        Framing::None => Framing::Chunked,
        known => known,
    };
    index.expect_continue = !is_end && request.headers().contains_key(header::EXPECT);
    Ok(())
}

fn fields(
    headers: &HeaderMap,
    authority: Option<&[u8]>,
    text: &mut Vec<u8>,
) -> Result<(), HeadError> {
    for name in headers.keys() {
        let mut values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
        if name == header::COOKIE {
            // RFC 9113, 8.2.3: split cookies "MUST be concatenated into a single
            // octet string using the two-octet delimiter of 0x3b, 0x20" before they go further.
            let crumbs: Vec<_> = values.collect();
            encode::field(text, "cookie", &crumbs.join(&b"; "[..]));
        } else if let (true, Some(authority)) = (name == header::HOST, authority) {
            // RFC 9113, 8.3.1: a Host that differs from :authority makes the request malformed.
            if !values.all(|value| value.eq_ignore_ascii_case(authority)) {
                return Err(Refusal::OtherHost.into());
            }
        } else {
            for value in values {
                // RFC 9113, 8.2.1: "A field value MUST NOT start or end with an ASCII whitespace
                // character".
                if matches!(value, [b' ' | b'\t', ..] | [.., b' ' | b'\t']) {
                    return Err(HeadError::Malformed);
                }
                encode::field(text, name.as_str(), value);
            }
        }
    }
    Ok(())
}

/// Parses a response head rendered for HTTP/1.1; the status line and the empty line are optional.
/// Connection-specific fields are omitted (RFC 9113, 8.2.2).
pub(super) fn response(status: u16, text: &[u8]) -> Response<()> {
    let mut response = Response::new(());
    // `Status` has the range of `StatusCode`.
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = read_fields(text);
    response
}

/// Parses field lines; other lines are ignored.
pub(super) fn read_fields(text: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    let mut rest = text;
    while let Some(end) = memchr::memchr(b'\n', rest) {
        let (line, behind) = rest.split_at(end);
        rest = behind.get(1..).unwrap_or_default();
        let Some(colon) = memchr::memchr(b':', line) else {
            continue;
        };
        let (name, value) = line.split_at(colon);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        // A status line may contain a colon. It fails here, because a field name cannot contain
        // spaces.
        let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        else {
            continue;
        };
        if !is_of_connection(&name) {
            headers.append(name, value);
        }
    }
    headers
}

fn is_of_connection(name: &HeaderName) -> bool {
    [
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ]
    .contains(name)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(request: &Request<()>, is_end: bool) -> Result<(String, HeadIndex), HeadError> {
        let (mut text, mut index) = (Vec::new(), HeadIndex::default());
        super::request(
            request,
            is_end,
            &HeadLimits::default(),
            &mut text,
            &mut index,
        )?;
        Ok((String::from_utf8(text).unwrap(), index))
    }

    fn get(path: &str) -> ::http::request::Builder {
        Request::builder().uri(format!("https://a.example{path}"))
    }

    #[test]
    fn a_request_becomes_an_http_1_head() {
        let request = get("/p?q=1")
            .header("x-a", "b")
            .header("x-a", "c")
            .body(())
            .unwrap();
        let (text, index) = read(&request, true).unwrap();
        assert_eq!(
            text,
            "GET /p?q=1 HTTP/1.1\r\nhost: a.example\r\nx-a: b\r\nx-a: c\r\n\r\n"
        );
        assert_eq!(index.path.of(text.as_bytes()), b"/p");
        assert_eq!(
            index.query.map(|query| query.of(text.as_bytes())),
            Some(&b"q=1"[..])
        );
        assert_eq!(index.version, Version::Http2);
        assert_eq!(index.framing, Framing::None);
    }

    #[test]
    fn cookies_become_one_field() {
        let request = get("/")
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .body(());
        let (text, _) = read(&request.unwrap(), true).unwrap();
        assert!(text.contains("\r\ncookie: a=1; b=2\r\n"), "{text}");
    }

    #[test]
    fn host_must_match_authority() {
        let same = get("/").header("host", "A.example").body(()).unwrap();
        assert_eq!(read(&same, true).unwrap().0.matches("host").count(), 1);
        let other = get("/").header("host", "b.example").body(()).unwrap();
        let refused = Err(HeadError::Refused(Refusal::OtherHost));
        assert_eq!(read(&other, true).map(drop), refused);
        let refused = Err(HeadError::Refused(Refusal::Host));
        let none = Request::builder().uri("/").body(()).unwrap();
        assert_eq!(read(&none, true).map(drop), refused);
        let field = Request::builder()
            .uri("/")
            .header("host", "a")
            .body(())
            .unwrap();
        assert!(read(&field, true).is_ok());
    }

    #[test]
    fn invalid_heads_are_refused() {
        let connect = Request::builder()
            .method("CONNECT")
            .uri("a.example:1")
            .body(())
            .unwrap();
        let refused = Err(HeadError::Refused(Refusal::Connect));
        assert_eq!(read(&connect, true).map(drop), refused);
        let spaced = get("/").header("x", " a").body(()).unwrap();
        assert_eq!(read(&spaced, true).map(drop), Err(HeadError::Malformed));
        let user = Request::builder()
            .uri("https://u@a.example/")
            .body(())
            .unwrap();
        assert_eq!(
            read(&user, true).map(drop),
            Err(HeadError::Refused(Refusal::Host))
        );
        let long = get(&format!("/{}", "a".repeat(9000))).body(()).unwrap();
        let refused = Err(HeadError::Refused(Refusal::TargetTooLong));
        assert_eq!(read(&long, true).map(drop), refused);
    }

    #[test]
    fn the_end_of_the_stream_ends_the_body() {
        let request = |len: &str| {
            let request = get("/").method("POST").header("content-length", len);
            request.header("expect", "100-continue").body(()).unwrap()
        };
        let (_, index) = read(&request("5"), false).unwrap();
        assert_eq!(index.framing, Framing::Length(5));
        assert!(index.expect_continue);
        assert_eq!(
            read(&request("0"), false).unwrap().1.framing,
            Framing::Chunked
        );
        let (_, index) = read(&request("0"), true).unwrap();
        assert_eq!(index.framing, Framing::None);
        assert!(!index.expect_continue);
    }

    #[test]
    fn a_response_loses_connection_specific_fields() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX:  a b \r\n\
                     Connection: close\r\nKeep-Alive: 5\r\nUpgrade: x\r\nX: c\r\n\r\n";
        let response = super::response(200, text);
        let fields: Vec<_> = response.headers().iter().collect();
        assert_eq!(fields.len(), 3);
        assert_eq!(response.headers()["content-type"], "text/plain");
        let values: Vec<_> = response.headers().get_all("x").iter().collect();
        assert_eq!(values, ["a b", "c"]);
    }
}
