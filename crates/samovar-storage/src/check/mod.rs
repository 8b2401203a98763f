//! Checks of a storage: a quick one of its parts, and one of each path and file.

mod finding;
pub mod fsck;
mod inspect;

pub use inspect::{Foreign, Inspection, inspect};
