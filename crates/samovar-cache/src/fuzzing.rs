//! Parsers that are nobody else's business, for the targets in `fuzz/` alone.
#![allow(
    missing_docs,
    clippy::allow_attributes,
    reason = "no part of the interface"
)]

use samovar_nix::{HashPart, StoreDir};

use crate::access;
use crate::bulk;
use crate::route::{self, Route};

/// What a target leads to: the hash part that is looked up, and the name that becomes part of a
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
    let mut destination = Destination {
        is_known,
        ..Destination::default()
    };
    match route {
        Route::Narinfo(hash_part)
        | Route::Listing(hash_part)
        | Route::Nar { hash_part, .. }
        | Route::NarOfNoHash(hash_part)
        | Route::Closure(hash_part) => destination.hash_part = Some(hash_part),
        Route::Log(path) => destination.log = Some(path.base_name().to_owned()),
        Route::Realisation(id) => destination.realisation = Some(id.to_string()),
        Route::CacheInfo | Route::Narinfos | Route::NoPath | Route::Unknown => {}
    }
    destination
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
