//! The percent-encoding of URL paths. Every route of a cache decodes its path here: the URLs of the
//! cache protocol, those below `upload/`, the prefixes of caches, and pages.
//!
//! # Rules
//!
//! Any byte may be encoded, and is decoded once. Nix encodes `!` and `+` since 2.34. These paths
//! are the URL of nothing:
//!
//! * A `%` without two hexadecimal digits: two servers could decode it differently.
//! * An encoded slash. It would decode to a new segment, which proxies in front of this server did
//!   not see.
//! * An encoded NUL, which no name has.
//!
//! `%252B` is decoded to `%2B`, not to `+`, and no name of a store path has a `%`.
//!
//! The name of a pin is one segment of any text, and only there an encoded slash is allowed.
//!
//! # Source
//!
//! RFC 3986, sections 2.1, 2.3 and 2.4.

use std::borrow::Cow;

use samovar_http::http::percent;

/// Decodes a path; `None` if it is the URL of nothing.
pub(crate) fn decode(path: &[u8]) -> Option<Cow<'_, [u8]>> {
    let decoded = percent::decode(path)?;
    if let Cow::Owned(decoded) = &decoded
        && (decoded.contains(&0) || slash_count(decoded) != slash_count(path))
    {
        return None;
    }
    Some(decoded)
}

/// Returns the rest of a path below a prefix, with its leading slash; `None` if the path is not
/// below it. Compares whole segments. `prefix`: decoded, and empty for the root. The rest is as
/// encoded as the path.
pub(crate) fn below<'path>(path: &'path [u8], prefix: &[u8]) -> Option<&'path [u8]> {
    if prefix.is_empty() {
        return matches!(path, [] | [b'/', ..]).then_some(path);
    }
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    let end = slashes.map(|(index, _)| index).nth(slash_count(prefix));
    let (start, rest) = path.split_at(end.unwrap_or(path.len()));
    (*decode(start)? == *prefix).then_some(rest)
}

/// Returns the prefix of a cache for [`below`]. A prefix that cannot be decoded stays as it is: no
/// path is below such a prefix.
pub(crate) fn prefix(path_prefix: &str) -> Box<[u8]> {
    let path = path_prefix.as_bytes();
    decode(path).unwrap_or(Cow::Borrowed(path)).into()
}

/// Encodes bytes as one path segment or query value: all but the unreserved ones.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut encoded = String::with_capacity(bytes.len());
    encode_into(&mut encoded, bytes);
    encoded
}

/// Appends bytes to a URL, encoded as by [`encode`].
pub(crate) fn encode_into(url: &mut String, bytes: &[u8]) {
    append(url, bytes, b"-._~");
}

/// Returns the one form in which the prefix of a cache is shown and compared; `None` if the path is
/// the URL of nothing. Characters that RFC 3986 allows in a path are not encoded.
#[must_use]
pub fn normal_prefix(path: &str) -> Option<String> {
    let mut normal = String::with_capacity(path.len());
    append(
        &mut normal,
        &decode(path.as_bytes())?,
        b"-._~!$&'()*+,;=:@/",
    );
    Some(normal)
}

fn append(url: &mut String, bytes: &[u8], plain: &[u8]) {
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || plain.contains(byte) {
            url.push(char::from(*byte));
        } else {
            url.push_str(&format!("%{byte:02X}"));
        }
    }
}

fn slash_count(path: &[u8]) -> usize {
    path.iter().filter(|byte| **byte == b'/').count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(path: &str, expected: Option<&str>) {
        let decoded = decode(path.as_bytes());
        assert_eq!(decoded.as_deref(), expected.map(str::as_bytes), "{path}");
    }

    #[test]
    fn paths() {
        check("", Some(""));
        check("/log/a+b", Some("/log/a+b"));
        check("/log/a%2Bb%2bc%20", Some("/log/a+b+c "));
        check("/a%252Bb", Some("/a%2Bb"));
        check("/%61%25", Some("/a%"));
        for nothing in ["/a%2Fb", "/a%2fb", "/a%00", "/a%", "/a%2", "/a%zz", "/a%+1"] {
            check(nothing, None);
        }
    }

    #[test]
    fn paths_below_prefixes() {
        let of = |path: &'static str, prefix: &str| {
            let rest = below(path.as_bytes(), prefix.as_bytes());
            rest.map(|rest| str::from_utf8(rest).unwrap())
        };
        assert_eq!(of("", ""), Some(""));
        assert_eq!(of("/", ""), Some("/"));
        assert_eq!(of("/a%zz", ""), Some("/a%zz"));
        assert_eq!(of("*", ""), None);
        assert_eq!(of("/team", "/team"), Some(""));
        assert_eq!(of("/team/", "/team"), Some("/"));
        assert_eq!(of("/te%61m/x%2By", "/team"), Some("/x%2By"));
        assert_eq!(of("/a/b+c/d", "/a/b+c"), Some("/d"));
        assert_eq!(of("/a/b%2bc/%zz", "/a/b+c"), Some("/%zz"));
        for path in [
            "/teams",
            "/tea",
            "/",
            "",
            "/te%2561m/",
            "/team%2Fx",
            "/team%00/",
            "/t%zz/",
        ] {
            assert_eq!(of(path, "/team"), None, "{path}");
        }
    }

    #[test]
    fn prefixes_have_one_form() {
        for (path, expected) in [
            ("", Some("")),
            ("/te%61m-a", Some("/team-a")),
            ("/a+b/%c3%a4", Some("/a+b/%C3%A4")),
            ("/a%3fb", Some("/a%3Fb")),
            ("/a%2fb", None),
            ("/a%00", None),
            ("/a%", None),
        ] {
            assert_eq!(normal_prefix(path).as_deref(), expected, "{path}");
        }
    }

    proptest! {
        #[test]
        fn an_encoded_name_is_decoded_to_itself(
            name in proptest::collection::vec(1..=u8::MAX, 0..40),
            prefix in "(/[a-z%+ä]{1,3}){0,3}",
        ) {
            prop_assume!(!name.contains(&b'/'));
            let encoded = encode(&name);
            let plain = |byte: u8| byte.is_ascii_graphic() && !b"\"'<>&?#:+".contains(&byte);
            prop_assert!(encoded.bytes().all(plain));
            let decoded = decode(encoded.as_bytes());
            prop_assert_eq!(decoded.as_deref(), Some(&*name));
            let parts = prefix.split('/').map(|part| encode(part.as_bytes()));
            let whole: Vec<String> = parts.collect();
            let path = format!("{}/{encoded}", whole.join("/"));
            let rest = below(path.as_bytes(), prefix.as_bytes());
            let expected = format!("/{encoded}");
            prop_assert_eq!(rest, Some(expected.as_bytes()));
            let normal = normal_prefix(&whole.join("/")).unwrap();
            let again = normal_prefix(&normal).unwrap();
            prop_assert_eq!(&again, &normal);
            let decoded = decode(normal.as_bytes());
            prop_assert_eq!(decoded.as_deref(), Some(prefix.as_bytes()));
        }

        #[test]
        fn no_bytes_panic(
            path in proptest::collection::vec(any::<u8>(), 0..100),
            prefix in proptest::collection::vec(any::<u8>(), 0..10),
        ) {
            decode(&path);
            below(&path, &prefix);
        }
    }
}
