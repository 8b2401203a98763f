//! Parser of media types, such as `text/html; charset=utf-8`.

use std::borrow::Cow;

/// A media type: the value of `Content-Type`.
///
/// # Source
///
/// RFC 9110, section 8.3.1.
///
/// # Examples
///
/// ```
/// use samovar_http_proto::http::MediaType;
/// let media_type = MediaType::parse(b"Text/HTML; charset=\"utf-8\"").unwrap();
/// assert!(media_type.is("text/html"));
/// assert_eq!(media_type.parameter("charset").as_deref(), Some("utf-8"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaType<'a> {
    essence: &'a str,
    parameters: &'a str,
}

impl<'a> MediaType<'a> {
    /// Parses a value; returns `None` if it is not a media type.
    pub fn parse(value: &'a [u8]) -> Option<Self> {
        let value = std::str::from_utf8(value).ok()?;
        let (essence, parameters) = value.split_once(';').unwrap_or((value, ""));
        let essence = essence.trim();
        let (kind, subtype) = essence.split_once('/')?;
        let is_whole = is_token(kind)
            && is_token(subtype)
            && Parameters::new(parameters).all(|parameter| parameter.is_some());
        is_whole.then_some(Self {
            essence,
            parameters,
        })
    }

    /// Returns type and subtype, as sent.
    pub fn essence(&self) -> &'a str {
        self.essence
    }

    /// Returns whether type and subtype are these, compared case-insensitively.
    pub fn is(&self, essence: &str) -> bool {
        self.essence.eq_ignore_ascii_case(essence)
    }

    /// Returns the value of the first parameter with this name, compared case-insensitively.
    pub fn parameter(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut parameters = Parameters::new(self.parameters).flatten();
        parameters
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

/// Iterates over parameters. Yields `None` for a malformed one, and then ends.
#[derive(Debug)]
pub struct Parameters<'a> {
    rest: &'a str,
}

impl<'a> Parameters<'a> {
    /// Creates an iterator over `text`, which starts after the first semicolon.
    pub fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    fn parameter(&mut self) -> Option<(&'a str, Cow<'a, str>)> {
        let (name, rest) = self.rest.split_once('=')?;
        if !is_token(name) {
            return None;
        }
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let (value, rest) = rest.split_at(rest.find(';').unwrap_or(rest.len()));
                let value = value.trim_end_matches([' ', '\t']);
                (is_token(value).then_some(Cow::Borrowed(value))?, rest)
            }
        };
        let rest = rest.trim_start_matches([' ', '\t']);
        self.rest = match rest.strip_prefix(';') {
            Some(rest) => rest,
            None if rest.is_empty() => rest,
            None => return None,
        };
        Some((name, value))
    }
}

impl<'a> Iterator for Parameters<'a> {
    type Item = Option<(&'a str, Cow<'a, str>)>;

    fn next(&mut self) -> Option<Self::Item> {
        // RFC 9110, 5.6.6: parameters may be empty.
        self.rest = self.rest.trim_start_matches([' ', '\t', ';']);
        if self.rest.is_empty() {
            return None;
        }
        let parameter = self.parameter();
        if parameter.is_none() {
            self.rest = "";
        }
        Some(parameter)
    }
}

/// Returns the text up to the closing quote, and the text after it.
///
/// A backslash escapes only a quote or another backslash: some clients send file paths with literal
/// backslashes.
fn unquote(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let mut plain_from = 0;
    let mut unescaped = String::new();
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => {
                let plain = text.get(plain_from..at)?;
                let value = if plain_from == 0 {
                    Cow::Borrowed(plain)
                } else {
                    Cow::Owned(unescaped + plain)
                };
                return Some((value, text.get(at + 1..)?));
            }
            b'\\' if matches!(text.as_bytes().get(at + 1), Some(b'"' | b'\\')) => {
                unescaped.push_str(text.get(plain_from..at)?);
                plain_from = at + 1;
                bytes.next();
            }
            _ => {}
        }
    }
    None
}

/// Returns whether a text is a token (RFC 9110, 5.6.2).
pub fn is_token(text: &str) -> bool {
    let is_char = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_char)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: &str, expected: Option<(&str, &[(&str, &str)])>) {
        let parsed = MediaType::parse(value.as_bytes()).map(|media_type| {
            let parameters: Vec<_> = Parameters::new(media_type.parameters)
                .flatten()
                .map(|(name, value)| (name.to_owned(), value.into_owned()))
                .collect();
            (media_type.essence.to_owned(), parameters)
        });
        let expected = expected.map(|(essence, parameters)| {
            let parameters = parameters.iter();
            let owned = parameters.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            (essence.to_owned(), owned.collect())
        });
        assert_eq!(parsed, expected, "{value:?}");
    }

    #[test]
    fn media_types() {
        check("text/html", Some(("text/html", &[])));
        check("text/html;", Some(("text/html", &[])));
        check(
            " a/b ; c=d;;e=\"f\"",
            Some(("a/b", &[("c", "d"), ("e", "f")])),
        );
        check(r#"a/b;c="d;e\"f\\""#, Some(("a/b", &[("c", "d;e\"f\\")])));
        check(r#"a/b;c="C:\dir\x""#, Some(("a/b", &[("c", r"C:\dir\x")])));
        check(r#"a/b;c="""#, Some(("a/b", &[("c", "")])));
        check(r#"a/b;c="é\"ñ""#, Some(("a/b", &[("c", "é\"ñ")])));
        check(r#"a/b;c="\\""#, Some(("a/b", &[("c", r"\")])));
    }

    #[test]
    fn what_is_no_media_type() {
        for value in [
            "",
            "text",
            "text/",
            "/html",
            "a b/c",
            "a/b; c",
            "a/b; c=",
            "a/b; c =d",
            "a/b; c= d",
            "a/b; c=\"d",
            "a/b; c=\"d\"e",
            "a/b, c=d",
            "a/b; =d",
            "a/b; c=d e",
        ] {
            check(value, None);
        }
    }
}
