//! Methods, status codes and header values.
//!
//! `samovar_http` exports this module as `samovar_http::http`.

pub mod accept_encoding;
mod method;
mod pairs;
pub mod percent;
pub mod range;
mod status;

pub use method::{Method, Version};
pub use pairs::Pairs;
pub use status::Status;
