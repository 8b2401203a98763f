//! Connects to a Unix socket within a time limit.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::error::{StoreError, Unavailable};
use crate::sys;

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
    let socket = sys::stream_socket()?;
    // For Unix sockets the send timeout also applies to connect.
    set_socket_timeout(&socket, Timeout::Send, Some(silence_max))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(silence_max))?;
    match SocketAddrUnix::new(path) {
        Ok(address) => rustix::net::connect(&socket, &address)?,
        Err(Errno::NAMETOOLONG) => sys::connect_long(&socket, path)?,
        Err(errno) => return Err(errno),
    }
    Ok(UnixStream::from(socket))
}
