//! Client sockets with a chosen source address, and epoll.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Number of source addresses for connections to loopback: 127.0.0.1, 127.0.0.2 and so on. Each has
/// some 28,000 ephemeral ports.
const SOURCES: usize = 9;

/// Starts connecting to `to`; the connection is open when the socket is writable. `index` selects
/// the source address.
pub(crate) fn connect(to: SocketAddr, index: usize) -> io::Result<TcpStream> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    if matches!(to.ip(), IpAddr::V4(ip) if ip.is_loopback()) {
        let source = u8::try_from(index % SOURCES + 1).map_err(io::Error::other)?;
        let source = SocketAddr::from((Ipv4Addr::new(127, 0, 0, source), 0));
        rustix::net::bind(&socket, &source)?;
    }
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// Sockets registered with epoll.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
        })
    }

    /// Registers `stream` for reading and writing.
    pub(crate) fn add(&self, stream: &TcpStream, key: usize) -> io::Result<()> {
        let data = EventData::new_u64(key as u64);
        Ok(epoll::add(&self.epoll, stream, data, BOTH)?)
    }

    /// Sets the events to wait for: always reading, and also writing if `writes`.
    pub(crate) fn modify(&self, stream: &TcpStream, key: usize, writes: bool) -> io::Result<()> {
        let flags = if writes { BOTH } else { EventFlags::IN };
        let data = EventData::new_u64(key as u64);
        Ok(epoll::modify(&self.epoll, stream, data, flags)?)
    }

    /// Waits at most `timeout`; sets `keys` to the keys of ready sockets.
    pub(crate) fn wait(&self, timeout: Duration, keys: &mut Vec<usize>) -> io::Result<()> {
        // epoll rounds timeouts up to milliseconds, which would delay requests. ppoll does not
        // round.
        let exact = Timespec::try_from(timeout).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&exact)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut events = [const { MaybeUninit::<Event>::uninit() }; EVENTS_MAX];
        let (events, _) = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default()))?;
        keys.clear();
        let found = events.iter().map(|event| event.data.u64());
        keys.extend(found.filter_map(|key| usize::try_from(key).ok()));
        Ok(())
    }
}

/// Maximum number of events per wait.
const EVENTS_MAX: usize = 512;

const BOTH: EventFlags = EventFlags::IN.union(EventFlags::OUT);
