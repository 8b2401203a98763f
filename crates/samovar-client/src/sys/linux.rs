//! System calls and paths of Linux.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use super::Origin;

/// Directory with the descriptors of the process.
pub(crate) const DESCRIPTORS: &str = "/proc/self/fd";

/// Returns a path of the program of this process.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    Ok("/proc/self/exe".into())
}

/// Hides the memory of this process from other processes of the user.
pub(crate) fn hide_memory() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Returns the origin of a directory.
pub(crate) fn origin(directory: &Path) -> io::Result<Origin> {
    let flags = StatxFlags::INO | StatxFlags::BTIME;
    let found = statx(CWD, directory, AtFlags::SYMLINK_NOFOLLOW, flags)?;
    let is_known = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    let born = (found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
    Ok(Origin {
        inode: found.stx_ino,
        device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
        born: (is_known && born != (0, 0)).then_some(born),
    })
}
