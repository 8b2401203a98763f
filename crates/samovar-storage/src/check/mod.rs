//! Checks of a storage: a quick one of its parts, and one of each path and file.

mod finding;
pub mod fsck;
mod inspect;
mod remote;

pub use inspect::{Foreign, Inspection, inspect};
pub use remote::{DatabaseServer, RemoteInspection, inspect_remote};
