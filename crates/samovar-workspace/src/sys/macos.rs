//! System calls of macOS.

use std::path::Path;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Flags of a descriptor that locates an entry. It needs permission to read the entry.
pub(crate) const LOCATE: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

/// Flags of a descriptor that locates a directory. It needs permission to read the directory.
pub(crate) const LOCATE_DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Fails with `NOSYS`: the caller opens directories name by name.
pub(crate) fn open_beneath(
    _directory: BorrowedFd<'_>,
    _path: &[u8],
    _flags: OFlags,
    _mode: Mode,
) -> Result<OwnedFd, Errno> {
    Err(Errno::NOSYS)
}

/// Sets the mode of an open file or directory.
pub(crate) fn set_mode(fd: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    rustix::fs::fchmod(fd, mode)
}

/// Removes an entry; fails with `ISDIR` if it is a directory.
pub(crate) fn unlink(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let is_directory = || {
        let found = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
    };
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        // POSIX demands this error.
        Err(Errno::PERM) if is_directory() => Err(Errno::ISDIR),
        removed => removed,
    }
}

/// Asks the kernel to write the changes on all file systems, and the disk of a file to write what
/// it has received. The kernel does not tell when it has written all changes.
pub(crate) fn sync(file: impl AsFd) -> Result<(), Errno> {
    rustix::fs::sync();
    rustix::fs::fcntl_fullfsync(file)
}

/// Fails with `OPNOTSUPP`: there are no files without a name.
pub(crate) fn unnamed_file(_directory: &Path) -> Result<OwnedFd, Errno> {
    Err(Errno::OPNOTSUPP)
}

/// File systems by name, with the numbers that Linux has for them.
const FILE_SYSTEMS: [(&str, u32); 5] = [
    ("nfs", 0x6969),
    ("smbfs", 0x517b),
    ("macfuse", 0x6573_5546),
    ("msdos", 0x4d44),
    ("exfat", 0x2011_bab0),
];

/// Returns the type of the file system at `path`, as Linux numbers it; 0 for one of which only the
/// name on this system is known, such as APFS.
pub(crate) fn file_system(path: &Path) -> Result<u32, Errno> {
    let name = rustix::fs::statfs(path)?.f_fstypename;
    let name = name.map(i8::cast_unsigned);
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let known = FILE_SYSTEMS
        .iter()
        .find(|(known, _)| known.as_bytes() == name);
    Ok(known.map_or(0, |(_, number)| *number))
}
