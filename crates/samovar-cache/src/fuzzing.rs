//! Private parsers, exported only for the fuzz targets in `fuzz/`.
#![allow(
    missing_docs,
    clippy::allow_attributes,
    reason = "no part of the interface"
)]

use samovar_nix::{HashPart, StoreDir};

pub use crate::access::fuzzing::{Pair, credentials, forwarded, secrets};
use crate::answer::bulk;
use crate::route::Route;
use crate::route::build_id::Artifact;
pub use crate::upload::fuzzing::{pin_body, pin_name};

/// The properties of a routed URL that fuzz targets check: the hash part to look up in the store;
/// of a build log the base name, of a realisation the ID, and of a source file its names, which
/// become part of a file's path; and whether any route matched.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Destination {
    pub hash_part: Option<HashPart>,
    pub log: Option<String>,
    pub realisation: Option<String>,
    pub source: Vec<Vec<u8>>,
    pub is_known: bool,
}

#[must_use]
pub fn route(path: &[u8], query: Option<&[u8]>) -> Destination {
    let route = Route::of(path, query);
    let is_known = !matches!(route, Route::Upload(_) | Route::Page(_) | Route::Unknown(_));
    let hash_part = route.hash_part();
    let (log, realisation, source) = match route {
        Route::Log(path) => (Some(path.base_name().to_owned()), None, Vec::new()),
        Route::Realisation(id) => (None, Some(id.to_string()), Vec::new()),
        Route::Artifact(_, Artifact::Source(names)) => (None, None, names),
        _ => (None, None, Vec::new()),
    };
    Destination {
        hash_part: hash_part.filter(|_| log.is_none()),
        log,
        realisation,
        source,
        is_known,
    }
}

/// Parses the body of `POST /narinfos` into hash parts; `None` if it is refused.
#[must_use]
pub fn list(body: &[u8], count_max: usize) -> Option<Vec<HashPart>> {
    bulk::parse(body, &StoreDir::default(), count_max).ok()
}
