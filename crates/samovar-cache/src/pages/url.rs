//! Writes the URLs of pages, and parses their queries.

use samovar_http::http::percent;
use samovar_nix::HashPart;

pub(super) use crate::route::path::encode;
use crate::route::path::encode_into;

/// Maximum number of pairs parsed from a query. No link on a page has as many.
const PAIR_COUNT_MAX: usize = 16;

/// Returns the decoded value of a query parameter as bytes, because file names may be any bytes.
/// Returns `None` if the query lacks the parameter.
pub(crate) fn parameter(query: Option<&[u8]>, name: &str) -> Option<Vec<u8>> {
    let pairs = query?.split(|byte| *byte == b'&').take(PAIR_COUNT_MAX);
    let value = pairs
        .filter_map(|pair| pair.strip_prefix(name.as_bytes()))
        .find_map(|rest| rest.strip_prefix(b"="))?;
    // Forms encode a space as a plus sign, and a plus sign as `%2B`.
    let value: Vec<u8> = value
        .iter()
        .map(|byte| if *byte == b'+' { b' ' } else { *byte })
        .collect();
    percent::decode(&value).map(Into::into)
}

/// The relative reference from a page to the root of its cache. It also works behind a proxy that
/// mounts the cache under another prefix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Base {
    /// Number of directories between the root and the page.
    depth: usize,
}

impl Base {
    /// Returns the reference for the page at `path`, which lacks the cache's prefix.
    pub(crate) fn of(path: &[u8]) -> Self {
        let slash_count = path.iter().filter(|byte| **byte == b'/').count();
        Self {
            depth: slash_count.saturating_sub(1),
        }
    }

    /// Returns a reference to `path`, which is relative to the root and percent-encoded.
    pub(crate) fn to(self, path: &str) -> String {
        let mut url = String::with_capacity(2 + 3 * self.depth + path.len());
        // Prevents the path from being parsed as a scheme, and the reference from being empty.
        url.push_str("./");
        for _ in 0..self.depth {
            url.push_str("../");
        }
        url.push_str(path);
        url
    }

    /// Returns a reference to a file of a store path, or to a directory if `has_slash`.
    pub(crate) fn to_file(self, hash_part: HashPart, names: &[&[u8]], has_slash: bool) -> String {
        let mut path = format!("serve/{hash_part}");
        for name in names {
            path.push('/');
            encode_into(&mut path, name);
        }
        if has_slash {
            path.push('/');
        }
        self.to(&path)
    }

    /// Returns a reference to the page of a store path.
    pub(crate) fn to_path(self, hash_part: HashPart) -> String {
        self.to(&format!("path/{hash_part}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::route::Route;
    use crate::route::page::PageRoute;

    const H: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5";

    fn h() -> HashPart {
        HashPart::parse(H.as_bytes()).unwrap()
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
        fn an_encoded_name_is_decoded_to_itself(
            name in proptest::collection::vec(1..=u8::MAX, 1..40),
        ) {
            prop_assume!(!name.contains(&b'/'));
            let url = Base::of(b"/").to_file(h(), &[&name], false);
            prop_assert!(url.bytes().all(|byte| byte.is_ascii_graphic()
                && !b"\"'<>&?#:".contains(&byte)));
            let route = Route::of(&url.as_bytes()[1..], None);
            prop_assert_eq!(route, Route::Page(PageRoute::Serve {
                hash_part: h(),
                names: vec![name.clone()],
                has_slash: false,
            }));
            let query = format!("a=b&after={}", encode(&name));
            prop_assert_eq!(parameter(Some(query.as_bytes()), "after"), Some(name));
        }

        #[test]
        fn no_bytes_panic(path in proptest::collection::vec(any::<u8>(), 0..100)) {
            parameter(Some(&path), "after");
        }
    }
}
