//! The words of HTTP that both the protocol core and handlers use.

pub mod accept_encoding;
mod method;
mod pairs;
pub mod percent;
pub mod range;
mod status;

pub use method::{Method, Version};
pub use pairs::Pairs;
pub use status::Status;
