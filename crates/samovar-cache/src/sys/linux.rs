//! System calls of Linux.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::rand::{GetRandomFlags, getrandom};

/// A descriptor that wakes a thread: an eventfd.
#[derive(Debug)]
pub(crate) struct WakeUp(OwnedFd);

impl WakeUp {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags)?))
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        // The write fails only if the counter is full, and then the thread wakes as well.
        let _written = rustix::io::write(&self.0, &1_u64.to_le_bytes());
    }

    /// Takes back all wake-ups.
    pub(crate) fn clear(&self) {
        // The read fails if nothing was written to the counter, which does not matter.
        let _read = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Changes the priority of this thread: 0 is normal, 19 is the lowest. A failure does no harm.
pub(crate) fn be_nice(niceness: i32) {
    rustix::process::nice(niceness).ok();
}

/// Fills a buffer of up to 256 bytes with random ones.
pub(crate) fn random(bytes: &mut [u8]) -> io::Result<()> {
    let len = bytes.len();
    // getrandom(2) never returns fewer for up to 256 bytes.
    match getrandom(bytes, GetRandomFlags::empty())? == len {
        true => Ok(()),
        false => Err(io::Error::other("too few random bytes")),
    }
}

/// Creates a file without a name on the file system of a directory.
pub(crate) fn unnamed_file(directory: impl AsFd) -> io::Result<File> {
    // `EXCL` prevents the file from ever being linked to a name.
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    Ok(rustix::fs::openat(directory, ".", flags, mode)?.into())
}

/// Returns whether a file is on a file system in memory, tmpfs or ramfs.
pub(crate) fn is_in_memory(file: impl AsFd) -> io::Result<bool> {
    /// `TMPFS_MAGIC` and `RAMFS_MAGIC`.
    const OF_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
    let kind = u64::try_from(rustix::fs::fstatfs(file)?.f_type);
    Ok(kind.is_ok_and(|kind| OF_MEMORY.contains(&kind)))
}
