//! Parses request URLs of the web interface.

use samovar_nix::{HashPart, StorePath};

/// The page that a URL's path names, without the prefix of its cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PageRoute {
    /// The prefix of the cache, without a trailing slash.
    Prefix,
    /// `/`
    Landing,
    /// `/version`
    Version,
    /// `/search`
    Search,
    /// `/uploads`
    Uploads,
    /// `/path/<hash part>`
    Path(HashPart),
    /// `/path/<hash part>/closure`
    Closure(HashPart),
    /// `/build-log/<base name>`
    BuildLog(StorePath),
    /// `/build-log/<hash part>`
    BuildLogOf(HashPart),
    /// `/serve/<hash part>/…`
    Serve {
        hash_part: HashPart,
        names: Vec<Vec<u8>>,
        /// Whether the URL ends with a slash.
        has_slash: bool,
    },
    /// `/-/assets/<name>`
    Asset(String),
    /// The URL has the form of a store path's page, but its hash part is invalid.
    NoPath,
}

impl PageRoute {
    /// Parses a path that is decoded. `None`: the URL names no page.
    pub(super) fn of_decoded(path: &[u8]) -> Option<Self> {
        match path {
            b"" => return Some(Self::Prefix),
            b"/" => return Some(Self::Landing),
            b"/version" => return Some(Self::Version),
            b"/search" => return Some(Self::Search),
            b"/uploads" => return Some(Self::Uploads),
            _ => {}
        }
        if let Some(rest) = path.strip_prefix(b"/path/") {
            let (hash_part, page): (_, fn(HashPart) -> Self) = match rest.strip_suffix(b"/closure")
            {
                Some(hash_part) => (hash_part, Self::Closure),
                None => (rest, Self::Path),
            };
            return Some(HashPart::parse(hash_part).map_or(Self::NoPath, page));
        }
        if let Some(rest) = path.strip_prefix(b"/build-log/") {
            return Some(match (store_path(rest), HashPart::parse(rest)) {
                (Some(path), _) => Self::BuildLog(path),
                (None, Ok(hash_part)) => Self::BuildLogOf(hash_part),
                (None, Err(_)) => Self::NoPath,
            });
        }
        if let Some(rest) = path.strip_prefix(b"/serve/") {
            return Some(serve(rest).unwrap_or(Self::NoPath));
        }
        let name = path.strip_prefix(b"/-/assets/")?;
        let name = std::str::from_utf8(name).ok()?;
        Some(Self::Asset(name.to_owned()))
    }
}

fn store_path(base_name: &[u8]) -> Option<StorePath> {
    StorePath::from_base_name(std::str::from_utf8(base_name).ok()?).ok()
}

fn serve(rest: &[u8]) -> Option<PageRoute> {
    let mut segments = rest.split(|byte| *byte == b'/');
    let hash_part = HashPart::parse(segments.next()?).ok()?;
    let mut names: Vec<Vec<u8>> = segments.map(Into::into).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Route;

    const H: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5";

    fn h() -> HashPart {
        HashPart::parse(H.as_bytes()).unwrap()
    }

    #[track_caller]
    fn check(path: &str, expected: Option<PageRoute>) {
        let path = path.replace("{H}", H);
        let page = match Route::of(path.as_bytes(), None) {
            Route::Page(page) => Some(page),
            _ => None,
        };
        assert_eq!(page, expected, "{path}");
    }

    fn files(names: &[&str], has_slash: bool) -> PageRoute {
        PageRoute::Serve {
            hash_part: h(),
            names: names.iter().map(|name| name.as_bytes().to_vec()).collect(),
            has_slash,
        }
    }

    #[test]
    fn urls_of_pages() {
        check("", Some(PageRoute::Prefix));
        check("/", Some(PageRoute::Landing));
        check("/version", Some(PageRoute::Version));
        check("/search", Some(PageRoute::Search));
        check("/uploads", Some(PageRoute::Uploads));
        check("/path/{H}", Some(PageRoute::Path(h())));
        check("/path/{H}/", Some(PageRoute::NoPath));
        check("/path/{H}/closure", Some(PageRoute::Closure(h())));
        check("/path/x/closure", Some(PageRoute::NoPath));
        check("/path/x", Some(PageRoute::NoPath));
        let drv = StorePath::from_base_name(&format!("{H}-a+b.drv")).unwrap();
        check(
            "/build-log/{H}-a+b.drv",
            Some(PageRoute::BuildLog(drv.clone())),
        );
        check("/build-log/{H}-a%2Bb.drv", Some(PageRoute::BuildLog(drv)));
        check("/build-log/{H}", Some(PageRoute::BuildLogOf(h())));
        check("/build-log/{H}-", Some(PageRoute::NoPath));
        check("/build-log/x", Some(PageRoute::NoPath));
        check("/serve/{H}", Some(files(&[], false)));
        check("/serve/{H}/", Some(files(&[], true)));
        check("/serve/{H}/a/b%20c", Some(files(&["a", "b c"], false)));
        check("/serve/{H}/%61%2Bb/", Some(files(&["a+b"], true)));
        check("/serve/{H}//a", Some(files(&["", "a"], false)));
        check("/serve/{H}/a%2fb/", None);
        check("/serve/{H}/%00", None);
        check("/serve/{H}/%zz", None);
        check("/serve/", Some(PageRoute::NoPath));
        check("/-/assets/x.css", Some(PageRoute::Asset("x.css".into())));
        check("//", None);
        check("/favicon.ico", None);
    }
}
