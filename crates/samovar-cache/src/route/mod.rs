//! Parses request URLs of a binary cache into routes.
//!
//! There is one parser and one type for all URLs of a cache: the cache protocol, uploads, and
//! pages. A URL whose meaning depends on the configuration of the cache is a separate variant, and
//! the cache decides what it means.
//!
//! # Source
//!
//! The patterns of nix-serve (`nix-serve.psgi`) and nix-serve-ng (`src/Main.hs`), and harmonia's
//! form of NAR URLs: clients keep NAR URLs for 30 days, so the URLs of a replaced server must still
//! work.
//! `/buildid/` has the URLs of debuginfod. `/v1/` and `/public-key` are eris' URLs and one that
//! clients guess. `/cache-info.json`, `/narinfos` and `/closure/` are Samovar's: no other known
//! server answers them, and no Nix client requests them.

pub(crate) mod build_id;
pub(crate) mod page;
pub(crate) mod path;
#[cfg(test)]
mod tests;
pub(crate) mod upload;

use samovar_http::http::Method;
use samovar_metrics::Class;
use samovar_nix::narinfo::{Compression, NarCoding};
use samovar_nix::{HashPart, NarHash, StorePath};
use samovar_protocol::names::FileName;
use samovar_store::RealisationId;

use build_id::{Artifact, BuildId};
use page::PageRoute;
use upload::{Resource, UploadRoute};

/// Length of a hash part in characters.
const HASH_PART_LEN: usize = 32;

/// Length of a NAR hash in a URL, in characters.
const NAR_HASH_LEN: usize = 52;

/// The resource that a URL's path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    /// `/nix-cache-info`
    CacheInfo,
    /// Another URL at which the cache describes itself.
    About(AboutRoute),
    /// `/<hash part>.narinfo`. The query states its form: see `NarinfoForm`.
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
    /// `/nar/<hash part>-<NAR hash>.nar`, and the suffix of a compression that the store's own NARs
    /// do not have: a NAR of an upstream cache.
    UpstreamNar {
        hash_part: HashPart,
        nar_hash: NarHash,
        compression: Compression,
    },
    /// A NAR URL with a valid hash part and an invalid NAR hash: no path has such a NAR.
    NarOfNoHash(HashPart),
    /// `/nar/<file hash>.nar…`: the file of an uploaded NAR; and the route of this URL without
    /// uploads, which may be a NAR of the store.
    File(FileName, Box<Self>),
    /// `/log/<base name>`
    Log(StorePath),
    /// `/realisations/<id>.doi`, `/build-trace-v2/<derivation>/<output>.doi`
    Realisation(RealisationId),
    /// `/debuginfo/<build ID>`, where the debug information of a build ID is; `None`: the rest is
    /// no build ID. Clients also PUT there.
    DebugInfo(Option<BuildId>),
    /// `/buildid/<build ID>/…`: a file that a debuginfod client requests.
    Artifact(BuildId, Artifact),
    /// `/metrics`. Only the cache at the root may have it.
    Metrics,
    /// `/narinfos`, with POST
    Narinfos,
    /// `/closure/<hash part>`
    Closure(HashPart),
    /// A URL below `/upload/`.
    Upload(UploadRoute),
    /// A page of the web interface.
    Page(PageRoute),
    /// The URL has the form of a path's URL of this class, but its hash part or name is invalid: no
    /// such path exists.
    NoPath(Class),
    /// The URL matches no pattern. The class is the class of similar URLs.
    Unknown(Class),
}

/// A URL at which a cache describes itself, besides `/nix-cache-info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AboutRoute {
    /// `/cache-info.json`
    Json,
    /// `/public-key`, `/v1/public-key`
    PublicKeys,
    /// `/v1/version`
    Version,
}

impl AboutRoute {
    /// Parses a path that is decoded. `None`: it has another meaning.
    fn of_decoded(path: &[u8]) -> Option<Self> {
        Some(match path {
            b"/cache-info.json" => Self::Json,
            b"/public-key" | b"/v1/public-key" => Self::PublicKeys,
            b"/v1/version" => Self::Version,
            _ => return None,
        })
    }
}

impl Route {
    /// Returns the hash part of the path that is requested, or one of whose files is, whether or
    /// not such a path exists; `None` if the URL has none. Pages about a path are not the path.
    pub(crate) fn hash_part(&self) -> Option<HashPart> {
        match self {
            Self::Narinfo(hash_part)
            | Self::Listing(hash_part)
            | Self::Nar { hash_part, .. }
            | Self::UpstreamNar { hash_part, .. }
            | Self::NarOfNoHash(hash_part)
            | Self::Closure(hash_part) => Some(*hash_part),
            Self::File(_, route) | Self::Upload(UploadRoute::Of(route)) => route.hash_part(),
            Self::Page(PageRoute::Serve { hash_part, .. }) => Some(*hash_part),
            Self::Log(path) => Some(path.hash_part()),
            Self::CacheInfo
            | Self::About(_)
            | Self::Metrics
            | Self::Realisation(_)
            | Self::DebugInfo(_)
            | Self::Artifact(..)
            | Self::Narinfos
            | Self::Upload(_)
            | Self::Page(_)
            | Self::NoPath(_)
            | Self::Unknown(_) => None,
        }
    }

    /// Whether answering this route reads store files, and so may wait for a disk. Requests that
    /// read only the database use another lane and do not queue behind these.
    pub(crate) fn reads_files(&self) -> bool {
        match self {
            Self::Nar { .. }
            | Self::File(..)
            | Self::Listing(_)
            | Self::Log(_)
            | Self::DebugInfo(_)
            | Self::Artifact(..)
            | Self::Upload(_) => true,
            Self::CacheInfo
            | Self::About(_)
            | Self::Metrics
            | Self::Narinfo(_)
            | Self::UpstreamNar { .. }
            | Self::NarOfNoHash(_)
            | Self::Realisation(_)
            | Self::Narinfos
            | Self::Closure(_)
            | Self::Page(_)
            | Self::NoPath(_)
            | Self::Unknown(_) => false,
        }
    }

    /// Returns what clients may upload to this URL, or read from it; `None` if nothing.
    pub(crate) fn resource(&self) -> Option<Resource<'_>> {
        Some(match self {
            Self::CacheInfo => Resource::CacheInfo,
            Self::Narinfo(hash_part) => Resource::Narinfo(*hash_part),
            Self::Listing(hash_part) => Resource::Listing(*hash_part),
            Self::File(name, _) => Resource::Nar(*name),
            Self::Log(path) => Resource::Log(path),
            Self::Realisation(id) => Resource::Realisation(id),
            Self::DebugInfo(_) => Resource::DebugInfo,
            Self::Upload(UploadRoute::Of(route)) => return route.resource(),
            _ => return None,
        })
    }

    /// Whether a request of any method is about a push or a pin, and needs a token.
    pub(crate) fn has_own_methods(&self) -> bool {
        matches!(self, Self::Upload(route) if !matches!(route, UploadRoute::Of(_)))
    }

    /// Returns the class of requests with this method, for the metrics and the access log.
    pub(crate) fn class(&self, method: Method) -> Class {
        let class = match self {
            Self::CacheInfo | Self::About(_) => Class::CacheInfo,
            Self::Narinfo(_) => Class::Narinfo,
            Self::Listing(_) => Class::Listing,
            Self::Nar { .. } | Self::UpstreamNar { .. } | Self::NarOfNoHash(_) | Self::File(..) => {
                Class::Nar
            }
            Self::Log(_) => Class::Log,
            Self::Realisation(_) => Class::Realisation,
            Self::Narinfos => Class::Narinfos,
            Self::Closure(_) => Class::Closure,
            Self::DebugInfo(_) | Self::Artifact(..) => Class::DebugInfo,
            Self::Upload(_) => Class::Upload,
            Self::Metrics | Self::Page(PageRoute::Version) => Class::Other,
            Self::Page(_) => Class::Page,
            Self::NoPath(class) | Self::Unknown(class) => *class,
        };
        // What a client uploads says nothing about what clients look for.
        match (method, class) {
            (_, Class::Page | Class::Other) => class,
            (Method::Put, _) => Class::Upload,
            _ => class,
        }
    }

    /// Returns the route of a path that is still percent-encoded, without the prefix it is mounted
    /// under.
    pub(crate) fn of(path: &[u8], query: Option<&[u8]>) -> Self {
        Self::parse(path, query, true)
    }

    /// As [`of`](Self::of). Without uploads, no route is a [`File`](Self::File).
    pub(crate) fn parse(path: &[u8], query: Option<&[u8]>, has_uploads: bool) -> Self {
        let Some(decoded) = path::decode(path) else {
            let upload = UploadRoute::of_undecodable(path);
            return upload.map_or(Self::Unknown(Class::Other), Self::Upload);
        };
        let route = match decoded.strip_prefix(b"/") {
            Some(path) => own(path, query, has_uploads),
            None => Self::Unknown(Class::Other),
        };
        if let Self::Unknown(class) = route {
            return Self::rare(&decoded, query, class);
        }
        route
    }

    /// Parses a decoded path that names neither a store path nor a file.
    #[cold]
    fn rare(path: &[u8], query: Option<&[u8]>, class: Class) -> Self {
        if let Some(rest) = path.strip_prefix(b"/upload/") {
            return Self::Upload(UploadRoute::of_decoded(rest, query));
        }
        if let Some(about) = AboutRoute::of_decoded(path) {
            return Self::About(about);
        }
        if path == b"/metrics" {
            return Self::Metrics;
        }
        PageRoute::of_decoded(path).map_or(Self::Unknown(class), Self::Page)
    }
}

/// Parses a decoded path without its first slash. The most frequent forms come first.
fn own(path: &[u8], query: Option<&[u8]>, has_uploads: bool) -> Route {
    let text = |name| std::str::from_utf8(name).ok();
    if let Some(name) = path.strip_suffix(b".narinfo") {
        return of_hash_part(name, Class::Narinfo, Route::Narinfo);
    }
    if let Some(file) = path.strip_prefix(b"nar/") {
        return match file.get(HASH_PART_LEN) {
            Some(b'-') => nar(file, query),
            _ if !has_uploads => nar(file, query),
            _ => match FileName::parse(file) {
                Some(name) => Route::File(name, Box::new(nar(file, query))),
                None => nar(file, query),
            },
        };
    }
    match path {
        b"nix-cache-info" => return Route::CacheInfo,
        b"narinfos" => return Route::Narinfos,
        b"upload" => return Route::Unknown(Class::Upload),
        _ => {}
    }
    // A source file may have any name.
    if let Some(path) = path.strip_prefix(b"buildid/") {
        return build_id::of_artifact(path);
    }
    if let Some(name) = path.strip_suffix(b".ls") {
        return of_hash_part(name, Class::Listing, Route::Listing);
    }
    if let Some(name) = path.strip_prefix(b"closure/") {
        return of_hash_part(name, Class::Closure, Route::Closure);
    }
    if let Some(name) = path.strip_prefix(b"log/") {
        let path = text(name).and_then(|name| StorePath::from_base_name(name).ok());
        return path.map_or(Route::Unknown(Class::Log), Route::Log);
    }
    if let Some(name) = path.strip_prefix(b"debuginfo/") {
        return build_id::of_index(name);
    }
    match path.strip_suffix(b".doi") {
        Some(name)
            if name.starts_with(b"realisations/") || name.starts_with(b"build-trace-v2/") =>
        {
            let id = text(name).and_then(realisation);
            id.map_or(Route::Unknown(Class::Realisation), Route::Realisation)
        }
        _ => Route::Unknown(Class::Other),
    }
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
    const SEGMENTS: [&str; 13] = [
        "build-trace-v2",
        "buildid",
        "cache-info.json",
        "closure",
        "debuginfo",
        "log",
        "nar",
        "narinfos",
        "nix-cache-info",
        "public-key",
        "realisations",
        "upload",
        "v1",
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

/// Parses a hash part. nix-serve's pattern for hash parts is `[0-9a-z]+`: a name that matches it
/// without being a hash part is [`Route::NoPath`], any other name is [`Route::Unknown`].
fn of_hash_part(name: &[u8], class: Class, route: impl FnOnce(HashPart) -> Route) -> Route {
    match HashPart::parse(name) {
        Ok(hash_part) => route(hash_part),
        Err(_) if is_word(name) => Route::NoPath(class),
        Err(_) => Route::Unknown(class),
    }
}

/// Parses the name of a NAR of the store.
fn nar(file: &[u8], query: Option<&[u8]>) -> Route {
    let (name, query, coding) = match file.strip_suffix(b".zst") {
        Some(name) if name.get(HASH_PART_LEN) == Some(&b'-') => (name, None, NarCoding::Zstd),
        Some(_) => return Route::Unknown(Class::Other),
        None => (file, query, NarCoding::Identity),
    };
    let Some(name) = name.strip_suffix(b".nar") else {
        return upstream_nar(file).unwrap_or(Route::Unknown(Class::Other));
    };
    let (hash_part, nar_hash) = split_nar_name(name, query);
    if nar_hash.is_some_and(|nar_hash| !is_word(nar_hash)) {
        return Route::Unknown(Class::Nar);
    }
    of_hash_part(hash_part, Class::Nar, |hash_part| {
        match nar_hash.map(parse_nar_hash) {
            Some(None) => Route::NarOfNoHash(hash_part),
            nar_hash => Route::Nar {
                hash_part,
                nar_hash: nar_hash.flatten(),
                coding,
            },
        }
    })
}

/// Parses the name of a NAR of an upstream cache, as [`samovar_upstream::local::nar_url`] makes it.
#[cold]
fn upstream_nar(file: &[u8]) -> Option<Route> {
    let (name, suffix) = file.split_at_checked(HASH_PART_LEN + 1 + NAR_HASH_LEN)?;
    let (hash_part, nar_hash) = split_nar_name(name, None);
    let suffix = std::str::from_utf8(suffix.strip_prefix(b".nar")?).ok()?;
    Some(Route::UpstreamNar {
        hash_part: HashPart::parse(hash_part).ok()?,
        nar_hash: parse_nar_hash(nar_hash?)?,
        compression: samovar_upstream::local::compression_of(suffix)?,
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
