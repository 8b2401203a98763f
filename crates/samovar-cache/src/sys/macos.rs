//! System calls of macOS.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{AtFlags, Mode, OFlags};

/// A descriptor that wakes a thread: a pair of sockets.
#[derive(Debug)]
pub(crate) struct WakeUp {
    polled: UnixStream,
    written: UnixStream,
}

impl WakeUp {
    pub(crate) fn new() -> io::Result<Self> {
        let (polled, written) = UnixStream::pair()?;
        polled.set_nonblocking(true)?;
        written.set_nonblocking(true)?;
        Ok(Self { polled, written })
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        // The write fails only if the buffer is full, and then the thread wakes as well.
        (&self.written).write(&[1]).unwrap_or_default();
    }

    /// Takes back all wake-ups.
    pub(crate) fn clear(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.polled).read(&mut bytes), Ok(len) if len == bytes.len()) {}
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.polled.as_fd()
    }
}

/// Does nothing: the nice value is that of the whole process.
pub(crate) fn be_nice(_niceness: i32) {}

/// Fills a buffer of up to 256 bytes with random ones.
pub(crate) fn random(bytes: &mut [u8]) -> io::Result<()> {
    File::open("/dev/urandom")?.read_exact(bytes)
}

/// Creates a file in a directory and removes its name.
pub(crate) fn unnamed_file(directory: impl AsFd) -> io::Result<File> {
    let mut number = [0; 8];
    random(&mut number)?;
    let name = format!(".samovar-{:016x}", u64::from_le_bytes(number));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&directory, &name, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::unlinkat(&directory, &name, AtFlags::empty())?;
    Ok(file.into())
}

/// Returns whether a file is on a file system in memory, `tmpfs`.
pub(crate) fn is_in_memory(file: impl AsFd) -> io::Result<bool> {
    let name = rustix::fs::fstatfs(file)?.f_fstypename;
    Ok(name.map(i8::cast_unsigned).starts_with(b"tmpfs\0"))
}
