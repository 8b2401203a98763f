//! What is special to macOS: kqueue, and sockets whose flags are set after their creation.
//!
//! The crate `nix` offers kqueue without unsafe code.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub(crate) use nix::sys::event::KEvent64 as Event;
use nix::sys::event::{EvFlags, EventFilter, FilterFlag, Kevent64Flags, Kqueue};
use nix::sys::time::TimeSpec;
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, sockopt};

use super::{Edges, call};
use crate::client::{Peer, UnixPeer};

/// Whether the kernel distributes the connections of a port among several listening sockets: it
/// gives all of them to one.
pub(crate) const SPREADS_PORTS: bool = false;

/// Flags for a message on a unix socket. Instead of a flag there is an option of the socket that
/// prevents SIGPIPE, and the standard library sets it.
pub(crate) const SEND_MESSAGE: SendFlags = SendFlags::empty();

/// Flags for receiving a message with descriptors.
pub(crate) const RECEIVE_DESCRIPTORS: RecvFlags = RecvFlags::empty();

/// A kqueue.
///
/// As with epoll, connections are registered once, edge-triggered (`EV_CLEAR`) and for both
/// directions. Each direction is an event of its own, with the same key. The kernel forgets a
/// connection when its descriptor is closed.
#[derive(Debug)]
pub(crate) struct Poll {
    queue: Kqueue,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        let queue = Kqueue::new()?;
        close_on_exec(&queue)?;
        Ok(Self { queue })
    }

    pub(crate) fn add_connection(&self, socket: impl AsFd, key: u64) -> io::Result<()> {
        let flags = EvFlags::EV_ADD | EvFlags::EV_CLEAR;
        self.change(&[
            event(&socket, EventFilter::EVFILT_READ, flags, key),
            event(&socket, EventFilter::EVFILT_WRITE, flags, key),
        ])
    }

    /// Registers a listener. If other threads poll the same socket, all are woken for an event, and
    /// one of them accepts the connection.
    pub(crate) fn add_listener(
        &self,
        socket: impl AsFd,
        key: u64,
        _is_shared: bool,
    ) -> io::Result<()> {
        let filter = EventFilter::EVFILT_READ;
        self.change(&[event(socket, filter, EvFlags::EV_ADD, key)])
    }

    /// Removes a listener.
    pub(crate) fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        let filter = EventFilter::EVFILT_READ;
        self.change(&[event(socket, filter, EvFlags::EV_DELETE, 0)])
    }

    fn change(&self, changes: &[Event]) -> io::Result<()> {
        let flags = Kevent64Flags::empty();
        self.queue.kevent64(changes, &mut [], flags, None)?;
        Ok(())
    }

    /// Waits for events. If a signal interrupts the wait, there are none.
    pub(crate) fn wait(
        &self,
        events: &mut Vec<Event>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let space = events.capacity();
        events.resize(space, no_event());
        let timeout = timeout.map(|time| *TimeSpec::from_duration(time).as_ref());
        let flags = Kevent64Flags::empty();
        let outcome = self.queue.kevent64(&[], events, flags, timeout);
        events.truncate(outcome.unwrap_or(0));
        match outcome {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn event(socket: impl AsFd, filter: EventFilter, flags: EvFlags, key: u64) -> Event {
    // A descriptor that is open is not negative.
    let number = u64::try_from(socket.as_fd().as_raw_fd()).unwrap_or(u64::MAX);
    Event::new(number, filter, flags, FilterFlag::empty(), 0, key, [0; 2])
}

fn no_event() -> Event {
    let (flags, fflags) = (EvFlags::empty(), FilterFlag::empty());
    Event::new(0, EventFilter::EVFILT_READ, flags, fflags, 0, 0, [0; 2])
}

/// Decodes an event; returns the key of its source as well.
pub(crate) fn decode(event: &Event) -> (u64, Edges) {
    let is_end = event.flags().contains(EvFlags::EV_EOF);
    // At an end, this field has the error of the socket.
    let has_failed = is_end && !event.fflags().is_empty();
    let is_for_reading = matches!(event.filter(), Ok(EventFilter::EVFILT_READ));
    let ended = is_for_reading && is_end || has_failed;
    let edges = Edges {
        readable: is_for_reading || ended,
        writable: !is_for_reading || has_failed,
        ended,
        hung_up: has_failed,
        woken: false,
    };
    (event.udata(), edges)
}

/// Accepts a connection; returns `None` if none waits.
pub(crate) fn accept(listener: impl AsFd) -> io::Result<Option<(OwnedFd, Peer)>> {
    let Some((socket, addr)) = call(|| rustix::net::acceptfrom(&listener))? else {
        return Ok(None);
    };
    close_on_exec(&socket)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    // Options cannot be set if the client has reset the connection. The first read reports that.
    sockopt::set_socket_nosigpipe(&socket, true).unwrap_or_default();
    let peer = match addr.and_then(|addr| SocketAddr::try_from(addr).ok()) {
        Some(addr) => {
            inherit_idle_time(&listener, &socket).unwrap_or_default();
            Peer::Tcp(addr)
        }
        None => Peer::Unix(unix_peer(&socket).ok()),
    };
    Ok(Some((socket, peer)))
}

/// Sets the time after which probes of keep-alive start. Connections inherit all other options of
/// their listener.
fn inherit_idle_time(listener: impl AsFd, socket: impl AsFd) -> io::Result<()> {
    if sockopt::socket_keepalive(&listener)? {
        sockopt::set_tcp_keepidle(socket, sockopt::tcp_keepidle(listener)?)?;
    }
    Ok(())
}

/// Returns the credentials of the process that connected a unix socket, as of that time.
pub(crate) fn unix_peer(socket: impl AsFd) -> io::Result<UnixPeer> {
    let (uid, gid) = nix::unistd::getpeereid(socket)?;
    Ok(UnixPeer {
        uid: uid.as_raw(),
        gid: gid.as_raw(),
    })
}

/// Creates a stream socket that does not block and is closed by `exec`.
pub(crate) fn stream_socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    sockopt::set_socket_nosigpipe(&socket, true)?;
    Ok(socket)
}

/// Returns `true`: the kernel does not tell whether a socket listens.
pub(crate) fn is_listening(_socket: impl AsFd) -> io::Result<bool> {
    Ok(true)
}

/// Does nothing: the kernel has no such limit. Keep-alive finds clients that have vanished, but not
/// while data are unacknowledged.
pub(crate) fn set_user_timeout(_socket: impl AsFd, _time: Duration) -> io::Result<()> {
    Ok(())
}

/// Makes a descriptor one that `exec` closes.
pub(crate) fn close_on_exec(descriptor: impl AsFd) -> io::Result<()> {
    Ok(rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC)?)
}

/// Returns whether the peer has closed its sending side, even if bytes that it sent before are not
/// read yet.
pub(crate) fn has_ended(socket: impl AsFd) -> io::Result<bool> {
    let poll = Poll::new()?;
    let mut events = Vec::with_capacity(2);
    poll.add_connection(socket, 0)?;
    poll.wait(&mut events, Some(Duration::ZERO))?;
    Ok(events.iter().any(|event| decode(event).1.ended))
}

/// Writes to a socket; returns `None` if the socket buffer is full. `more`, that the caller sends
/// further bytes at once, has no equivalent.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], _more: bool) -> io::Result<Option<usize>> {
    call(|| rustix::net::send(&socket, bytes, SendFlags::empty()))
}

/// Sends from a file, by copying; returns `None` if the socket buffer is full, and `Some(0)` at the
/// end of the file.
pub(crate) fn send_file(
    socket: impl AsFd,
    file: impl AsFd,
    offset: u64,
    len: u64,
) -> io::Result<Option<u64>> {
    /// Number of bytes that are copied at once.
    const PIECE_LEN: usize = 64 * 1024;
    let mut piece = [0; PIECE_LEN];
    let wanted_len = usize::try_from(len).unwrap_or(PIECE_LEN).min(PIECE_LEN);
    let space = &mut piece[..wanted_len];
    // A file has its bytes at once, so this does not return `None`.
    let read_len = call(|| rustix::io::pread(&file, &mut *space, offset))?.unwrap_or(0);
    if read_len == 0 {
        return Ok(Some(0));
    }
    let sent = send(socket, &piece[..read_len], false)?;
    Ok(sent.map(|len| len as u64))
}

/// Returns 0: [`is_runnable`] needs no number.
pub(crate) fn thread_id() -> u32 {
    0
}

/// Returns `None`: the system does not tell whether a thread runs.
pub(crate) fn is_runnable(_thread: u32) -> Option<bool> {
    None
}

/// A descriptor for wake-ups of a poller: a pair of sockets.
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

    /// Wakes the poller.
    pub(crate) fn wake(&self) -> io::Result<()> {
        match (&self.written).write(&[1]) {
            // If the buffer is full, the poller is already woken.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            outcome => outcome.map(drop),
        }
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
