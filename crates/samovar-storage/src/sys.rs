//! System calls that are not the same on all systems.
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
pub(crate) use system::{boot_time, has_syncfs, start_writeback, syncfs};

/// Returns the number of seconds since the boot of the machine, including those in which it was
/// suspended.
pub(crate) fn boot_seconds() -> i64 {
    i64::try_from(boot_time().as_secs()).unwrap_or(i64::MAX)
}
