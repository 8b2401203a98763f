//! Private parsers, for the targets in `fuzz/` alone.
#![allow(
    missing_docs,
    clippy::allow_attributes,
    reason = "no part of the interface"
)]

use samovar_nix::{HashPart, StoreDir};

use crate::access;
use crate::answer::bulk;
use crate::route::{self, Route};

/// The destination of a URL: the hash part that is looked up, and the name that becomes part of a
/// file's path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Destination {
    pub hash_part: Option<HashPart>,
    pub log: Option<String>,
    pub realisation: Option<String>,
    pub is_known: bool,
}

#[must_use]
pub fn route(path: &[u8], query: Option<&[u8]>) -> Destination {
    let route = route::route(path, query);
    let is_known = route != Route::Unknown;
    let hash_part = route.hash_part();
    let (log, realisation) = match route {
        Route::Log(path) => (Some(path.base_name().to_owned()), None),
        Route::Realisation(id) => (None, Some(id.to_string())),
        _ => (None, None),
    };
    Destination {
        hash_part: hash_part.filter(|_| log.is_none()),
        log,
        realisation,
        is_known,
    }
}

/// The hash parts in the body of `POST /narinfos`; `None` if it is refused.
#[must_use]
pub fn list(body: &[u8], count_max: usize) -> Option<Vec<HashPart>> {
    bulk::parse(body, &StoreDir::default(), count_max).ok()
}

/// User name and password of HTTP Basic.
pub type Pair = (Vec<u8>, Vec<u8>);

/// What an `Authorization` field means: a pair, or a token.
#[must_use]
pub fn credentials(value: &[u8]) -> Option<Result<Pair, Vec<u8>>> {
    access::fuzzing::credentials(value)
}

/// Whom a trusted proxy at 10.0.0.1 was asked by; proxies are 10.0.0.0/8.
#[must_use]
pub fn forwarded(values: &[&[u8]], is_rfc7239: bool) -> Option<std::net::IpAddr> {
    access::fuzzing::forwarded(values, is_rfc7239)
}

/// How many users or tokens a file has; the error is the line that is wrong.
///
/// # Errors
///
/// The number of the line, counted from one.
pub fn secrets(text: &str, is_users: bool) -> Result<usize, usize> {
    access::fuzzing::secrets(text, is_users)
}
