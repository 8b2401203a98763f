//! The names in URLs.

mod push_id;

pub use push_id::PushId;
