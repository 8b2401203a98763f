//! Parses route patterns when a route is registered. [`Router`](crate::Router) documents their
//! syntax.
//!
//! Literal text is compared with the *decoded* path, and may be percent-encoded itself.

use crate::http::percent;

/// Maximum number of wildcards in a pattern: the length of the array of captures.
pub(crate) const WILDCARD_COUNT_MAX: usize = 16;

/// Matches a path segment. The names of parameters are stored separately.
///
/// The order of the variants is the order of precedence, the most specific first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Matcher {
    /// Literal text.
    Literal(Box<str>),
    /// A segment with a literal part.
    Partial(Partial),
    /// Any non-empty segment.
    One,
    /// One or more segments, of which the first is not empty.
    Rest,
}

/// A segment with literal text and a wildcard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Partial {
    /// A prefix and a suffix, with at least `between_len_min` bytes between them.
    Ends {
        prefix: Box<str>,
        suffix: Box<str>,
        between_len_min: usize,
    },
    /// Literal text anywhere in the segment.
    Contains(Box<str>),
}

impl Partial {
    /// Returns start and end of the wildcard's match within `segment`; `None` if the segment does
    /// not match.
    pub(crate) fn find(&self, segment: &[u8]) -> Option<(usize, usize)> {
        match self {
            Self::Ends {
                prefix,
                suffix,
                between_len_min,
            } => {
                let between = segment
                    .strip_prefix(prefix.as_bytes())?
                    .strip_suffix(suffix.as_bytes())?;
                let end = prefix.len() + between.len();
                (between.len() >= *between_len_min).then_some((prefix.len(), end))
            }
            Self::Contains(text) => {
                memchr::memmem::find(segment, text.as_bytes()).map(|_| (0, segment.len()))
            }
        }
    }

    /// Returns the sort key of the precedence: more literal text first, then the longer prefix.
    /// Keys of different matchers differ, so the order of registration does not matter.
    pub(crate) fn rank(&self) -> impl Ord + '_ {
        let most_first = std::cmp::Reverse;
        match self {
            Self::Ends {
                prefix,
                suffix,
                between_len_min,
            } => (
                most_first(prefix.len() + suffix.len()),
                most_first(*between_len_min),
                most_first(prefix.len()),
                (prefix, Some(suffix)),
            ),
            Self::Contains(text) => (
                most_first(text.len()),
                most_first(0),
                most_first(0),
                (text, None),
            ),
        }
    }
}

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    pub(crate) matchers: Vec<Matcher>,
    /// Names of the wildcards: one entry per matcher that is not literal, in order; `None` for a
    /// wildcard without a name.
    pub(crate) names: Vec<Option<Box<str>>>,
}

/// Error in a pattern, which is a bug of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PatternError {
    #[error("it does not start with `/`")]
    NoSlash,
    #[error("a segment is empty; only the last may be")]
    EmptySegment,
    #[error("a path has no `?` and no `#`; handlers read the query")]
    QueryOrFragment,
    #[error("`%` needs two hexadecimal digits, and the decoded text must be UTF-8")]
    Encoding,
    #[error("a brace has no partner; write `%7B` or `%7D` for the character")]
    Braces,
    #[error("the name of a parameter must consist of letters, digits and `_`")]
    Name,
    #[error("two parameters have the same name")]
    NameTwice,
    #[error("a segment may have one parameter, or stars at its ends, or the form `a*z`")]
    TwoInSegment,
    #[error("`**` and `{{*name}}` must be whole segments")]
    RestInSegment,
    #[error("the segment after `**` or `{{*name}}` must contain literal text")]
    AfterRest,
    #[error("it has more than 16 wildcards")]
    TooMany,
}

impl Pattern {
    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        let segments = text.strip_prefix('/').ok_or(PatternError::NoSlash)?;
        if text.contains(['?', '#']) {
            return Err(PatternError::QueryOrFragment);
        }
        let mut pattern = Self {
            matchers: Vec::new(),
            names: Vec::new(),
        };
        let count = segments.split('/').count();
        for (index, segment) in segments.split('/').enumerate() {
            if segment.is_empty() && index + 1 < count {
                return Err(PatternError::EmptySegment);
            }
            let (matcher, name) = parse_segment(segment)?;
            pattern.push(matcher, name)?;
        }
        Ok(pattern)
    }

    fn push(&mut self, matcher: Matcher, name: Option<&str>) -> Result<(), PatternError> {
        let follows_rest = self.matchers.last() == Some(&Matcher::Rest);
        if follows_rest && matches!(matcher, Matcher::One | Matcher::Rest) {
            return Err(PatternError::AfterRest);
        }
        if !matches!(matcher, Matcher::Literal(_)) {
            if self.names.len() == WILDCARD_COUNT_MAX {
                return Err(PatternError::TooMany);
            }
            if name.is_some() && self.names.iter().any(|known| known.as_deref() == name) {
                return Err(PatternError::NameTwice);
            }
            self.names.push(name.map(Box::from));
        }
        self.matchers.push(matcher);
        Ok(())
    }
}

fn parse_segment(segment: &str) -> Result<(Matcher, Option<&str>), PatternError> {
    let Some((prefix, rest)) = segment.split_once('{') else {
        return Ok((parse_stars(segment)?, None));
    };
    let (inside, suffix) = rest.split_once('}').ok_or(PatternError::Braces)?;
    if suffix.contains('{') || prefix.contains('*') || suffix.contains('*') {
        return Err(PatternError::TwoInSegment);
    }
    if prefix.contains('}') || suffix.contains('}') || inside.contains('{') {
        return Err(PatternError::Braces);
    }
    let (name, is_rest) = match inside.strip_prefix('*') {
        Some(name) => (name, true),
        None => (inside, false),
    };
    let is_word = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
    if name.is_empty() || !is_word(name) {
        return Err(PatternError::Name);
    }
    let matcher = match (is_rest, prefix.is_empty() && suffix.is_empty()) {
        (true, true) => Matcher::Rest,
        (true, false) => return Err(PatternError::RestInSegment),
        (false, true) => Matcher::One,
        (false, false) => ends(prefix, suffix, 1)?,
    };
    Ok((matcher, Some(name)))
}

fn parse_stars(segment: &str) -> Result<Matcher, PatternError> {
    if segment.contains('}') {
        return Err(PatternError::Braces);
    }
    match segment {
        "*" => return Ok(Matcher::One),
        "**" => return Ok(Matcher::Rest),
        _ if segment.contains("**") => return Err(PatternError::RestInSegment),
        _ => {}
    }
    let parts: Vec<&str> = segment.split('*').collect();
    match *parts.as_slice() {
        [text] => Ok(Matcher::Literal(literal(text)?)),
        [prefix, suffix] => ends(prefix, suffix, 0),
        ["", text, ""] => Ok(Matcher::Partial(Partial::Contains(literal(text)?))),
        _ => Err(PatternError::TwoInSegment),
    }
}

fn ends(prefix: &str, suffix: &str, between_len_min: usize) -> Result<Matcher, PatternError> {
    Ok(Matcher::Partial(Partial::Ends {
        prefix: literal(prefix)?,
        suffix: literal(suffix)?,
        between_len_min,
    }))
}

fn literal(text: &str) -> Result<Box<str>, PatternError> {
    let bytes = percent::decode(text.as_bytes()).ok_or(PatternError::Encoding)?;
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(text.into()),
        Err(_) => Err(PatternError::Encoding),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(pattern: &str, expected: PatternError) {
        assert_eq!(Pattern::parse(pattern), Err(expected), "{pattern:?}");
    }

    #[test]
    fn malformed_patterns_are_refused() {
        refused("", PatternError::NoSlash);
        refused("users", PatternError::NoSlash);
        refused("//", PatternError::EmptySegment);
        refused("/a//b", PatternError::EmptySegment);
        refused("/a?b=c", PatternError::QueryOrFragment);
        refused("/a#b", PatternError::QueryOrFragment);
        refused("/%4", PatternError::Encoding);
        refused("/%ff", PatternError::Encoding);
        refused("/{a", PatternError::Braces);
        refused("/a}", PatternError::Braces);
        refused("/{{a}}", PatternError::Braces);
        refused("/a}{b}", PatternError::Braces);
        refused("/{}", PatternError::Name);
        refused("/{*}", PatternError::Name);
        refused("/{a-b}", PatternError::Name);
        refused("/{a}/{a}", PatternError::NameTwice);
        refused("/{a}{b}", PatternError::TwoInSegment);
        refused("/{a}*", PatternError::TwoInSegment);
        refused("/a*b*c", PatternError::TwoInSegment);
        refused("/a**", PatternError::RestInSegment);
        refused("/***", PatternError::RestInSegment);
        refused("/x{*a}", PatternError::RestInSegment);
        refused("/**/*", PatternError::AfterRest);
        refused("/**/**", PatternError::AfterRest);
        refused("/{*a}/{b}", PatternError::AfterRest);
    }

    #[test]
    fn at_most_sixteen_wildcards() {
        assert!(Pattern::parse(&"/*".repeat(16)).is_ok());
        refused(&"/*".repeat(17), PatternError::TooMany);
    }

    #[test]
    fn wildcards_may_follow_text_that_follows_the_rest() {
        for pattern in ["/**/a", "/**/a*", "/**/{x}.txt", "/{*a}/b/{c}/**", "/a/"] {
            assert!(Pattern::parse(pattern).is_ok(), "{pattern}");
        }
    }

    #[test]
    fn literal_text_may_be_encoded() {
        let text = "/%2A%7Bñ%2F".to_owned();
        let expected = Matcher::Literal("*{ñ/".into());
        assert_eq!(
            Pattern::parse(&text).map(|p| p.matchers),
            Ok(vec![expected])
        );
    }
}
