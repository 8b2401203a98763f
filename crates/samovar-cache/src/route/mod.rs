//! Parses request URLs of a binary cache into routes.
//!
//! # Source
//!
//! The patterns of nix-serve (`nix-serve.psgi`) and nix-serve-ng (`src/Main.hs`), and harmonia's
//! form of NAR URLs: clients keep them for 30 days, so those of a predecessor must go on working.
//! `/narinfos` and `/closure/` are Samovar's: no other known server answers them, and no Nix client
//! requests them.

pub(crate) mod page;
pub(crate) mod path;

use samovar_metrics::{Class, RawHashPart};
use samovar_nix::narinfo::NarCoding;
use samovar_nix::{HashPart, NarHash, StorePath};
use samovar_store::RealisationId;

use page::PageRoute;

/// Length of a hash part in characters.
const HASH_PART_LEN: usize = size_of::<RawHashPart>();

/// Length of a NAR hash in a URL, in characters.
const NAR_HASH_LEN: usize = 52;

/// The resource that a URL's path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    /// `/nix-cache-info`
    CacheInfo,
    /// `/<hash part>.narinfo`
    Narinfo(HashPart),
    /// `/<hash part>.ls`
    Listing(HashPart),
    /// `/nar/<hash part>-<NAR hash>.nar`, `/nar/<hash part>.nar`, `/nar/<NAR hash>.nar?hash=<hash
    /// part>`; `/nar/<hash part>-<NAR hash>.nar.zst`
    Nar {
        hash_part: HashPart,
        nar_hash: Option<NarHash>,
        coding: NarCoding,
    },
    /// A NAR URL with a valid hash part and an invalid NAR hash: no path has such a NAR.
    NarOfNoHash(HashPart),
    /// `/log/<base name>`
    Log(StorePath),
    /// `/realisations/<id>.doi`, `/build-trace-v2/<derivation>/<output>.doi`
    Realisation(RealisationId),
    /// `/narinfos`, with POST
    Narinfos,
    /// `/closure/<hash part>`
    Closure(HashPart),
    /// The URL has the form of a path's URL, but its hash part or name is invalid: no such path
    /// exists.
    NoPath,
    /// The URL matches no pattern of a binary cache.
    Unknown,
}

impl Route {
    /// Returns the hash part in the URL, whether or not such a path exists; `None` if the URL has
    /// none.
    pub(crate) fn hash_part(&self) -> Option<HashPart> {
        match self {
            Self::Narinfo(hash_part)
            | Self::Listing(hash_part)
            | Self::Nar { hash_part, .. }
            | Self::NarOfNoHash(hash_part)
            | Self::Closure(hash_part) => Some(*hash_part),
            Self::Log(path) => Some(path.hash_part()),
            Self::CacheInfo
            | Self::Realisation(_)
            | Self::Narinfos
            | Self::NoPath
            | Self::Unknown => None,
        }
    }

    /// Whether answering this route reads store files, and so may wait for a disk. Requests that
    /// read only the database use another lane and do not queue behind these.
    pub(crate) fn reads_files(&self) -> bool {
        match self {
            Self::Nar { .. } | Self::Listing(_) | Self::Log(_) => true,
            Self::CacheInfo
            | Self::Narinfo(_)
            | Self::NarOfNoHash(_)
            | Self::Realisation(_)
            | Self::Narinfos
            | Self::Closure(_)
            | Self::NoPath
            | Self::Unknown => false,
        }
    }
}

/// Finds the route of a path that is still percent-encoded, without the prefix it is mounted under.
pub(crate) fn route(path: &[u8], query: Option<&[u8]>) -> Route {
    path::decode(path).map_or(Route::Unknown, |path| decoded(&path, query))
}

/// Returns the class of a URL path, and the part of it that names the requested resource, which is
/// not parsed yet. Returns `None` if the path has none of the known forms. The most frequent forms
/// come first.
fn form(path: &[u8]) -> Option<(Class, &[u8])> {
    let path = path.strip_prefix(b"/")?;
    if let Some(name) = path.strip_suffix(b".narinfo") {
        return Some((Class::Narinfo, name));
    }
    if let Some(file) = path.strip_prefix(b"nar/") {
        let name = match file.strip_suffix(b".zst") {
            // Other names ending in `.nar.zst` are those of uploaded files.
            Some(nar) if nar.get(HASH_PART_LEN) == Some(&b'-') => nar,
            Some(_) => return None,
            None => file,
        };
        return Some((Class::Nar, name.strip_suffix(b".nar")?));
    }
    match path {
        b"nix-cache-info" => return Some((Class::CacheInfo, path)),
        b"narinfos" => return Some((Class::Narinfos, path)),
        _ => {}
    }
    if let Some(name) = path.strip_suffix(b".ls") {
        return Some((Class::Listing, name));
    }
    if let Some(name) = path.strip_prefix(b"closure/") {
        return Some((Class::Closure, name));
    }
    if let Some(name) = path.strip_prefix(b"log/") {
        return Some((Class::Log, name));
    }
    let name = path.strip_suffix(b".doi")?;
    let is_realisation = name.starts_with(b"realisations/") || name.starts_with(b"build-trace-v2/");
    is_realisation.then_some((Class::Realisation, name))
}

fn decoded(path: &[u8], query: Option<&[u8]>) -> Route {
    let text = |name| std::str::from_utf8(name).ok();
    let Some((class, name)) = form(path) else {
        return Route::Unknown;
    };
    let route = match class {
        Class::CacheInfo => Some(Route::CacheInfo),
        Class::Narinfo => Some(of_hash_part(name, Route::Narinfo)),
        Class::Listing => Some(of_hash_part(name, Route::Listing)),
        Class::Nar if path.ends_with(b".zst") => Some(nar(name, None, NarCoding::Zstd)),
        Class::Nar => Some(nar(name, query, NarCoding::Identity)),
        Class::Log => text(name)
            .and_then(|name| StorePath::from_base_name(name).ok())
            .map(Route::Log),
        Class::Realisation => text(name).and_then(realisation).map(Route::Realisation),
        Class::Narinfos => Some(Route::Narinfos),
        Class::Closure => Some(of_hash_part(name, Route::Closure)),
        Class::Page | Class::Upload | Class::Other => None,
    };
    route.unwrap_or(Route::Unknown)
}

pub(crate) fn realisation(name: &str) -> Option<RealisationId> {
    if let Some(id) = name.strip_prefix("realisations/") {
        return RealisationId::parse_hash_form(id).ok();
    }
    let (derivation, output) = name.strip_prefix("build-trace-v2/")?.split_once('/')?;
    RealisationId::parse_derivation_form(derivation, output).ok()
}

/// Whether URLs of a cache may begin with this segment, after the prefix of the cache. Another
/// cache with such a prefix would hide them. `has_pages`: the cache has a web interface.
#[must_use]
pub fn is_own_segment(segment: &str, has_pages: bool) -> bool {
    const SEGMENTS: [&str; 8] = [
        "build-trace-v2",
        "closure",
        "log",
        "nar",
        "narinfos",
        "nix-cache-info",
        "realisations",
        "upload",
    ];
    const PAGES: [&str; 7] = [
        "-",
        "build-log",
        "path",
        "search",
        "serve",
        "uploads",
        "version",
    ];
    SEGMENTS.contains(&segment) || (has_pages && PAGES.contains(&segment))
}

/// Classifies a request for the metrics. Returns its class and the hash part in its URL, which is
/// not validated. The cache's prefix is not known here, so the longest suffix of the path that
/// matches a form decides.
#[must_use]
pub fn classify(path: &[u8], query: Option<&[u8]>) -> (Class, Option<RawHashPart>) {
    // Each request is classified on an I/O thread, and hardly any path has an escape.
    let decoded = path.contains(&b'%').then(|| path::decode(path)).flatten();
    let path = decoded.as_deref().unwrap_or(path);
    let starts = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    for (start, _) in starts {
        let end = &path[start..];
        let class = match form(end) {
            Some((Class::Narinfo | Class::Listing, name)) if has_upload(name) => Class::Upload,
            Some((Class::Narinfo, name)) => return (Class::Narinfo, name.last_chunk().copied()),
            Some((Class::Nar, name)) => {
                let (hash_part, _) = split_nar_name(name, query);
                return (Class::Nar, hash_part.try_into().ok());
            }
            Some((class, _)) => class,
            None => match PageRoute::of_decoded(end) {
                Some(PageRoute::Version) => Class::Other,
                Some(PageRoute::Serve { .. }) => {
                    let name = end.strip_prefix(b"/serve/");
                    return (Class::Page, name.and_then(<[u8]>::first_chunk).copied());
                }
                Some(_) => Class::Page,
                None if is_below_upload(end) => Class::Upload,
                None => continue,
            },
        };
        return (class, None);
    }
    (Class::Other, None)
}

/// Returns whether a name with the segments before it, which no slash begins, is below `upload/`.
fn has_upload(name: &[u8]) -> bool {
    name.len() > HASH_PART_LEN
        && (name.starts_with(b"upload/") || name.windows(8).any(|segment| segment == b"/upload/"))
}

/// Returns whether a path is `/upload` or below it.
fn is_below_upload(path: &[u8]) -> bool {
    let rest = path.strip_prefix(b"/upload");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Parses a hash part. nix-serve's pattern for hash parts is `[0-9a-z]+`: a name that matches it
/// without being a hash part is [`Route::NoPath`], any other name is [`Route::Unknown`].
fn of_hash_part(name: &[u8], route: impl FnOnce(HashPart) -> Route) -> Route {
    match HashPart::parse(name) {
        Ok(hash_part) => route(hash_part),
        Err(_) if is_word(name) => Route::NoPath,
        Err(_) => Route::Unknown,
    }
}

fn nar(name: &[u8], query: Option<&[u8]>, coding: NarCoding) -> Route {
    let (hash_part, nar_hash) = split_nar_name(name, query);
    if nar_hash.is_some_and(|nar_hash| !is_word(nar_hash)) {
        return Route::Unknown;
    }
    of_hash_part(hash_part, |hash_part| match nar_hash.map(parse_nar_hash) {
        Some(None) => Route::NarOfNoHash(hash_part),
        nar_hash => Route::Nar {
            hash_part,
            nar_hash: nar_hash.flatten(),
            coding,
        },
    })
}

/// Splits the name of a NAR into its hash part and, if there is one, its NAR hash.
fn split_nar_name<'a>(name: &'a [u8], query: Option<&'a [u8]>) -> (&'a [u8], Option<&'a [u8]>) {
    let dash = match name.get(HASH_PART_LEN) {
        Some(b'-') => Some(HASH_PART_LEN),
        _ => name.iter().position(|byte| *byte == b'-'),
    };
    match (dash, hash_parameter(query)) {
        (Some(dash), _) => (&name[..dash], Some(&name[dash + 1..])),
        (None, Some(hash_part)) if name.len() == NAR_HASH_LEN => (hash_part, Some(name)),
        (None, _) => (name, None),
    }
}

fn parse_nar_hash(text: &[u8]) -> Option<NarHash> {
    NarHash::parse_nixbase32(text).ok()
}

/// Returns the value of the query parameter `hash`, which harmonia's NAR URLs have; `None` without
/// it.
fn hash_parameter(query: Option<&[u8]>) -> Option<&[u8]> {
    query?
        .split(|byte| *byte == b'&')
        .find_map(|pair| pair.strip_prefix(b"hash="))
}

fn is_word(text: &[u8]) -> bool {
    !text.is_empty()
        && text
            .iter()
            .all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const H: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5";
    const N: &str = "1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z";

    #[track_caller]
    fn check(url: &str, expected: Route) {
        let url = url.replace("{H}", H).replace("{N}", N);
        let (path, query) = match url.split_once('?') {
            Some((path, query)) => (path, Some(query.as_bytes())),
            None => (url.as_str(), None),
        };
        assert_eq!(route(path.as_bytes(), query), expected, "{url}");
        // The class is that of the route, below any prefix.
        if let Some(class) = class(&expected) {
            let prefixed = format!("/team-a{path}");
            for path in [path, &prefixed] {
                let (found, raw) = classify(path.as_bytes(), query);
                assert_eq!(found, class, "{path}");
                if matches!(class, Class::Narinfo | Class::Nar) {
                    let hash_part = raw.and_then(|raw| HashPart::parse(&raw).ok());
                    assert_eq!(hash_part, expected.hash_part(), "{path}");
                }
            }
        }
    }

    /// Returns the metrics class that a route belongs to.
    fn class(route: &Route) -> Option<Class> {
        Some(match route {
            Route::CacheInfo => Class::CacheInfo,
            Route::Narinfo(_) => Class::Narinfo,
            Route::Listing(_) => Class::Listing,
            Route::Nar { .. } | Route::NarOfNoHash(_) => Class::Nar,
            Route::Log(_) => Class::Log,
            Route::Realisation(_) => Class::Realisation,
            Route::Narinfos => Class::Narinfos,
            Route::Closure(_) => Class::Closure,
            Route::NoPath | Route::Unknown => return None,
        })
    }

    #[test]
    fn first_segments_of_urls_are_those_of_a_cache() {
        for url in [
            "/nix-cache-info",
            "/narinfos",
            "/nar/x.nar",
            "/closure/x",
            "/log/x",
            "/realisations/x.doi",
            "/build-trace-v2/x/y.doi",
        ] {
            assert!(form(url.as_bytes()).is_some(), "{url}");
            assert!(
                is_own_segment(url.split('/').nth(1).unwrap(), false),
                "{url}"
            );
        }
        for url in [
            "/version",
            "/search",
            "/uploads",
            "/path/x",
            "/build-log/x",
            "/serve/x",
            "/-/assets/x",
        ] {
            assert!(PageRoute::of(url.as_bytes()).is_some(), "{url}");
            let segment = url.split('/').nth(1).unwrap();
            assert!(
                is_own_segment(segment, true) && !is_own_segment(segment, false),
                "{url}"
            );
        }
        assert!(is_own_segment("upload", false));
        assert!(!is_own_segment("", true) && !is_own_segment("team-a", true));
    }

    #[test]
    fn urls_without_a_route_have_a_class() {
        for (path, class) in [
            ("/x.narinfo", Class::Narinfo),
            ("/nar/.nar", Class::Nar),
            ("/x.ls", Class::Listing),
            ("/log/x.drv", Class::Log),
            ("/realisations/sha256:x!out.doi", Class::Realisation),
            ("/a/closure/x", Class::Closure),
            ("/", Class::Page),
            ("/team-a/", Class::Page),
            ("/serve/x/bin/sh", Class::Page),
            ("/team-a/serve/x/log/y", Class::Page),
            ("/-/assets/x.css", Class::Page),
            ("/upload", Class::Upload),
            ("/upload/nix-cache-info", Class::Upload),
            (
                "/upload/00000000000000000000000000000000.narinfo",
                Class::Upload,
            ),
            (
                "/a/b/upload/00000000000000000000000000000000.ls",
                Class::Upload,
            ),
            ("/a/upload/nar/x.nar.zst", Class::Upload),
            ("/upload/push/1/x/part/y/1", Class::Upload),
            ("/uploads", Class::Page),
            ("/favicon.ico", Class::Other),
            ("/version", Class::Other),
            ("", Class::Other),
        ] {
            assert_eq!(classify(path.as_bytes(), None), (class, None), "{path}");
        }
        let hash_part = H.as_bytes().first_chunk().copied();
        for path in ["", "/", "/bin/sh"] {
            let path = format!("/team-a/serve/{H}{path}");
            let found = classify(path.as_bytes(), None);
            assert_eq!(found, (Class::Page, hash_part), "{path}");
        }
    }

    fn h() -> HashPart {
        HashPart::parse(H.as_bytes()).unwrap()
    }

    fn nar(nar_hash: bool, coding: NarCoding) -> Route {
        let nar_hash = nar_hash.then(|| NarHash::parse_nixbase32(N.as_bytes()).unwrap());
        Route::Nar {
            hash_part: h(),
            nar_hash,
            coding,
        }
    }

    #[test]
    fn urls_of_narinfos() {
        check("/{H}.narinfo", Route::Narinfo(h()));
        check("/{H}.narinfo?x=1", Route::Narinfo(h()));
        check(
            "/%7as83x50c7jbs0hj70ivx7ykckxh2zzl5.narinfo",
            Route::Narinfo(h()),
        );
        for short in [
            "/a.narinfo",
            "/{H}0.narinfo",
            "/e000000000000000000000000000000u.narinfo",
        ] {
            check(short, Route::NoPath);
        }
        for other in [
            "/.narinfo",
            "/x/{H}.narinfo",
            "//{H}.narinfo",
            "/{H}-name.narinfo",
            "{H}.narinfo",
            "",
            "/ZS83X50C7JBS0HJ70IVX7YKCKXH2ZZL5.narinfo",
            "/{H}.narinfo/",
            "/{H}%00.narinfo",
            "/%2f{H}.narinfo",
            "/%{H}.narinfo",
            "/..%2f{H}.narinfo",
        ] {
            check(other, Route::Unknown);
        }
    }

    #[test]
    fn urls_of_nars() {
        check("/nar/{H}-{N}.nar", nar(true, NarCoding::Identity));
        check("/nar/{H}.nar", nar(false, NarCoding::Identity));
        check("/nar/{H}.nar?hash=x", nar(false, NarCoding::Identity));
        check("/nar/{N}.nar?hash={H}", nar(true, NarCoding::Identity));
        check(
            "/nar/{N}.nar?a=b&hash={H}&c",
            nar(true, NarCoding::Identity),
        );
        check("/nar/{N}.nar?hash=x", Route::NoPath);
        check("/nar/{N}.nar", Route::NoPath);
        check("/nar/{H}-123.nar", Route::NarOfNoHash(h()));
        check("/nar/{H}-{N}.nar.zst", nar(true, NarCoding::Zstd));
        check("/nar/{H}-123.nar.zst", Route::NarOfNoHash(h()));
        check("/nar/x-{N}.nar", Route::NoPath);
        for other in [
            "/nar/{H}-{N}.nar.xz",
            "/nar/{H}-{N}.zst",
            "/nar/{H}.nar.zst",
            "/nar/{N}.nar.zst?hash={H}",
            "/nar/.nar",
            "/nar/",
            "/nar/{H}-.nar",
            "/nar/{H}-{N}-a.nar",
        ] {
            check(other, Route::Unknown);
        }
    }

    #[test]
    fn all_other_urls() {
        check("/nix-cache-info", Route::CacheInfo);
        check("/{H}.ls", Route::Listing(h()));
        let path = StorePath::from_base_name(&format!("{H}-a.drv")).unwrap();
        check("/log/{H}-a.drv", Route::Log(path));
        for other in [
            "/",
            "/log/",
            "/log/{H}",
            "/log/{H}-a.drv/foo",
            "/log/..%2f{H}-a",
            "/version",
        ] {
            check(other, Route::Unknown);
        }
        let hex = "0".repeat(64);
        let id = RealisationId::parse_hash_form(&format!("sha256:{hex}!out")).unwrap();
        check(
            &format!("/realisations/sha256:{hex}!out.doi"),
            Route::Realisation(id.clone()),
        );
        check(
            &format!("/realisations/sha256:{hex}%21out.doi"),
            Route::Realisation(id),
        );
        check(&format!("/realisations/sha256:{hex}!out"), Route::Unknown);
        let id = RealisationId::parse_derivation_form(&format!("{H}-a.drv"), "out").unwrap();
        check("/build-trace-v2/{H}-a.drv/out.doi", Route::Realisation(id));
        check("/build-trace-v2/{H}-a.drv/out/x.doi", Route::Unknown);
        check("/build-trace-v2/{H}-a.drv%2fout.doi", Route::Unknown);
        let hash_part = HashPart::parse(H.as_bytes()).unwrap();
        check("/closure/{H}", Route::Closure(hash_part));
        check("/closure/abc", Route::NoPath);
        check("/closure/{H}.narinfo", Route::Unknown);
        check("/narinfos", Route::Narinfos);
        check("/narinfos/", Route::Unknown);
    }

    proptest! {
        #[test]
        fn no_path_panics(
            path in "[/%a-z0-9.-]{0,80}",
            query in proptest::option::of("[a-z=&]{0,40}"),
        ) {
            route(path.as_bytes(), query.as_deref().map(str::as_bytes));
        }

        #[test]
        fn no_bytes_panic(path in proptest::collection::vec(any::<u8>(), 0..100)) {
            route(&path, None);
        }
    }
}
