//! Label values for the metrics of requests. Their number is fixed, whatever clients send.

use samovar_http::End;
use samovar_http::http::{Method, Version};

/// The class of a request, by the form of its URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A request for `nix-cache-info`.
    CacheInfo,
    /// A request for a narinfo.
    Narinfo,
    /// A request for a NAR or a range of it.
    Nar,
    /// A request for the listing of a NAR.
    Listing,
    /// A request for a build log.
    Log,
    /// A request for a realisation.
    Realisation,
    /// A bulk query for a list of narinfos.
    Narinfos,
    /// A bulk query for the narinfos of a closure.
    Closure,
    /// A request for debug information, by a build ID.
    DebugInfo,
    /// A request for a page of the web interface.
    Page,
    /// A request below `/upload`, or a PUT: a client pushes.
    Upload,
    /// A request for any other URL.
    Other,
}

impl Class {
    /// The names of the classes, in the order of declaration.
    pub(crate) const NAMES: [&'static str; 12] = [
        "cache_info",
        "narinfo",
        "nar",
        "listing",
        "log",
        "realisation",
        "narinfos",
        "closure",
        "debug_info",
        "page",
        "upload",
        "other",
    ];

    pub(crate) const ALL: [Self; 12] = [
        Self::CacheInfo,
        Self::Narinfo,
        Self::Nar,
        Self::Listing,
        Self::Log,
        Self::Realisation,
        Self::Narinfos,
        Self::Closure,
        Self::DebugInfo,
        Self::Page,
        Self::Upload,
        Self::Other,
    ];

    /// Returns the class's name in the metrics and in the access log.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// The method of a request; rare methods share one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MethodClass {
    Get,
    Head,
    Post,
    Put,
    Other,
}

impl MethodClass {
    pub(crate) const NAMES: [&'static str; 5] = ["GET", "HEAD", "POST", "PUT", "other"];

    pub(crate) fn of(method: Method) -> Self {
        match method {
            Method::Get => Self::Get,
            Method::Head => Self::Head,
            Method::Post => Self::Post,
            Method::Put => Self::Put,
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
    pub(crate) const NAMES: [&'static str; 3] = ["http/1.0", "http/1.1", "http/2"];

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
    /// Status 404, counted separately because clients often request missing paths.
    Absent,
    ClientError,
    ServerError,
}

impl StatusClass {
    pub(crate) const NAMES: [&'static str; 5] = ["2xx", "3xx", "404", "4xx", "5xx"];

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

/// The way in which a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Complete,
    AbortedByClient,
    AbortedByServer,
}

impl Outcome {
    pub(crate) const NAMES: [&'static str; 3] =
        ["complete", "aborted-by-client", "aborted-by-server"];

    pub(crate) fn of(end: End) -> Self {
        match end {
            End::Complete => Self::Complete,
            End::Left => Self::AbortedByClient,
            End::Cut => Self::AbortedByServer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_name() {
        assert_eq!(Class::Other.name(), "other");
        assert_eq!(Class::NAMES[Class::Closure as usize], "closure");
        assert_eq!(MethodClass::NAMES[MethodClass::Other as usize], "other");
        assert_eq!(Protocol::NAMES[Protocol::Http2 as usize], "http/2");
        assert_eq!(StatusClass::NAMES[StatusClass::ServerError as usize], "5xx");
        let last = Outcome::AbortedByServer;
        assert_eq!(Outcome::NAMES[last as usize], "aborted-by-server");
    }

    #[test]
    fn statuses_are_classified_by_hundreds_and_404_separately() {
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
