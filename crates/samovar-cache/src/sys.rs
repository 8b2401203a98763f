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
pub(crate) use system::{WakeUp, be_nice, is_in_memory, random, unnamed_file};
