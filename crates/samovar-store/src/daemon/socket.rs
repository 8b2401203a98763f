//! Connects to a Unix socket within a time limit.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::{StoreError, Unavailable};

/// Connects to the socket. Connecting, each read and each write time out after `silence_max`.
pub(super) fn connect(path: &Path, silence_max: Duration) -> Result<UnixStream, StoreError> {
    try_connect(path, silence_max).map_err(|errno| match errno {
        Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR | Errno::NOTSOCK | Errno::ACCESS => {
            StoreError::Unavailable(Unavailable::DaemonUnreachable)
        }
        // The daemon's accept queue stayed full.
        Errno::AGAIN => StoreError::Unavailable(Unavailable::DaemonTimeout),
        other => StoreError::io("communicating with the daemon", &other.into()),
    })
}

fn try_connect(path: &Path, silence_max: Duration) -> Result<UnixStream, Errno> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // For Unix sockets the send timeout also applies to connect.
    set_socket_timeout(&socket, Timeout::Send, Some(silence_max))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(silence_max))?;
    match SocketAddrUnix::new(path) {
        Ok(address) => rustix::net::connect(&socket, &address)?,
        Err(Errno::NAMETOOLONG) => connect_by_directory(&socket, path)?,
        Err(errno) => return Err(errno),
    }
    Ok(UnixStream::from(socket))
}

/// Connects to a path longer than the 108 bytes of an address, through its directory.
fn connect_by_directory(socket: &rustix::fd::OwnedFd, path: &Path) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
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
