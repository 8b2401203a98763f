//! System calls of macOS.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

/// Returns the time since the boot of the machine, including that in which it was suspended.
pub(crate) fn boot_time() -> Duration {
    // Unlike on Linux, this clock does not stop while the machine is suspended.
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// Does nothing: the kernel has no such call.
pub(crate) fn start_writeback(_file: impl AsFd, _offset: u64, _len: u64) {}

/// Returns `false`: files are made durable one by one.
pub(crate) fn has_syncfs(_file: impl AsFd) -> bool {
    false
}

/// Fails with `NOSYS`.
pub(crate) fn syncfs(_file: impl AsFd) -> Result<(), Errno> {
    Err(Errno::NOSYS)
}
