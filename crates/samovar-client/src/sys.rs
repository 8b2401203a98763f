//! System calls and paths that are not the same on all systems.
//!
//! The functions are in a module of the system, with the same names in each. The rest of the crate
//! does not ask which system it is on.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(target_os = "macos")]
use macos as system;
pub(crate) use system::{DESCRIPTORS, hide_memory, origin, own_program};

/// What the file system says about the origin of a directory.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) inode: u64,
    pub(crate) device: u64,
    /// Time of birth, in seconds since 1970 and nanoseconds; `None` if the file system has none.
    pub(crate) born: Option<(i64, u32)>,
}
