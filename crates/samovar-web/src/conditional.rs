//! Conditional requests.
//!
//! # Source
//!
//! RFC 9110, section 13: the comparison of entity tags (8.8.3.2), the preconditions (13.1) and
//! their order (13.2.2).

use std::time::{Duration, SystemTime};

use samovar_http::http::{Method, Status};
use samovar_http::{Body, Error, Head, IntoResponse, Request, Response};

/// The version of a resource: an entity tag, a time of modification, or both.
///
/// ```
/// use samovar_http::{Error, Request, Response};
/// use samovar_web::Validators;
///
/// fn show(request: &mut Request) -> Result<Response, Error> {
///     let (version, text) = (7, "the page\n");
///     Validators::new().etag(format!("\"{version}\"")).respond(request, || text)
/// }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Validators {
    etag: Option<String>,
    /// A whole number of seconds since 1970.
    modified: Option<SystemTime>,
}

/// Result of [`Validators::check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    /// The request is processed.
    Holds,
    /// Respond 304: the client has this version. The response needs the validators.
    NotModified,
    /// Respond 412: the client has stated a condition that does not hold.
    Failed,
}

impl Validators {
    /// Creates an empty set, with which every request is processed, except one with `If-Match`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the entity tag with its quotes: `"v7"`, or `W/"v7"` for a weak one, which stands for
    /// representations that differ in bytes but not in meaning.
    #[must_use]
    pub fn etag(mut self, etag: impl Into<String>) -> Self {
        self.etag = Some(etag.into());
        self
    }

    /// Sets the time of modification. HTTP cuts it to seconds.
    #[must_use]
    pub fn modified(mut self, modified: SystemTime) -> Self {
        let since = modified.duration_since(SystemTime::UNIX_EPOCH);
        let seconds = Duration::from_secs(since.unwrap_or_default().as_secs());
        self.modified = Some(SystemTime::UNIX_EPOCH + seconds);
        self
    }

    /// Evaluates `If-Match`, `If-Unmodified-Since`, `If-None-Match` and `If-Modified-Since`.
    ///
    /// For a method other than GET and HEAD, `If-None-Match: *` fails if the resource exists, and
    /// no request gets 304.
    pub fn check(&self, head: Head<'_>) -> Precondition {
        let is_read = matches!(head.method(), Method::Get | Method::Head);
        if head.header("if-match").is_some() {
            if !self.matches(head, "if-match", is_strong_match) {
                return Precondition::Failed;
            }
        } else if let Some(since) = date(head, "if-unmodified-since")
            && self.modified.is_some_and(|modified| modified > since)
        {
            return Precondition::Failed;
        }
        if head.header("if-none-match").is_some() {
            return match self.matches(head, "if-none-match", is_weak_match) {
                false => Precondition::Holds,
                true if is_read => Precondition::NotModified,
                true => Precondition::Failed,
            };
        }
        // RFC 9110, 13.1.3: the field is ignored for methods other than GET and HEAD.
        if is_read
            && let Some(since) = date(head, "if-modified-since")
            && self.modified.is_some_and(|modified| modified <= since)
        {
            return Precondition::NotModified;
        }
        Precondition::Holds
    }

    /// Responds to a request for this version: with `whole` if the preconditions hold, or else with
    /// 304. Adds the validators.
    ///
    /// # Errors
    ///
    /// 412 if the client has stated a condition that does not hold; the errors of `whole`.
    pub fn respond<R: IntoResponse>(
        &self,
        request: &Request,
        whole: impl FnOnce() -> R,
    ) -> Result<Response, Error> {
        let response = match self.check(request.head()) {
            Precondition::Holds => whole().into_response()?,
            Precondition::NotModified => Response::new(Status::NOT_MODIFIED, Body::Empty),
            Precondition::Failed => return Err(Status::PRECONDITION_FAILED.into()),
        };
        Ok(self.add_to(response))
    }

    /// Returns whether a `Range` applies to this version: the request has no `If-Range`, or it has
    /// one that names this version. A weak entity tag names no version, and a time names one only
    /// exactly.
    pub fn allows_range(&self, head: Head<'_>) -> bool {
        let Some(wanted) = head.header("if-range") else {
            return true;
        };
        match &self.etag {
            Some(etag) if wanted.ends_with(b"\"") => is_strong_match(etag.as_bytes(), wanted),
            _ => {
                let date = date(head, "if-range");
                date.is_some() && date == self.modified
            }
        }
    }

    /// Adds `ETag` and `Last-Modified` to a response.
    ///
    /// # Panics
    ///
    /// If the entity tag contains a control character.
    #[must_use]
    #[track_caller]
    pub fn add_to(&self, mut response: Response) -> Response {
        if let Some(etag) = &self.etag {
            response = response.header("ETag", etag);
        }
        if let Some(modified) = self.modified {
            response = response.header("Last-Modified", httpdate::fmt_http_date(modified));
        }
        response
    }

    /// Returns whether a list of entity tags contains the own one. `*` stands for any version of a
    /// resource that exists.
    fn matches(&self, head: Head<'_>, name: &str, is_match: fn(&[u8], &[u8]) -> bool) -> bool {
        let fields = head
            .headers()
            .filter(|(field, _)| field.eq_ignore_ascii_case(name.as_bytes()));
        fields.into_iter().any(|(_, value)| {
            value.trim_ascii() == b"*"
                || self.etag.as_ref().is_some_and(|etag| {
                    entity_tags(value).any(|wanted| is_match(etag.as_bytes(), wanted))
                })
        })
    }
}

/// Iterates over a list of entity tags. A comma may be part of a tag. Ends at a malformed one.
fn entity_tags(mut list: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        while let [b' ' | b'\t' | b',', rest @ ..] = list {
            list = rest;
        }
        let prefix_len = if list.starts_with(b"W/") { 2 } else { 0 };
        let quoted = list.get(prefix_len..)?.strip_prefix(b"\"")?;
        let end = quoted.iter().position(|byte| *byte == b'"')?;
        let (tag, rest) = list.split_at_checked(prefix_len + end + 2)?;
        list = rest;
        Some(tag)
    })
}

fn is_weak_match(one: &[u8], other: &[u8]) -> bool {
    let opaque = |tag| {
        <[u8]>::strip_prefix(tag, b"W/".as_slice())
            .unwrap_or(tag)
            .to_vec()
    };
    opaque(one) == opaque(other)
}

fn is_strong_match(one: &[u8], other: &[u8]) -> bool {
    one == other && !one.starts_with(b"W/")
}

/// Returns the time in a header field; `None` if it is absent or malformed, and so ignored.
fn date(head: Head<'_>, name: &str) -> Option<SystemTime> {
    httpdate::parse_http_date(head.header_text(name)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "Thu, 01 Jan 1970 00:01:39 GMT";
    const AT: &str = "Thu, 01 Jan 1970 00:01:40 GMT";

    fn version(etag: &str) -> Validators {
        let modified = SystemTime::UNIX_EPOCH + Duration::from_millis(100_900);
        Validators::new().etag(etag).modified(modified)
    }

    #[track_caller]
    fn check(fields: &[(&str, &str)], expected: Precondition) {
        check_with("GET", &version("\"a\""), fields, expected);
    }

    #[track_caller]
    fn check_with(
        method: &str,
        version: &Validators,
        fields: &[(&str, &str)],
        expected: Precondition,
    ) {
        let mut builder = Request::builder(method, "/");
        for (name, value) in fields {
            builder = builder.header(name, value);
        }
        let request = builder.build();
        assert_eq!(version.check(request.head()), expected, "{fields:?}");
    }

    #[test]
    fn preconditions_in_their_order() {
        use Precondition::{Failed, Holds, NotModified};
        check(&[], Holds);
        check(&[("If-None-Match", "\"a\"")], NotModified);
        check(&[("If-None-Match", "W/\"a\"")], NotModified);
        check(&[("If-None-Match", "\"b\", \"a\"")], NotModified);
        check(
            &[("If-None-Match", "\"b\""), ("If-None-Match", "\"a\"")],
            NotModified,
        );
        check(&[("If-None-Match", "\"x,\",\"a\"")], NotModified);
        check(&[("If-None-Match", "*")], NotModified);
        check(&[("If-None-Match", "\"b\"")], Holds);
        check(&[("If-None-Match", "a")], Holds);
        check(
            &[("If-None-Match", "\"b\""), ("If-Modified-Since", AT)],
            Holds,
        );
        check(&[("If-Modified-Since", AT)], NotModified);
        check(&[("If-Modified-Since", BEFORE)], Holds);
        check(&[("If-Modified-Since", "yesterday")], Holds);
        check(&[("If-Match", "\"a\"")], Holds);
        check(&[("If-Match", "*")], Holds);
        check(&[("If-Match", "\"b\"")], Failed);
        check(&[("If-Match", "W/\"a\"")], Failed);
        check(
            &[("If-Match", "\"a\""), ("If-Unmodified-Since", BEFORE)],
            Holds,
        );
        check(&[("If-Unmodified-Since", AT)], Holds);
        check(&[("If-Unmodified-Since", BEFORE)], Failed);
        check(
            &[("If-Match", "\"a\""), ("If-None-Match", "\"a\"")],
            NotModified,
        );
        let version = version("W/\"a\"");
        check_with("GET", &version, &[("If-Match", "W/\"a\"")], Failed);
        check_with("HEAD", &version, &[("If-None-Match", "\"a\"")], NotModified);
        check_with("PUT", &version, &[("If-None-Match", "*")], Failed);
        check_with("PUT", &version, &[("If-Modified-Since", AT)], Holds);
        let none = Validators::new();
        check_with("GET", &none, &[("If-Match", "\"a\"")], Failed);
        check_with("GET", &none, &[("If-Modified-Since", AT)], Holds);
    }

    #[test]
    fn a_response_has_the_validators() {
        let respond = |name: &str, value: &str| {
            let request = Request::builder("GET", "/").header(name, value).build();
            version("\"a\"").respond(&request, || "text")
        };
        let whole = respond("If-None-Match", "\"b\"").unwrap();
        assert_eq!(whole.status(), Status::OK);
        let same = respond("If-None-Match", "\"a\"").unwrap();
        assert_eq!(same.status(), Status::NOT_MODIFIED);
        for response in [&whole, &same] {
            assert_eq!(response.header_text("etag"), Some("\"a\""));
            assert_eq!(response.header_text("last-modified"), Some(AT));
        }
        let failed = respond("If-Match", "\"b\"").unwrap_err();
        assert_eq!(failed.status(), Status::PRECONDITION_FAILED);
    }

    #[test]
    fn a_range_needs_exactly_this_version() {
        let allows = |version: &Validators, value: &str| {
            let request = Request::builder("GET", "/")
                .header("If-Range", value)
                .build();
            version.allows_range(request.head())
        };
        let strong = version("\"a\"");
        assert!(allows(&strong, "\"a\""));
        assert!(allows(&strong, AT));
        for other in ["\"b\"", "W/\"a\"", BEFORE, "a", ""] {
            assert!(!allows(&strong, other), "{other}");
        }
        assert!(!allows(&version("W/\"a\""), "W/\"a\""));
        assert!(!allows(&Validators::new(), AT));
        assert!(strong.allows_range(Request::builder("GET", "/").build().head()));
    }
}
