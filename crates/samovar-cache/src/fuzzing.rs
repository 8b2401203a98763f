//! Private parsers, exported only for the fuzz targets in `fuzz/`.
#![allow(
    missing_docs,
    clippy::allow_attributes,
    reason = "no part of the interface"
)]

use samovar_nix::{HashPart, StoreDir};

use crate::access;
use crate::answer::bulk;
use crate::route::{self, Route};

/// The properties of a routed URL that fuzz targets check: the hash part to look up in the store;
/// of a build log the base name, and of a realisation the ID, which become part of a file's path;
/// and whether any route matched.
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

/// Parses the body of `POST /narinfos` into hash parts; `None` if it is refused.
#[must_use]
pub fn list(body: &[u8], count_max: usize) -> Option<Vec<HashPart>> {
    bulk::parse(body, &StoreDir::default(), count_max).ok()
}

/// User name and password of HTTP Basic.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Parses an `Authorization` value into a pair or a token; `None` if it is invalid.
#[must_use]
pub fn credentials(value: &[u8]) -> Option<Result<Pair, Vec<u8>>> {
    access::fuzzing::credentials(value)
}

/// Returns the client's address behind a proxy at 10.0.0.1, where 10.0.0.0/8 are trusted proxies.
#[must_use]
pub fn forwarded(values: &[&[u8]], is_rfc7239: bool) -> Option<std::net::IpAddr> {
    access::fuzzing::forwarded(values, is_rfc7239)
}

/// Returns the number of users or tokens in a file.
///
/// # Errors
///
/// The number of the first wrong line, starting at 1.
pub fn secrets(text: &str, is_users: bool) -> Result<usize, usize> {
    access::fuzzing::secrets(text, is_users)
}
