//! System calls of Linux.

use std::ffi::CStr;
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Advice, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, Stat};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Length of the buffer for `getdents`, in bytes: a hundred entries at a time; store directories
/// have seven on average.
const DENTS_LEN: usize = 32 * 1024;

/// Magic numbers of remote file systems: FUSE (and virtiofs), NFS, SMB, CIFS, SMB2, Ceph, 9p.
const REMOTE_FILE_SYSTEMS: [u32; 7] = [
    0x6573_5546,
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x00c3_6400,
    0x0102_1997,
];

/// Buffer for `getdents`.
#[derive(Debug, Default)]
pub(crate) struct Dents(Vec<u8>);

/// Calls `each` with name and type of the entries of a directory, from the current position of its
/// descriptor. The type may be unknown. `.` and `..` are among them.
pub(crate) fn each_entry<E: From<Errno>>(
    directory: BorrowedFd<'_>,
    dents: &mut Dents,
    mut each: impl FnMut(&CStr, FileType) -> Result<(), E>,
) -> Result<(), E> {
    dents.0.reserve(DENTS_LEN);
    let mut raw = RawDir::new(directory.as_fd(), dents.0.spare_capacity_mut());
    while let Some(entry) = raw.next() {
        let entry = entry?;
        each(entry.file_name(), entry.file_type())?;
    }
    Ok(())
}

/// Opens a file below `parent` on the same mount. Fails with `XDEV` for a mount point, also of a
/// bind mount, and with `NOSYS` or `PERM` if the kernel cannot tell.
pub(crate) fn open_on_same_mount(
    parent: BorrowedFd<'_>,
    name: &CStr,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(parent, name, flags, Mode::empty(), ResolveFlags::NO_XDEV)
}

/// Reads what is in the page cache. Fails with `AGAIN` if the read would wait, and with
/// `OPNOTSUPP`, `INVAL` or `NOSYS` if the file system or the kernel cannot tell.
pub(crate) fn read_now(file: impl AsFd, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut slices = [IoSliceMut::new(bytes)];
    rustix::io::preadv2(file, &mut slices, offset, ReadWriteFlags::NOWAIT)
}

/// Asks the kernel to read the start of a file soon. The call is only a hint, so a failure is
/// harmless.
pub(crate) fn advise(file: impl AsFd, len: u64) {
    let _advised = rustix::fs::fadvise(file, 0, NonZeroU64::new(len), Advice::WillNeed);
}

/// Returns whether reading a file may wait for another machine or process.
pub(crate) fn is_remote(file: impl AsFd) -> Result<bool, Errno> {
    let stat = rustix::fs::fstatfs(file)?;
    Ok(REMOTE_FILE_SYSTEMS
        .iter()
        .any(|kind| i64::from(*kind) == stat.f_type))
}

/// Returns the number of the device that has a file.
pub(crate) fn device(stat: &Stat) -> u64 {
    stat.st_dev
}

/// Returns the change time of an inode, in seconds and nanoseconds.
pub(crate) fn change_time(stat: &Stat) -> (i64, u64) {
    (stat.st_ctime, stat.st_ctime_nsec)
}

/// Creates a unix socket that `exec` closes.
pub(crate) fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Connects to a path longer than the 108 bytes of an address, through its directory.
pub(crate) fn connect_long(socket: &OwnedFd, path: &Path) -> Result<(), Errno> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::NAMETOOLONG);
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, parent, flags, Mode::empty())?;
    let short = Path::new("/proc/self/fd")
        .join(directory.as_raw_fd().to_string())
        .join(name);
    rustix::net::connect(socket, &SocketAddrUnix::new(short)?)
}
