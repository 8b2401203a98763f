//! System calls. Functions return `None` if the call would block.

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

pub(crate) use rustix::event::PollFlags;
pub(crate) use rustix::event::epoll::Event;
use rustix::event::{EventfdFlags, PollFd, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags, sockopt};
use rustix::time::{ClockId, clock_gettime};

use crate::client::{Peer, UnixPeer};

/// An epoll instance.
///
/// Connections are registered once, edge-triggered and for both directions. The registration never
/// changes, so that events can arrive while a worker has the connection, without further system
/// calls. Listeners and the wake-up descriptor are level-triggered.
#[derive(Debug)]
pub(crate) struct Poll {
    epoll: OwnedFd,
}

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

/// Accepts a connection; returns `None` if none waits.
pub(crate) fn accept(listener: impl AsFd) -> io::Result<Option<(OwnedFd, Peer)>> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let accepted = call(|| rustix::net::acceptfrom_with(&listener, flags))?;
    Ok(accepted.map(|(socket, addr)| {
        let peer = match addr.and_then(|addr| SocketAddr::try_from(addr).ok()) {
            Some(addr) => Peer::Tcp(addr),
            None => Peer::Unix(unix_peer(&socket)),
        };
        (socket, peer)
    }))
}

fn unix_peer(socket: impl AsFd) -> Option<UnixPeer> {
    let process = rustix::net::sockopt::socket_peercred(socket).ok()?;
    Some(UnixPeer {
        uid: process.uid.as_raw(),
        gid: process.gid.as_raw(),
    })
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

/// Shuts down the sending side.
pub(crate) fn shutdown_write(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, Shutdown::Write)?)
}

/// Makes the next close reset the connection, so that the peer does not mistake a truncated
/// response for a complete one.
pub(crate) fn reset_on_close(socket: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(socket, Some(Duration::ZERO))?)
}

/// Creates an eventfd for wake-ups.
pub(crate) fn wake_descriptor() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Number added to the counter of an eventfd: neither 0 nor the maximum in either byte order.
const WAKE_COUNT: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];

/// Wakes the poller of an eventfd.
pub(crate) fn wake(descriptor: impl AsFd) -> io::Result<()> {
    match rustix::io::write(descriptor, &WAKE_COUNT) {
        // If the counter is full, the poller is already woken.
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Resets an eventfd.
pub(crate) fn clear_wake(descriptor: impl AsFd) {
    let mut counter = [0; 8];
    // If the counter is already 0, the read would block, which is ignored.
    rustix::io::read(descriptor, &mut counter).unwrap_or_default();
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

/// Returns the processor time that this process has used.
pub(crate) fn process_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Returns the process's limit of open descriptors; `None` if it has no limit.
pub(crate) fn descriptors_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}
