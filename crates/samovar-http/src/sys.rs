//! System calls. Functions return `None` if the call would block.
//!
//! What is not the same on all systems is in a module of the system, with the same names in each.
//! The rest of the engine does not ask which system it is on.

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
compile_error!("samovar-http is made for Linux; it also compiles for macOS");

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(target_os = "macos")]
use macos as system;
pub(crate) use rustix::event::PollFlags;
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, sockopt};
use rustix::time::{ClockId, clock_gettime};
pub(crate) use system::{
    Event, Poll, RECEIVE_DESCRIPTORS, SEND_MESSAGE, SPREADS_PORTS, WakeUp, accept, close_on_exec,
    decode, has_ended, is_listening, is_runnable, send, send_file, set_user_timeout, stream_socket,
    thread_id, unix_peer,
};

/// Readiness events of a connection. The kernel reports each edge only once, so edges are stored
/// until they are handled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Edges {
    /// A read would return bytes, the end of the stream or an error.
    pub(crate) readable: bool,
    /// The socket is writable.
    pub(crate) writable: bool,
    /// The peer has shut down its sending side, so the end of the stream follows the last bytes.
    pub(crate) ended: bool,
    /// The connection is closed in both directions, or reset.
    pub(crate) hung_up: bool,
    /// A [`Waker`](crate::net::wake::Waker) of the connection was called.
    pub(crate) woken: bool,
}

impl std::ops::BitOrAssign for Edges {
    fn bitor_assign(&mut self, other: Self) {
        self.readable |= other.readable;
        self.writable |= other.writable;
        self.ended |= other.ended;
        self.hung_up |= other.hung_up;
        self.woken |= other.woken;
    }
}

/// Makes a system call and repeats it if a signal interrupts it; returns `None` if it would block.
fn call<T>(mut call: impl FnMut() -> Result<T, Errno>) -> io::Result<Option<T>> {
    loop {
        match call() {
            Ok(result) => return Ok(Some(result)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads from a socket; returns `None` if no bytes are available, and `Some(0)` at the end of the
/// stream.
pub(crate) fn recv(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    let received = call(|| rustix::net::recv(&socket, &mut *buffer, RecvFlags::empty()))?;
    Ok(received.map(|(len, _)| len))
}

/// Returns whether the peer has closed its sending side and all its bytes have been read.
pub(crate) fn is_at_end(socket: impl AsFd) -> io::Result<bool> {
    let mut byte = [0];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(socket, &mut byte, flags) {
        Ok((len, _)) => Ok(len == 0),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits until a socket is ready or has failed; returns `false` after `time`.
pub(crate) fn wait_for(socket: impl AsFd, flags: PollFlags, time: Duration) -> io::Result<bool> {
    match poll(&mut [PollFd::new(&socket, flags)], Some(&timespec(time))) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Converts a duration. Values that the kernel cannot express become the maximum.
fn timespec(time: Duration) -> Timespec {
    Timespec::try_from(time).unwrap_or(Timespec {
        tv_sec: i64::MAX,
        tv_nsec: 0,
    })
}

/// Shuts down the sending side.
pub(crate) fn shutdown_write(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, Shutdown::Write)?)
}

/// Makes the next close reset the connection, so that the peer does not mistake a truncated
/// response for a complete one.
pub(crate) fn reset_on_close(socket: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(socket, Some(Duration::ZERO))?)
}

/// Returns whether an error of `accept` means that descriptors or memory are exhausted, so that an
/// immediate retry would also fail.
pub(crate) fn is_exhaustion(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| {
        matches!(
            errno,
            Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM
        )
    })
}

/// Returns the processor time that this process has used.
pub(crate) fn process_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns the process's limit of open descriptors; `None` if it has no limit.
pub(crate) fn descriptors_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}
