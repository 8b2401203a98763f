//! Overlays of the kernel: a snapshot below, and a local directory with the changes above.

pub mod changes;
pub mod layers;
pub mod users;

/// Permissions that the owner has on all directories of a snapshot below an overlay. Without them,
/// users other than root could not change a snapshot with read-only directories.
pub const DIRECTORY_MODE: u16 = 0o700;
