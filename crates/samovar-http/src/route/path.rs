//! Decodes the path of a request for matching.

use std::borrow::Cow;

use crate::http::percent;

/// Separator of the segments of a decoded path. `/` is unsuitable, because an encoded slash is part
/// of its segment; this byte cannot occur in UTF-8.
const SEPARATOR: u8 = 0xff;

/// A path whose segments are decoded.
#[derive(Debug, Clone)]
pub(crate) struct Path<'a> {
    /// The decoded segments, each after a separator. Invariant: starts with the separator, and is
    /// UTF-8 between separators.
    bytes: Cow<'a, [u8]>,
    separator: u8,
}

/// Reason why a request target has no usable path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathError {
    /// The target is not a path: `*`, or an authority.
    NoPath,
    Encoding,
}

impl<'a> Path<'a> {
    /// Decodes the path of a request target. Borrows if there is nothing to decode.
    pub(crate) fn new(raw: &'a [u8]) -> Result<Self, PathError> {
        // RFC 9110, 4.2.3: an empty path of an absolute URI is the same as `/`.
        let raw = if raw.is_empty() { b"/" } else { raw };
        if raw.first() != Some(&b'/') {
            return Err(PathError::NoPath);
        }
        if memchr::memchr(b'%', raw).is_none() && raw.is_ascii() {
            return Ok(Self {
                bytes: Cow::Borrowed(raw),
                separator: b'/',
            });
        }
        let mut bytes = Vec::with_capacity(raw.len());
        for segment in raw.split(|byte| *byte == b'/').skip(1) {
            let segment = percent::decode(segment).ok_or(PathError::Encoding)?;
            if std::str::from_utf8(&segment).is_err() {
                return Err(PathError::Encoding);
            }
            bytes.push(SEPARATOR);
            bytes.extend_from_slice(&segment);
        }
        Ok(Self {
            bytes: Cow::Owned(bytes),
            separator: SEPARATOR,
        })
    }

    /// Returns the end of the path: the index after the last byte.
    pub(crate) fn end(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the segment that starts at `start`, and the start of the next segment, if any.
    pub(crate) fn segment(&self, start: usize) -> (&[u8], Option<usize>) {
        let rest = self.bytes.get(start..).unwrap_or_default();
        match memchr::memchr(self.separator, rest) {
            Some(len) => (rest.get(..len).unwrap_or_default(), Some(start + len + 1)),
            None => (rest, None),
        }
    }

    /// Returns the decoded path, which spans index; `None` if nothing was decoded, so that spans
    /// index the raw path.
    pub(crate) fn into_decoded(self) -> Option<Box<str>> {
        let Cow::Owned(mut bytes) = self.bytes else {
            return None;
        };
        for byte in bytes.iter_mut().filter(|byte| **byte == SEPARATOR) {
            *byte = b'/';
        }
        String::from_utf8(bytes).ok().map(String::into_boxed_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(raw: &str) -> Result<Vec<String>, PathError> {
        let path = Path::new(raw.as_bytes())?;
        let (mut at, mut segments) = (Some(1), Vec::new());
        while let Some(start) = at {
            let (segment, next) = path.segment(start);
            segments.push(String::from_utf8(segment.to_vec()).unwrap());
            at = next;
        }
        Ok(segments)
    }

    #[test]
    fn segments_are_decoded_one_by_one() {
        assert_eq!(segments("").unwrap(), [""]);
        assert_eq!(segments("/").unwrap(), [""]);
        assert_eq!(segments("/a/b").unwrap(), ["a", "b"]);
        assert_eq!(segments("//a/").unwrap(), ["", "a", ""]);
        assert_eq!(segments("/a%2Fb/%C3%B1").unwrap(), ["a/b", "ñ"]);
        assert_eq!(segments("/%252F").unwrap(), ["%2F"]);
    }

    #[test]
    fn malformed_paths_are_refused() {
        assert_eq!(segments("*"), Err(PathError::NoPath));
        assert_eq!(segments("/%2"), Err(PathError::Encoding));
        assert_eq!(segments("/%zz"), Err(PathError::Encoding));
        assert_eq!(segments("/%ff"), Err(PathError::Encoding));
        // A character split by a slash is invalid UTF-8.
        assert_eq!(segments("/%C3/%B1"), Err(PathError::Encoding));
    }

    #[test]
    fn decoded_text_has_slashes() {
        let decoded = Path::new(b"/a%2Fb/c").unwrap().into_decoded();
        assert_eq!(decoded.as_deref(), Some("/a/b/c"));
        assert_eq!(Path::new(b"/a").unwrap().into_decoded(), None);
    }
}
