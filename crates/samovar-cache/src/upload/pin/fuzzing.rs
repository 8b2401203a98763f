//! Entry points for the fuzz targets in `fuzz/`.

use samovar_protocol::pins::Put;

use crate::route::Route;
use crate::route::upload::UploadRoute;

/// Parses the body of a request that sets a pin, and writes it again. `None` if it is refused.
#[must_use]
pub fn pin_body(body: &[u8]) -> Option<String> {
    Some(Put::parse(body).ok()?.text() + "\n")
}

/// Returns the name of the pin in a URL.
#[must_use]
pub fn pin_name(path: &[u8]) -> Option<String> {
    match Route::of(path, None) {
        Route::Upload(UploadRoute::Pin(name)) => name.map(|name| name.to_string()),
        _ => None,
    }
}
