//! What the URL of a page means, and how one is written.

use samovar_http::http::{Pairs, percent};
use samovar_nix::HashPart;

/// Pairs that a query of ours may have; the rest is of no interest.
const PAIR_COUNT_MAX: usize = 16;

/// What a page's URL names, below the prefix of its cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PageRoute {
    /// The prefix without the slash behind it.
    Prefix,
    /// `/`
    Landing,
    /// `/version`
    Version,
    /// `/search`
    Search,
    /// `/path/<hash part>`
    Path(HashPart),
    /// `/serve/<hash part>/…`
    Serve {
        hash_part: HashPart,
        names: Vec<Vec<u8>>,
        /// Whether a slash ends it.
        has_slash: bool,
    },
    /// `/-/assets/<name>`
    Asset(String),
    /// Of the form of a path's page, but there can be no such path.
    NoPath,
}

impl PageRoute {
    /// Finds the route of a path that is still percent-encoded. `None`: it names no page.
    pub(crate) fn of(path: &[u8]) -> Option<Self> {
        match path {
            b"" => return Some(Self::Prefix),
            b"/" => return Some(Self::Landing),
            b"/version" => return Some(Self::Version),
            b"/search" => return Some(Self::Search),
            _ => {}
        }
        if let Some(rest) = path.strip_prefix(b"/path/") {
            return Some(HashPart::parse(rest).map_or(Self::NoPath, Self::Path));
        }
        if let Some(rest) = path.strip_prefix(b"/serve/") {
            return Some(serve(rest).unwrap_or(Self::NoPath));
        }
        let name = path.strip_prefix(b"/-/assets/")?;
        let name = std::str::from_utf8(name).ok()?;
        Some(Self::Asset(name.to_owned()))
    }
}

fn serve(rest: &[u8]) -> Option<PageRoute> {
    let mut segments = rest.split(|byte| *byte == b'/');
    let hash_part = HashPart::parse(segments.next()?).ok()?;
    // Each by itself: an encoded slash is part of a name, and no name has one.
    let mut names: Vec<Vec<u8>> = segments
        .map(|segment| percent::decode(segment).map(Into::into))
        .collect::<Option<_>>()?;
    let has_slash = names.last().is_some_and(Vec::is_empty);
    if has_slash {
        names.pop();
    }
    Some(PageRoute::Serve {
        hash_part,
        names,
        has_slash,
    })
}

/// A parameter of a query.
pub(crate) fn parameter(query: Option<&[u8]>, name: &str) -> Option<String> {
    let pairs = Pairs::parse(query?, PAIR_COUNT_MAX)?;
    pairs.get(name).map(str::to_owned)
}

/// The same, as the bytes it stands for: names of files may be any.
pub(crate) fn raw_parameter(query: Option<&[u8]>, name: &str) -> Option<Vec<u8>> {
    let pairs = query?.split(|byte| *byte == b'&').take(PAIR_COUNT_MAX);
    let value = pairs
        .filter_map(|pair| pair.strip_prefix(name.as_bytes()))
        .find_map(|rest| rest.strip_prefix(b"="))?;
    percent::decode(value).map(Into::into)
}

/// The way from a page to the root of its cache, as a relative reference: it leads there behind a
/// proxy that mounts the cache elsewhere, too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Base {
    /// Directories between the root and the page.
    depth: usize,
}

impl Base {
    /// `path`: that of the request, without the prefix of the cache.
    pub(crate) fn of(path: &[u8]) -> Self {
        let slash_count = path.iter().filter(|byte| **byte == b'/').count();
        Self {
            depth: slash_count.saturating_sub(1),
        }
    }

    /// A reference to `path`, which is relative to the root and encoded.
    pub(crate) fn to(self, path: &str) -> String {
        let mut url = String::with_capacity(2 + 3 * self.depth + path.len());
        // So that nothing that follows is taken for a scheme or for nothing at all.
        url.push_str("./");
        for _ in 0..self.depth {
            url.push_str("../");
        }
        url.push_str(path);
        url
    }

    /// A reference to a place in the files of a path; a directory if `has_slash`.
    pub(crate) fn to_file(self, hash_part: HashPart, names: &[&[u8]], has_slash: bool) -> String {
        let mut path = format!("serve/{}", text_of(hash_part));
        for name in names {
            path.push('/');
            encode_into(&mut path, name);
        }
        if has_slash {
            path.push('/');
        }
        self.to(&path)
    }

    /// A reference to the page of a path.
    pub(crate) fn to_path(self, hash_part: HashPart) -> String {
        self.to(&format!("path/{}", text_of(hash_part)))
    }
}

/// A hash part as text.
pub(crate) fn text_of(hash_part: HashPart) -> String {
    String::from_utf8_lossy(&hash_part.to_text()).into_owned()
}

/// Any bytes as one segment of a path, or one value of a query.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut encoded = String::with_capacity(bytes.len());
    encode_into(&mut encoded, bytes);
    encoded
}

/// All but what RFC 3986, 2.3 calls unreserved.
fn encode_into(encoded: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(*byte));
        } else {
            encoded.push('%');
            encoded.push(char::from(DIGITS[usize::from(byte >> 4)]));
            encoded.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const H: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5";

    fn h() -> HashPart {
        HashPart::parse(H.as_bytes()).unwrap()
    }

    #[track_caller]
    fn check(path: &str, expected: Option<PageRoute>) {
        let path = path.replace("{H}", H);
        assert_eq!(PageRoute::of(path.as_bytes()), expected, "{path}");
    }

    fn files(names: &[&str], has_slash: bool) -> PageRoute {
        PageRoute::Serve {
            hash_part: h(),
            names: names.iter().map(|name| name.as_bytes().to_vec()).collect(),
            has_slash,
        }
    }

    #[test]
    fn pages_are_found() {
        check("", Some(PageRoute::Prefix));
        check("/", Some(PageRoute::Landing));
        check("/version", Some(PageRoute::Version));
        check("/search", Some(PageRoute::Search));
        check("/path/{H}", Some(PageRoute::Path(h())));
        check("/path/{H}/", Some(PageRoute::NoPath));
        check("/path/x", Some(PageRoute::NoPath));
        check("/serve/{H}", Some(files(&[], false)));
        check("/serve/{H}/", Some(files(&[], true)));
        check("/serve/{H}/a/b%20c", Some(files(&["a", "b c"], false)));
        check("/serve/{H}/a%2fb/", Some(files(&["a/b"], true)));
        check("/serve/{H}//a", Some(files(&["", "a"], false)));
        check("/serve/{H}/%zz", Some(PageRoute::NoPath));
        check("/serve/", Some(PageRoute::NoPath));
        check("/-/assets/x.css", Some(PageRoute::Asset("x.css".into())));
        check("//", None);
        check("/favicon.ico", None);
    }

    #[test]
    fn references_stay_below_the_root() {
        let base = Base::of(b"/serve/x/y/");
        assert_eq!(base.to(""), "./../../../");
        assert_eq!(Base::of(b"/").to("search"), "./search");
        let names: [&[u8]; 2] = [b"javascript:alert(1)", b"\"\xff\n"];
        assert_eq!(
            Base::of(b"/").to_file(h(), &names, true),
            format!("./serve/{H}/javascript%3Aalert%281%29/%22%FF%0A/")
        );
    }

    proptest! {
        #[test]
        fn any_name_comes_back(name in proptest::collection::vec(any::<u8>(), 1..40)) {
            prop_assume!(!name.contains(&b'/'));
            let url = Base::of(b"/").to_file(h(), &[&name], false);
            prop_assert!(url.bytes().all(|byte| byte.is_ascii_graphic()
                && !b"\"'<>&?#:".contains(&byte)));
            let route = PageRoute::of(&url.as_bytes()[1..]);
            prop_assert_eq!(route, Some(PageRoute::Serve {
                hash_part: h(),
                names: vec![name.clone()],
                has_slash: false,
            }));
            let query = format!("a=b&after={}", encode(&name));
            prop_assert_eq!(raw_parameter(Some(query.as_bytes()), "after"), Some(name));
        }

        #[test]
        fn no_bytes_panic(path in proptest::collection::vec(any::<u8>(), 0..100)) {
            PageRoute::of(&path);
            raw_parameter(Some(&path), "after");
        }
    }
}
