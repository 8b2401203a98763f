//! The meaning of a URL.
//!
//! # Source
//!
//! The patterns of nix-serve (`nix-serve.psgi`) and nix-serve-ng (`src/Main.hs`), and harmonia's
//! form of NAR URLs: clients keep them for 30 days, so those of a predecessor must go on working.
//! `/narinfos` and `/closure/` are Samovar's: no other known server answers them, and no Nix client
//! requests them.

pub(crate) mod page;

use std::borrow::Cow;

use samovar_http::http::percent;
use samovar_nix::{HashPart, NarHash, StorePath};
use samovar_store::RealisationId;

/// The meaning of a URL's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    /// `/nix-cache-info`
    CacheInfo,
    /// `/<hash part>.narinfo`
    Narinfo(HashPart),
    /// `/<hash part>.ls`
    Listing(HashPart),
    /// `/nar/<hash part>-<NAR hash>.nar`, `/nar/<hash part>.nar`, `/nar/<NAR hash>.nar?hash=<hash
    /// part>`
    Nar {
        hash_part: HashPart,
        nar_hash: Option<NarHash>,
    },
    /// A NAR of a path that may exist, with a NAR hash that no path has.
    NarOfNoHash(HashPart),
    /// `/log/<base name>`
    Log(StorePath),
    /// `/realisations/<id>.doi`, `/build-trace-v2/<derivation>/<output>.doi`
    Realisation(RealisationId),
    /// `/narinfos`, for POST
    Narinfos,
    /// `/closure/<hash part>`
    Closure(HashPart),
    /// The form of a path's URL, but no such path can exist.
    NoPath,
    /// No URL of a cache.
    Unknown,
}

impl Route {
    /// The hash part of the path that is requested, whether such a path exists or not.
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

    /// Whether the answer is read from files, which may wait for a disk. What is read from the
    /// database does not queue behind it.
    pub(crate) fn reads_files(&self) -> bool {
        matches!(self, Self::Nar { .. } | Self::Listing(_) | Self::Log(_))
    }
}

/// Finds the route of a path that is still percent-encoded, without the prefix it is mounted under.
pub(crate) fn route(path: &[u8], query: Option<&[u8]>) -> Route {
    match percent::decode(path) {
        Some(Cow::Borrowed(path)) => decoded(path, query),
        // One segment for the proxies on the way here must not become two.
        Some(Cow::Owned(text)) if slash_count(&text) == slash_count(path) => decoded(&text, query),
        Some(Cow::Owned(_)) | None => Route::Unknown,
    }
}

fn slash_count(path: &[u8]) -> usize {
    path.iter().filter(|byte| **byte == b'/').count()
}

/// The most frequent routes first.
fn decoded(path: &[u8], query: Option<&[u8]>) -> Route {
    let Some(path) = path.strip_prefix(b"/") else {
        return Route::Unknown;
    };
    if let Some(name) = path.strip_suffix(b".narinfo") {
        return of_hash_part(name, Route::Narinfo);
    }
    if let Some(file) = path.strip_prefix(b"nar/") {
        return file
            .strip_suffix(b".nar")
            .map_or(Route::Unknown, |name| nar(name, query));
    }
    if path == b"nix-cache-info" {
        return Route::CacheInfo;
    }
    if let Some(name) = path.strip_suffix(b".ls") {
        return of_hash_part(name, Route::Listing);
    }
    if path == b"narinfos" {
        return Route::Narinfos;
    }
    if let Some(name) = path.strip_prefix(b"closure/") {
        return of_hash_part(name, Route::Closure);
    }
    named(path).unwrap_or(Route::Unknown)
}

/// Routes that contain names rather than hashes.
fn named(path: &[u8]) -> Option<Route> {
    let path = std::str::from_utf8(path).ok()?;
    if let Some(name) = path.strip_prefix("log/") {
        return StorePath::from_base_name(name).ok().map(Route::Log);
    }
    let (kind, name) = path.strip_suffix(".doi")?.split_once('/')?;
    let id = match kind {
        "realisations" => RealisationId::parse_hash_form(name),
        "build-trace-v2" => {
            let (derivation, output) = name.split_once('/')?;
            RealisationId::parse_derivation_form(derivation, output)
        }
        _ => return None,
    };
    id.ok().map(Route::Realisation)
}

/// nix-serve's pattern for hash parts is `[0-9a-z]+`. A name that matches it but is no hash part
/// names no path; any other is no URL of a cache.
fn of_hash_part(name: &[u8], route: impl FnOnce(HashPart) -> Route) -> Route {
    match HashPart::parse(name) {
        Ok(hash_part) => route(hash_part),
        Err(_) if is_word(name) => Route::NoPath,
        Err(_) => Route::Unknown,
    }
}

fn nar(name: &[u8], query: Option<&[u8]>) -> Route {
    if let Some(at) = name.iter().position(|byte| *byte == b'-') {
        let (hash_part, nar_hash) = (&name[..at], &name[at + 1..]);
        if !is_word(nar_hash) {
            return Route::Unknown;
        }
        return of_hash_part(hash_part, |hash_part| match parse_nar_hash(nar_hash) {
            Some(nar_hash) => Route::Nar {
                hash_part,
                nar_hash: Some(nar_hash),
            },
            None => Route::NarOfNoHash(hash_part),
        });
    }
    if let (Some(nar_hash), Some(hash_part)) = (parse_nar_hash(name), hash_parameter(query)) {
        return of_hash_part(hash_part, |hash_part| Route::Nar {
            hash_part,
            nar_hash: Some(nar_hash),
        });
    }
    of_hash_part(name, |hash_part| Route::Nar {
        hash_part,
        nar_hash: None,
    })
}

fn parse_nar_hash(text: &[u8]) -> Option<NarHash> {
    NarHash::parse_nixbase32(text).ok()
}

/// The value of `hash` in harmonia's NAR URLs.
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
    use samovar_metrics::kind_of;

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
        // Metrics classify requests by the ends of their paths, without knowing the prefix.
        if let Some(class) = class(&expected) {
            assert_eq!(kind_of(path.as_bytes()).0, class, "{url}");
            assert_eq!(
                kind_of(format!("/team-a{path}").as_bytes()).0,
                class,
                "{url}"
            );
        }
    }

    /// The class of a route in metrics.
    fn class(route: &Route) -> Option<&'static str> {
        Some(match route {
            Route::CacheInfo => "cache_info",
            Route::Narinfo(_) => "narinfo",
            Route::Listing(_) => "listing",
            Route::Nar { .. } | Route::NarOfNoHash(_) => "nar",
            Route::Log(_) => "log",
            Route::Realisation(_) => "realisation",
            Route::Narinfos => "narinfos",
            Route::Closure(_) => "closure",
            Route::NoPath | Route::Unknown => return None,
        })
    }

    fn h() -> HashPart {
        HashPart::parse(H.as_bytes()).unwrap()
    }

    fn nar(nar_hash: bool) -> Route {
        let nar_hash = nar_hash.then(|| NarHash::parse_nixbase32(N.as_bytes()).unwrap());
        Route::Nar {
            hash_part: h(),
            nar_hash,
        }
    }

    #[test]
    fn narinfos() {
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
    fn nars() {
        check("/nar/{H}-{N}.nar", nar(true));
        check("/nar/{H}.nar", nar(false));
        check("/nar/{H}.nar?hash=x", nar(false));
        check("/nar/{N}.nar?hash={H}", nar(true));
        check("/nar/{N}.nar?a=b&hash={H}&c", nar(true));
        check("/nar/{N}.nar?hash=x", Route::NoPath);
        check("/nar/{N}.nar", Route::NoPath);
        check("/nar/{H}-123.nar", Route::NarOfNoHash(h()));
        check("/nar/x-{N}.nar", Route::NoPath);
        for other in [
            "/nar/{H}-{N}.nar.xz",
            "/nar/.nar",
            "/nar/",
            "/nar/{H}-.nar",
            "/nar/{H}-{N}-a.nar",
        ] {
            check(other, Route::Unknown);
        }
    }

    #[test]
    fn the_rest() {
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
