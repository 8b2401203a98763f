//! Methods, status codes and header values.
//!
//! `samovar_http` exports this module as `samovar_http::http`.

pub mod accept_encoding;
pub mod media_type;
mod method;
mod pairs;
pub mod percent;
pub mod range;
mod status;

pub use media_type::MediaType;
pub use method::{Method, Version};
pub use pairs::Pairs;
pub use status::Status;

/// Trims optional white space: space and tab (RFC 9110, section 5.6.3).
pub(crate) fn trim_ows(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}
