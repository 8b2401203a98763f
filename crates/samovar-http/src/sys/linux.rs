//! What is special to Linux: epoll, eventfd, `sendfile`, and flags of sockets.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

pub(crate) use rustix::event::epoll::Event;
use rustix::event::{EventfdFlags, PollFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::{Edges, call, timespec, wait_for};
use crate::client::{Peer, UnixPeer};

/// Whether the kernel distributes the connections of a port among several listening sockets
/// (`SO_REUSEPORT`).
pub(crate) const SPREADS_PORTS: bool = true;

/// Flags for a message on a unix socket.
pub(crate) const SEND_MESSAGE: SendFlags = SendFlags::NOSIGNAL;

/// Flags for receiving a message with descriptors.
pub(crate) const RECEIVE_DESCRIPTORS: RecvFlags = RecvFlags::CMSG_CLOEXEC;

/// An epoll instance.
///
/// Connections are registered once, edge-triggered and for both directions. The registration never
/// changes, so that events can arrive while a worker has the connection, without further system
/// calls. Listeners and the wake-up descriptor are level-triggered.
#[derive(Debug)]
pub(crate) struct Poll {
    epoll: OwnedFd,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    pub(crate) fn add_connection(&self, socket: impl AsFd, key: u64) -> io::Result<()> {
        use epoll::EventFlags as Flags;
        self.add(
            socket,
            key,
            Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET,
        )
    }

    /// Registers a listener. `is_shared`: other threads poll the same socket, and only one of them
    /// is woken for an event.
    pub(crate) fn add_listener(
        &self,
        socket: impl AsFd,
        key: u64,
        is_shared: bool,
    ) -> io::Result<()> {
        use epoll::EventFlags as Flags;
        let mut flags = Flags::IN;
        flags.set(Flags::EXCLUSIVE, is_shared);
        self.add(socket, key, flags)
    }

    fn add(&self, socket: impl AsFd, key: u64, flags: epoll::EventFlags) -> io::Result<()> {
        let data = epoll::EventData::new_u64(key);
        Ok(epoll::add(&self.epoll, socket, data, flags)?)
    }

    pub(crate) fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Waits for events. If a signal interrupts the wait, there are none.
    pub(crate) fn wait(
        &self,
        events: &mut Vec<Event>,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        events.clear();
        let timeout = timeout.map(timespec);
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(events),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Decodes an event; returns the key of its source as well.
pub(crate) fn decode(event: &Event) -> (u64, Edges) {
    use epoll::EventFlags as Flags;
    // The struct is packed, so its fields must be copied, not borrowed.
    let (flags, data) = (event.flags, event.data);
    let ended = flags.intersects(Flags::RDHUP | Flags::HUP | Flags::ERR);
    let edges = Edges {
        readable: ended || flags.contains(Flags::IN),
        writable: flags.intersects(Flags::OUT | Flags::HUP | Flags::ERR),
        ended,
        hung_up: flags.intersects(Flags::HUP | Flags::ERR),
        woken: false,
    };
    (data.u64(), edges)
}

/// Accepts a connection; returns `None` if none waits.
pub(crate) fn accept(listener: impl AsFd) -> io::Result<Option<(OwnedFd, Peer)>> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let accepted = call(|| rustix::net::acceptfrom_with(&listener, flags))?;
    Ok(accepted.map(|(socket, addr)| {
        let peer = match addr.and_then(|addr| SocketAddr::try_from(addr).ok()) {
            Some(addr) => Peer::Tcp(addr),
            None => Peer::Unix(unix_peer(&socket).ok()),
        };
        (socket, peer)
    }))
}

/// Returns the credentials of the process that connected a unix socket, as of that time.
pub(crate) fn unix_peer(socket: impl AsFd) -> io::Result<UnixPeer> {
    let process = sockopt::socket_peercred(socket)?;
    Ok(UnixPeer {
        uid: process.uid.as_raw(),
        gid: process.gid.as_raw(),
    })
}

/// Creates a stream socket that does not block and is closed by `exec`.
pub(crate) fn stream_socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
}

/// Returns whether a socket listens.
pub(crate) fn is_listening(socket: impl AsFd) -> io::Result<bool> {
    Ok(sockopt::socket_acceptconn(socket)?)
}

/// Sets the time for which the kernel sends unacknowledged data again, before it closes the
/// connection.
pub(crate) fn set_user_timeout(socket: impl AsFd, time: Duration) -> io::Result<()> {
    let time = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(socket, time)?)
}

/// Makes a received descriptor one that `exec` closes. It is one already, by
/// [`RECEIVE_DESCRIPTORS`].
pub(crate) fn close_on_exec(_descriptor: impl AsFd) -> io::Result<()> {
    Ok(())
}

/// Returns whether the peer has closed its sending side, even if bytes that it sent before are not
/// read yet.
pub(crate) fn has_ended(socket: impl AsFd) -> io::Result<bool> {
    wait_for(socket, PollFlags::RDHUP, Duration::ZERO)
}

/// Writes to a socket; returns `None` if the socket buffer is full. `more`: the caller sends
/// further bytes at once.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], more: bool) -> io::Result<Option<usize>> {
    let mut flags = SendFlags::NOSIGNAL;
    flags.set(SendFlags::MORE, more);
    call(|| rustix::net::send(&socket, bytes, flags))
}

/// Sends from a file; returns `None` if the socket buffer is full, and `Some(0)` at the end of the
/// file.
pub(crate) fn send_file(
    socket: impl AsFd,
    file: impl AsFd,
    offset: u64,
    len: u64,
) -> io::Result<Option<u64>> {
    /// Maximum length for one call of the kernel, in bytes.
    const CALL_LEN_MAX: u64 = 0x7fff_f000;
    let count = usize::try_from(len.min(CALL_LEN_MAX)).unwrap_or(usize::MAX);
    let sent = call(|| rustix::fs::sendfile(&socket, &file, Some(&mut { offset }), count))?;
    Ok(sent.map(|len| len as u64))
}

/// Returns the kernel's number of the calling thread.
pub(crate) fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_pid().unsigned_abs()
}

/// Returns whether a thread of this process runs or waits for a processor; `None` if the thread has
/// ended, or if the system does not tell.
pub(crate) fn is_runnable(thread: u32) -> Option<bool> {
    let mut text = [0; 128];
    let mut file = File::open(format!("/proc/self/task/{thread}/stat")).ok()?;
    let len = file.read(&mut text).ok()?;
    // The state follows the name, which is in brackets and may contain any character.
    let name_end = memchr::memrchr(b')', &text[..len])?;
    let state = text.get(name_end + 2)?;
    Some(*state == b'R')
}

/// Number added to the counter of an eventfd: neither 0 nor the maximum in either byte order.
const WAKE_COUNT: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];

/// A descriptor for wake-ups of a poller: an eventfd.
#[derive(Debug)]
pub(crate) struct WakeUp(OwnedFd);

impl WakeUp {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags)?))
    }

    /// Wakes the poller.
    pub(crate) fn wake(&self) -> io::Result<()> {
        match rustix::io::write(&self.0, &WAKE_COUNT) {
            // If the counter is full, the poller is already woken.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes back all wake-ups.
    pub(crate) fn clear(&self) {
        let mut counter = [0; 8];
        // If the counter is already 0, the read would block, which is ignored.
        rustix::io::read(&self.0, &mut counter).unwrap_or_default();
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
