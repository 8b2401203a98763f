//! The class of a request, derived from its path.
//!
//! The number of classes is fixed, because they are label values and clients choose the paths. Only
//! the end of a path is examined, so the prefix of a cache does not matter.

use samovar_http::http::{Method, Version};
use samovar_nix::HashPart;

/// Length of a hash part in characters.
pub(crate) const HASH_PART_LEN: usize = 32;
/// Length of a NAR hash in a URL, in characters.
const NAR_HASH_LEN: usize = 52;

/// A hash part as sent by the client, not validated.
pub(crate) type RawHashPart = [u8; HASH_PART_LEN];

/// The class of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    CacheInfo,
    Narinfo,
    Nar,
    Listing,
    Log,
    Realisation,
    Narinfos,
    Closure,
    Page,
    Other,
}

impl Class {
    pub(crate) const ALL: [(Self, &'static str); 10] = [
        (Self::CacheInfo, "cache_info"),
        (Self::Narinfo, "narinfo"),
        (Self::Nar, "nar"),
        (Self::Listing, "listing"),
        (Self::Log, "log"),
        (Self::Realisation, "realisation"),
        (Self::Narinfos, "narinfos"),
        (Self::Closure, "closure"),
        (Self::Page, "page"),
        (Self::Other, "other"),
    ];

    /// Returns the class of a path, and the hash part in it.
    pub(crate) fn of(path: &[u8]) -> (Self, Option<&RawHashPart>) {
        if let Some(name) = path.strip_suffix(b".narinfo") {
            return (Self::Narinfo, name.last_chunk());
        }
        if let Some(name) = path.strip_suffix(b".nar") {
            let end = name.len().saturating_sub(NAR_HASH_LEN + 1);
            let hash_part = match name.split_at(end) {
                (before, [b'-', ..]) => before.last_chunk(),
                // `/nar/HASHPART.nar`; or a NAR hash, with the hash part in the query.
                _ => name
                    .strip_prefix(b"/nar/")
                    .and_then(|name| name.try_into().ok()),
            };
            return (Self::Nar, hash_part);
        }
        (Self::of_rare(path), None)
    }

    fn of_rare(path: &[u8]) -> Self {
        let has = |part: &[u8]| path.windows(part.len()).any(|window| window == part);
        if path.ends_with(b"/nix-cache-info") {
            Self::CacheInfo
        } else if path.ends_with(b".ls") {
            Self::Listing
        } else if path.ends_with(b".doi") {
            Self::Realisation
        } else if path.ends_with(b"/narinfos") {
            Self::Narinfos
        } else if has(b"/log/") {
            Self::Log
        } else if has(b"/closure/") {
            Self::Closure
        } else if path.ends_with(b"/") || [&b"/serve/"[..], b"/path/", b"/-/"].into_iter().any(has)
        {
            Self::Page
        } else {
            Self::Other
        }
    }
}

/// Returns the class of a request with this path, as named in the metrics, and the hash part in the
/// path, if any.
#[must_use]
pub fn kind_of(path: &[u8]) -> (&'static str, Option<&str>) {
    let (class, hash_part) = Class::of(path);
    let (_, name) = Class::ALL
        .get(class as usize)
        .copied()
        .unwrap_or((class, "other"));
    let hash_part = hash_part.filter(|raw| HashPart::parse(*raw).is_ok());
    (
        name,
        hash_part.and_then(|raw| std::str::from_utf8(raw).ok()),
    )
}

/// The method of a request, as distinguished in the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MethodClass {
    Get,
    Head,
    Post,
    Other,
}

impl MethodClass {
    pub(crate) const ALL: [(Self, &'static str); 4] = [
        (Self::Get, "GET"),
        (Self::Head, "HEAD"),
        (Self::Post, "POST"),
        (Self::Other, "other"),
    ];

    pub(crate) fn of(method: Method) -> Self {
        match method {
            Method::Get => Self::Get,
            Method::Head => Self::Head,
            Method::Post => Self::Post,
            _ => Self::Other,
        }
    }
}

/// The protocol version of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http10,
    Http11,
    Http2,
}

impl Protocol {
    pub(crate) const ALL: [(Self, &'static str); 3] = [
        (Self::Http10, "http/1.0"),
        (Self::Http11, "http/1.1"),
        (Self::Http2, "http/2"),
    ];

    pub(crate) fn of(version: Version) -> Self {
        match version {
            Version::Http10 => Self::Http10,
            Version::Http2 => Self::Http2,
            _ => Self::Http11,
        }
    }
}

/// The class of a status. 404 is separate from other 4xx.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusClass {
    Success,
    Redirect,
    /// 404, counted separately because missing paths are requested often.
    Absent,
    ClientError,
    ServerError,
}

impl StatusClass {
    pub(crate) const ALL: [(Self, &'static str); 5] = [
        (Self::Success, "2xx"),
        (Self::Redirect, "3xx"),
        (Self::Absent, "404"),
        (Self::ClientError, "4xx"),
        (Self::ServerError, "5xx"),
    ];

    pub(crate) fn of(code: u16) -> Self {
        match code {
            404 => Self::Absent,
            ..300 => Self::Success,
            300..400 => Self::Redirect,
            400..500 => Self::ClientError,
            500.. => Self::ServerError,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_in_the_order_of_their_kinds() {
        for (index, (class, _)) in Class::ALL.into_iter().enumerate() {
            assert_eq!(index, class as usize);
        }
        for (index, (class, _)) in MethodClass::ALL.into_iter().enumerate() {
            assert_eq!(index, class as usize);
        }
        for (index, (class, _)) in Protocol::ALL.into_iter().enumerate() {
            assert_eq!(index, class as usize);
        }
        for (index, (class, _)) in StatusClass::ALL.into_iter().enumerate() {
            assert_eq!(index, class as usize);
        }
    }

    #[test]
    fn every_form_of_url_has_its_class() {
        const PART: &str = "p4pclmv1gyja5kzc26npqpia1qqxrf0l";
        let nar_hash = "1".repeat(NAR_HASH_LEN);
        let with = [
            (format!("/{PART}.narinfo"), Class::Narinfo),
            (format!("/team-a/{PART}.narinfo"), Class::Narinfo),
            (format!("/nar/{PART}-{nar_hash}.nar"), Class::Nar),
            (format!("/team-a/nar/{PART}-{nar_hash}.nar"), Class::Nar),
            (format!("/nar/{PART}.nar"), Class::Nar),
        ];
        for (path, class) in with {
            let part = PART.as_bytes().first_chunk();
            assert_eq!(Class::of(path.as_bytes()), (class, part), "{path}");
        }
        let without = [
            ("/nix-cache-info", Class::CacheInfo),
            ("/x.narinfo", Class::Narinfo),
            (&*format!("/nar/{nar_hash}.nar"), Class::Nar),
            ("/.nar", Class::Nar),
            ("/x.ls", Class::Listing),
            ("/log/x.drv", Class::Log),
            ("/realisations/sha256:x!out.doi", Class::Realisation),
            ("/narinfos", Class::Narinfos),
            ("/a/closure/x", Class::Closure),
            ("/", Class::Page),
            ("/serve/x/bin/sh", Class::Page),
            ("/favicon.ico", Class::Other),
            ("", Class::Other),
        ];
        for (path, class) in without {
            assert_eq!(Class::of(path.as_bytes()), (class, None), "{path}");
        }
    }

    #[test]
    fn statuses_are_told_by_their_hundreds_and_404() {
        for (code, class) in [
            (101, StatusClass::Success),
            (206, StatusClass::Success),
            (304, StatusClass::Redirect),
            (403, StatusClass::ClientError),
            (404, StatusClass::Absent),
            (405, StatusClass::ClientError),
            (503, StatusClass::ServerError),
        ] {
            assert_eq!(StatusClass::of(code), class, "{code}");
        }
    }
}
