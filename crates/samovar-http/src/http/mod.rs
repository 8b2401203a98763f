//! The words of HTTP that both the protocol core and handlers use.

mod method;
pub mod percent;
pub mod range;
mod status;

pub use method::{Method, Version};
pub use status::Status;
