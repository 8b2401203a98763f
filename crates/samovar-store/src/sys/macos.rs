//! System calls of macOS.

use std::ffi::CStr;
use std::path::Path;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Dir, FileType, OFlags, Stat};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketType};

/// The flag of a file system that is on this machine (`MNT_LOCAL`).
const IS_LOCAL: u32 = 0x1000;

/// The buffer for entries of directories, which the system library allocates.
#[derive(Debug, Default)]
pub(crate) struct Dents;

/// Calls `each` with name and type of all entries of a directory. The type may be unknown. `.` and
/// `..` are among them.
pub(crate) fn each_entry<E: From<Errno>>(
    directory: BorrowedFd<'_>,
    _dents: &mut Dents,
    mut each: impl FnMut(&CStr, FileType) -> Result<(), E>,
) -> Result<(), E> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        each(entry.file_name(), entry.file_type())?;
    }
    Ok(())
}

/// Fails with `NOSYS`. There are no bind mounts, so the device number of a directory tells whether
/// it is a mount point.
pub(crate) fn open_on_same_mount(
    _parent: BorrowedFd<'_>,
    _name: &CStr,
    _flags: OFlags,
) -> Result<OwnedFd, Errno> {
    Err(Errno::NOSYS)
}

/// Fails with `NOSYS`: the kernel cannot tell whether a read would wait.
pub(crate) fn read_now(_file: impl AsFd, _bytes: &mut [u8], _offset: u64) -> Result<usize, Errno> {
    Err(Errno::NOSYS)
}

/// Asks the kernel to read the start of a file soon. The call is only a hint, so a failure is
/// harmless.
pub(crate) fn advise(file: impl AsFd, len: u64) {
    let _advised = rustix::fs::fcntl_rdadvise(file, 0, len);
}

/// Returns whether reading a file may wait for another machine or process.
pub(crate) fn is_remote(file: impl AsFd) -> Result<bool, Errno> {
    Ok(rustix::fs::fstatfs(file)?.f_flags & IS_LOCAL == 0)
}

/// Returns the number of the device that has a file.
pub(crate) fn device(stat: &Stat) -> u64 {
    stat.st_dev.cast_unsigned().into()
}

/// Returns the change time of an inode, in seconds and nanoseconds.
pub(crate) fn change_time(stat: &Stat) -> (i64, u64) {
    let nanoseconds = u64::try_from(stat.st_ctime_nsec);
    (stat.st_ctime, nanoseconds.unwrap_or_default())
}

/// Creates a unix socket that `exec` closes.
pub(crate) fn stream_socket() -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    Ok(socket)
}

/// Fails: there is no way to connect to a path that is longer than an address.
pub(crate) fn connect_long(_socket: &OwnedFd, _path: &Path) -> Result<(), Errno> {
    Err(Errno::NAMETOOLONG)
}
