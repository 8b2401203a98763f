//! System calls of Linux.

use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Flag of a descriptor that only locates an entry. Needs no permission to read it.
pub(crate) const LOCATE: OFlags = OFlags::PATH;

/// Flags of a descriptor that only locates a directory. Needs no permission to read it.
pub(crate) const LOCATE_DIRECTORY: OFlags = LOCATE.union(OFlags::DIRECTORY);

/// Opens an entry below a directory, on the same mount and not through a symbolic link. Fails with
/// `NOSYS` or `PERM` if the kernel or a container refuses `openat2`.
pub(crate) fn open_beneath(
    directory: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(directory, path, flags, mode, RESOLVE)
}

/// Sets the mode of a regular file or directory that a descriptor locates, also if the process may
/// not read it.
pub(crate) fn set_mode(fd: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::chmodat(CWD, link, mode, AtFlags::empty())
}

/// Removes an entry; fails with `ISDIR` if it is a directory.
pub(crate) fn unlink(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    rustix::fs::unlinkat(parent, name, AtFlags::empty())
}

/// Writes all changes on the file system of a file to stable storage (`syncfs`). Fails also with
/// earlier errors of writing to this file system.
pub(crate) fn sync(file: impl AsFd) -> Result<(), Errno> {
    rustix::fs::syncfs(file)
}

/// Creates a file without a name on the file system of a directory.
pub(crate) fn unnamed_file(directory: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, directory, flags, Mode::RUSR | Mode::WUSR)
}

/// Returns the type of the file system at `path`, as in `linux/magic.h`.
pub(crate) fn file_system(path: &Path) -> Result<u32, Errno> {
    let kind = rustix::fs::statfs(path)?.f_type;
    // The field has 32 significant bits; its width and its sign depend on the architecture.
    u32::try_from(kind & 0xffff_ffff).map_err(|_error| Errno::OVERFLOW)
}
