//! Cookies.
//!
//! Name and value may be any text: bytes that a cookie cannot contain are percent-encoded in
//! `Set-Cookie`. In `Cookie`, values are decoded, and names are compared in their encoded form.
//!
//! # Source
//!
//! RFC 6265, sections 4.1 and 5.4; `SameSite` from the draft that replaces it (6265bis).

use std::fmt;
use std::time::Duration;

use samovar_http::Request;
use samovar_http::http::percent;

/// A cookie for [`ResponseExt::cookie`](crate::ResponseExt::cookie).
///
/// By default it is sent with requests to all paths of this host until the browser ends
/// (`Path=/`), scripts cannot read it (`HttpOnly`), and requests from other sites do not have it,
/// except when a user follows a link (`SameSite=Lax`). Over HTTPS, add
/// [`secure`](Self::secure).
///
/// ```
/// use std::time::Duration;
/// use samovar_web::Cookie;
///
/// let session = Cookie::new("session", "4f1c").secure().max_age(Duration::from_secs(3600));
/// assert_eq!(
///     session.to_string(),
///     "session=4f1c; Path=/; Max-Age=3600; HttpOnly; Secure; SameSite=Lax"
/// );
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Cookie {
    name: String,
    value: String,
    path: String,
    domain: Option<String>,
    max_age: Option<Duration>,
    is_http_only: bool,
    is_secure: bool,
    same_site: SameSite,
}

/// The requests from other sites with which a browser sends a cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SameSite {
    /// None, not even when a user follows a link.
    Strict,
    /// Only if a user follows a link from another site, with GET.
    #[default]
    Lax,
    /// All. Browsers require [`Cookie::secure`] for that.
    None,
}

impl Cookie {
    /// Creates a cookie.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
            path: "/".to_owned(),
            domain: None,
            max_age: None,
            is_http_only: true,
            is_secure: false,
            same_site: SameSite::Lax,
        }
    }

    /// Creates a cookie that makes the browser remove the cookie of this name. A cookie with
    /// another [`path`](Self::path) or [`domain`](Self::domain) needs the same ones here.
    pub fn removal(name: impl Into<String>) -> Self {
        Self::new(name, "").max_age(Duration::ZERO)
    }

    /// Sets the path below which the cookie is sent.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    /// Sends the cookie to all hosts of a domain, instead of only to this host.
    #[must_use]
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = Some(domain.into());
        self
    }

    /// Keeps the cookie for this time, in whole seconds, instead of until the browser ends.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = Some(max_age);
        self
    }

    /// Sends the cookie only over HTTPS.
    #[must_use]
    pub fn secure(mut self) -> Self {
        self.is_secure = true;
        self
    }

    /// Lets scripts of the page read the cookie.
    #[must_use]
    pub fn readable_by_scripts(mut self) -> Self {
        self.is_http_only = false;
        self
    }

    /// Sets the requests from other sites with which the cookie is sent.
    #[must_use]
    pub fn same_site(mut self, same_site: SameSite) -> Self {
        self.same_site = same_site;
        self
    }
}

impl fmt::Display for Cookie {
    /// Writes the value of `Set-Cookie`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, value) = (encoded(&self.name, b""), encoded(&self.value, VALUE_CHARS));
        write!(f, "{name}={value}")?;
        write!(f, "; Path={}", attribute(&self.path))?;
        if let Some(domain) = &self.domain {
            write!(f, "; Domain={}", attribute(domain))?;
        }
        if let Some(max_age) = self.max_age {
            write!(f, "; Max-Age={}", max_age.as_secs())?;
        }
        if self.is_http_only {
            f.write_str("; HttpOnly")?;
        }
        if self.is_secure {
            f.write_str("; Secure")?;
        }
        write!(f, "; SameSite={:?}", self.same_site)
    }
}

impl fmt::Debug for Cookie {
    /// Omits the value, which is often a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cookie")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Returns the decoded value of the first cookie with this name.
pub(crate) fn of_request(request: &Request, name: &str) -> Option<String> {
    let fields = request.head().headers();
    // HTTP/2 clients may send each cookie in a field of its own (RFC 9113, 8.2.3).
    let mut pairs = fields
        .filter(|(field, _)| field.eq_ignore_ascii_case(b"cookie"))
        .flat_map(|(_, value)| value.split(|byte| *byte == b';'))
        // Other programs of the site may set cookies in other encodings: pass over those.
        .filter_map(|pair| std::str::from_utf8(pair).ok())
        .filter_map(|pair| pair.split_once('='));
    // Names are compared as sent. If `__%48ost-a` counted as `__Host-a`, a page of a subdomain
    // could set a cookie that browsers let only this host set. The same holds for white space
    // that browsers do not remove.
    let name = encoded(name, b"");
    let (_, value) = pairs.find(|(key, _)| trimmed(key) == name)?;
    let value = trimmed(value);
    let unquoted = value
        .strip_prefix('"')
        .and_then(|value| value.strip_suffix('"'));
    Some(decoded(unquoted.unwrap_or(value)))
}

fn trimmed(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

/// Decodes escapes. A text with a malformed escape is not from [`Cookie`], and stays as it is.
fn decoded(text: &str) -> String {
    let bytes = percent::decode(text.as_bytes());
    bytes
        .and_then(|bytes| String::from_utf8(bytes.into_owned()).ok())
        .unwrap_or_else(|| text.to_owned())
}

/// Characters that a value can contain besides those of a token (RFC 6265, 4.1.1), without the ones
/// that some servers handle in other ways.
const VALUE_CHARS: &[u8] = b"/:@[]()=?";

/// Escapes all bytes that are not in a token (RFC 9110, 5.6.2) nor among `others`, and `%`.
fn encoded(text: &str, others: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let is_plain = byte.is_ascii_alphanumeric()
            || b"!#$&'*+-.^_`|~".contains(&byte)
            || others.contains(&byte);
        match is_plain {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Returns the value of an attribute without characters that would end it.
fn attribute(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control() && *c != ';')
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(fields: &[&str], name: &str, expected: Option<&str>) {
        let mut builder = Request::builder("GET", "/");
        for field in fields {
            builder = builder.header("Cookie", field);
        }
        let value = of_request(&builder.build(), name);
        assert_eq!(value.as_deref(), expected, "{fields:?}");
    }

    #[test]
    fn cookies_of_a_request() {
        check(&[], "a", None);
        check(&["a=1"], "a", Some("1"));
        check(&["b=2; a=1;c = 3 "], "c", Some("3"));
        check(&["b=2", "a=1; a=2"], "a", Some("1"));
        check(&["a=\"1\""], "a", Some("1"));
        check(&["a=x=y"], "a", Some("x=y"));
        check(&["a=%C3%B1%3B"], "a", Some("ñ;"));
        check(&["a=100%; b=%zz"], "a", Some("100%"));
        check(&["A=1; aa=2; =3; 4"], "a", None);
        check(&["__%48ost-a=1; \u{a0}__Host-a=2"], "__Host-a", None);
        check(&["__%48ost-a=1; __Host-a=2"], "__Host-a", Some("2"));
    }

    #[test]
    fn a_cookie_in_another_encoding_hides_no_others() {
        let request = Request::builder("GET", "/").header("Cookie", b"a=\xff; b=2");
        assert_eq!(of_request(&request.build(), "b").as_deref(), Some("2"));
    }

    #[test]
    fn any_text_survives() {
        for text in [
            "",
            "plain",
            "a b;c,d\"e\\f=g%h",
            "ñandú\r\nSet-Cookie: x=y",
            "%41",
        ] {
            let field = Cookie::new(text, text).to_string();
            assert!(!field.contains(['\r', '\n']), "{field}");
            let (pair, _) = field.split_once(';').unwrap();
            check(&[pair], text, Some(text));
        }
    }

    #[test]
    fn attributes() {
        let cookie = Cookie::new("a", "b")
            .path("/x;\r\ny")
            .domain("example.org")
            .readable_by_scripts()
            .same_site(SameSite::None);
        let expected = "a=b; Path=/xy; Domain=example.org; SameSite=None";
        assert_eq!(cookie.to_string(), expected);
        assert_eq!(
            Cookie::removal("a").to_string(),
            "a=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"
        );
        assert_eq!(
            format!("{:?}", Cookie::new("a", "secret")),
            "Cookie { name: \"a\", .. }"
        );
    }
}
