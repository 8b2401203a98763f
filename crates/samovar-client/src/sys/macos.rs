//! System calls and paths of macOS.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, statat};

use super::Origin;

/// Directory with the descriptors of the process.
pub(crate) const DESCRIPTORS: &str = "/dev/fd";

/// Returns a path of the program of this process.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// Does nothing: the kernel has no such setting for a process.
pub(crate) fn hide_memory() -> io::Result<()> {
    Ok(())
}

/// Returns the origin of a directory.
pub(crate) fn origin(directory: &Path) -> io::Result<Origin> {
    let found = statat(CWD, directory, AtFlags::SYMLINK_NOFOLLOW)?;
    let nanoseconds = u32::try_from(found.st_birthtime_nsec).unwrap_or_default();
    let born = (found.st_birthtime, nanoseconds);
    Ok(Origin {
        inode: found.st_ino,
        device: found.st_dev.cast_unsigned().into(),
        born: (born != (0, 0)).then_some(born),
    })
}
