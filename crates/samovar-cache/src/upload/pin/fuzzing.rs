//! Entry points for the fuzz targets in `fuzz/`.

use samovar_protocol::pins::Put;
use samovar_storage::metadata::{Tag, Tags};

use super::condition::{self, Weak};
use crate::route::Route;
use crate::route::upload::UploadRoute;

/// Parses the body of a request that sets a pin, and writes it again. `None` if it is refused.
#[must_use]
pub fn pin_body(body: &[u8]) -> Option<String> {
    Some(Put::parse(body).ok()?.text() + "\n")
}

/// Parses a list of entity tags. Returns its tags, or `None` if the list is refused. The
/// inner `None` is `*`.
#[must_use]
pub fn pin_tags(text: &[u8], is_strong: bool) -> Option<Option<Vec<String>>> {
    let weak = match is_strong {
        true => Weak::MatchNothing,
        false => Weak::AreStrong,
    };
    Some(match condition::parse(text, weak)? {
        Tags::Any => None,
        Tags::Listed(tags) => Some(tags.into_iter().map(text_of).collect()),
    })
}

fn text_of(tag: Tag) -> String {
    match tag.lineage {
        Some(lineage) => format!("{}-{lineage}", tag.generation),
        None => tag.generation.to_string(),
    }
}

/// Returns the name of the pin in a URL.
#[must_use]
pub fn pin_name(path: &[u8]) -> Option<String> {
    match Route::of(path, None) {
        Route::Upload(UploadRoute::Pin(name)) => name.map(|name| name.to_string()),
        _ => None,
    }
}
