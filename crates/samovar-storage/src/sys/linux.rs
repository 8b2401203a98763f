//! System calls of Linux.

use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::fs::Advice;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

/// Types of file systems whose `syncfs` makes all files durable: ext4, XFS, Btrfs, F2FS, ZFS and
/// tmpfs. The numbers are from `statfs(2)`.
const SYNCFS_TYPES: [i64; 6] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0x0102_1994,
];

/// Returns the time since the boot of the machine, including that in which it was suspended.
pub(crate) fn boot_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// Starts to write a part of a file to the disk. A failure does no harm.
pub(crate) fn start_writeback(file: impl AsFd, offset: u64, len: u64) {
    // For dirty pages, this advice starts writeback, and drops nothing.
    rustix::fs::fadvise(file, offset, NonZeroU64::new(len), Advice::DontNeed).ok();
}

/// Returns whether [`syncfs`] makes all files of the file system durable. On other file systems,
/// such as FUSE, it may only pass them on.
pub(crate) fn has_syncfs(file: impl AsFd) -> bool {
    let disk = rustix::fs::fstatfs(file);
    disk.is_ok_and(|disk| SYNCFS_TYPES.contains(&disk.f_type))
}

/// Makes all files of a file system durable.
pub(crate) fn syncfs(file: impl AsFd) -> Result<(), Errno> {
    rustix::fs::syncfs(file)
}
