//! Listening sockets.

use std::ffi::OsStr;
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, sockopt};

use crate::limits::Limits;
use crate::sys;
use crate::tls::TlsConfig;

/// An address on which a server listens, with one or several bound sockets.
///
/// For TCP, each I/O thread gets its own socket on the same port (`SO_REUSEPORT`). The kernel
/// distributes connections among the sockets, so no thread is woken for connections of another. All
/// I/O threads share unix sockets and inherited sockets, and on macOS, whose kernel does not
/// distribute connections, TCP sockets as well.
#[derive(Debug)]
pub struct Listener {
    sockets: Vec<OwnedFd>,
    /// The address for further sockets; `None` if there can be only one.
    spread: Option<Address>,
    tls: Option<TlsConfig>,
}

/// A TCP address and its socket options.
#[derive(Debug, Clone, Copy)]
struct Address {
    addr: SocketAddr,
    v6_only: bool,
    /// Whether other processes may also listen on the address.
    is_shared: bool,
    backlog: u32,
}

impl Address {
    fn new(addr: SocketAddr, backlog: u32) -> Self {
        Self {
            addr,
            v6_only: false,
            is_shared: false,
            backlog,
        }
    }
}

/// Backlog of [`Listener::bind`].
const BACKLOG: u32 = 1024;

impl Listener {
    /// Binds a TCP address, such as `"127.0.0.1:8080"`, and listens on it, with a backlog of 1024
    /// connections. Of several addresses, for example those of a name, the first that can be bound
    /// is taken; [`Router::serve`](crate::Router::serve) listens on all of them.
    ///
    /// # Errors
    ///
    /// If `addr` is malformed or has no address; as [`tcp`](Self::tcp).
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        let mut failure = None;
        for addr in addr.to_socket_addrs()? {
            match Self::tcp(addr, BACKLOG) {
                Ok(listener) => return Ok(listener),
                Err(error) => failure = Some(error),
            }
        }
        let none = || io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on");
        Err(failure.unwrap_or_else(none))
    }

    /// Binds a TCP address and listens on it. `backlog` is the maximum number of connections
    /// waiting to be accepted. `[::]` also accepts IPv4 connections.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if another socket listens on the address, even with `SO_REUSEPORT`; other system
    /// errors.
    pub fn tcp(addr: SocketAddr, backlog: u32) -> io::Result<Self> {
        Self::listen_on(Address::new(addr, backlog))
    }

    /// As [`tcp`](Self::tcp), but an IPv6 address does not accept IPv4 connections.
    ///
    /// # Errors
    ///
    /// As [`tcp`](Self::tcp).
    pub fn tcp_v6_only(addr: SocketAddr, backlog: u32) -> io::Result<Self> {
        Self::listen_on(Address {
            v6_only: true,
            ..Address::new(addr, backlog)
        })
    }

    /// As [`tcp`](Self::tcp), but shares the address with other processes of the same user that
    /// also use this function. The kernel distributes connections among the processes. Use it for
    /// more connections than one process can have descriptors. (On macOS, one process gets all
    /// connections.)
    ///
    /// # Errors
    ///
    /// `AddrInUse` if a socket that is not shared listens on the address; other system errors.
    pub fn tcp_shared(addr: SocketAddr, backlog: u32) -> io::Result<Self> {
        Self::listen_on(Address {
            is_shared: true,
            ..Address::new(addr, backlog)
        })
    }

    fn listen_on(address: Address) -> io::Result<Self> {
        // Listening without SO_REUSEPORT first excludes other servers, even one that starts at the
        // same moment. If the option were set, a second server would silently get half of the
        // connections.
        let socket = begin_to_listen(address)?;
        let mut spread = None;
        if sys::SPREADS_PORTS {
            // Set `SO_REUSEPORT` now, because further sockets of this listener need it.
            sockopt::set_socket_reuseport(&socket, true)?;
            let addr = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
            spread = Some(Address { addr, ..address });
        }
        Ok(Self {
            sockets: vec![socket],
            spread,
            tls: None,
        })
    }

    /// Binds a unix socket and listens on it. Replaces a socket file that no server uses.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if a server listens on the socket; `AlreadyExists` if the path is not a socket;
    /// other system errors.
    pub fn unix(path: &Path, backlog: u32) -> io::Result<Self> {
        let _lock = lock_directory(path);
        if let Ok(metadata) = std::fs::symlink_metadata(path) {
            if !metadata.file_type().is_socket() {
                let message = "a file that is no socket";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
            }
            match knock(path) {
                Err(Errno::CONNREFUSED) => {}
                // A full backlog, a datagram socket or a lack of permission also mean that the path
                // is in use.
                Ok(()) | Err(_) => {
                    let message = "another server listens there";
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
                }
            }
            std::fs::remove_file(path)?;
        }
        let socket = OwnedFd::from(UnixListener::bind(path)?);
        rustix::net::listen(&socket, backlog_number(backlog))?;
        Self::inherited(socket)
    }

    /// Uses a socket that already listens, for example one from a service manager.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the socket does not listen: polling it would report events forever.
    pub fn inherited(socket: OwnedFd) -> io::Result<Self> {
        Self::handed_over(vec![socket])
    }

    /// Uses listening sockets of one address that another process has passed on.
    pub(crate) fn handed_over(sockets: Vec<OwnedFd>) -> io::Result<Self> {
        let invalid = |message| Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        if sockets.is_empty() {
            return invalid("no socket");
        }
        for socket in &sockets {
            if !sys::is_listening(socket)? {
                return invalid("a socket that does not listen");
            }
            // Set `TCP_NODELAY` as for the server's own sockets. This fails on unix sockets, which
            // do not use Nagle's algorithm.
            sockopt::set_tcp_nodelay(socket, true).unwrap_or_default();
            rustix::io::ioctl_fionbio(socket, true)?;
        }
        Ok(Self {
            sockets,
            spread: None,
            tls: None,
        })
    }

    /// Creates one socket for each of `count` I/O threads. A server calls this when it starts. A
    /// process that drops the privilege to bind low ports must call it before that.
    ///
    /// # Errors
    ///
    /// As [`tcp`](Self::tcp).
    pub fn spread(&mut self, count: usize) -> io::Result<()> {
        if let Some(address) = self.spread {
            while self.sockets.len() < count {
                self.sockets.push(listen_again(address)?);
            }
        }
        Ok(())
    }

    /// Enables TLS.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, config: TlsConfig) -> Self {
        self.tls = Some(config);
        self
    }

    /// Returns whether TLS is enabled.
    pub fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the TCP address of the listener; `None` for a unix socket.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        let socket = self.sockets.first()?;
        SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()
    }

    /// Returns whether this is a TCP socket for IPv6 that does not accept IPv4 connections.
    pub fn is_v6_only(&self) -> bool {
        let socket = self.sockets.first();
        socket.is_some_and(|socket| sockopt::ipv6_v6only(socket).unwrap_or(false))
    }

    /// Changes the maximum number of connections that wait to be accepted, for each socket.
    ///
    /// # Errors
    ///
    /// System errors.
    pub fn set_backlog(&self, backlog: u32) -> io::Result<()> {
        let listen = |socket| rustix::net::listen(socket, backlog_number(backlog));
        Ok(self.sockets.iter().try_for_each(listen)?)
    }

    /// Returns the path of the listener's unix socket; `None` for a TCP socket, or for a unix
    /// socket without a path.
    pub fn path(&self) -> Option<PathBuf> {
        let socket = self.sockets.first()?;
        let address = SocketAddrUnix::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
        address
            .path_bytes()
            .map(|path| OsStr::from_bytes(path).into())
    }

    /// Returns the sockets for each of `count` I/O threads, and a copy of every socket. Each socket
    /// is assigned to a thread, because connections may wait on it. If there are fewer sockets than
    /// threads, threads share sockets.
    pub(crate) fn into_sockets(
        mut self,
        count: usize,
        limits: &Limits,
    ) -> io::Result<(Vec<Vec<Socket>>, Vec<OwnedFd>)> {
        self.spread(count)?;
        if self.local_addr().is_some() {
            for socket in &self.sockets {
                // Without the options, a server still works, and only keeps vanished clients.
                detect_silence(socket, limits).unwrap_or_default();
            }
        }
        let copies = self
            .sockets
            .iter()
            .map(OwnedFd::try_clone)
            .collect::<io::Result<_>>()?;
        let socket_count = self.sockets.len();
        let sharer_count = count.saturating_sub(socket_count);
        let own_count = count - sharer_count;
        let mut shares: Vec<Vec<Socket>> = Vec::new();
        shares.resize_with(count, Vec::new);
        for (thread, share) in shares.iter_mut().enumerate().take(sharer_count) {
            let socket = self.sockets[thread % socket_count].try_clone()?;
            share.push(self.end(socket, true));
        }
        let sockets = std::mem::take(&mut self.sockets);
        for (index, socket) in sockets.into_iter().enumerate() {
            let end = self.end(socket, index < sharer_count);
            shares[sharer_count + index % own_count].push(end);
        }
        Ok((shares, copies))
    }

    fn end(&self, socket: OwnedFd, is_shared: bool) -> Socket {
        Socket {
            socket,
            is_shared,
            is_polled: false,
            tls: self.tls.clone(),
        }
    }
}

/// A listening socket of one I/O thread.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: OwnedFd,
    pub(crate) is_shared: bool,
    /// Whether the socket is registered with the poll. It is not while descriptors are exhausted.
    pub(crate) is_polled: bool,
    pub(crate) tls: Option<TlsConfig>,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Maximum time to wait for the lock of a unix socket's directory.
const LOCK_TIME: Duration = Duration::from_secs(1);

/// Locks the directory of a unix socket. While the new socket is bound but does not listen yet,
/// another process could take it for an unused one and replace it; the lock prevents that. Returns
/// `None` if the lock is not free in time: any process may lock a directory such as `/tmp` forever.
fn lock_directory(path: &Path) -> Option<File> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let directory = File::open(parent.unwrap_or(Path::new("."))).ok()?;
    let start = Instant::now();
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory),
            Err(Errno::WOULDBLOCK) if start.elapsed() < LOCK_TIME => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return None,
        }
    }
}

/// Connects to a unix socket and disconnects. Does not block, because the backlog of a hanging
/// server may be full.
fn knock(path: &Path) -> Result<(), Errno> {
    let probe = sys::stream_socket(AddressFamily::UNIX)?;
    rustix::net::connect(&probe, &SocketAddrUnix::new(path)?)
}

fn backlog_number(backlog: u32) -> i32 {
    i32::try_from(backlog).unwrap_or(i32::MAX)
}

/// Number of attempts to listen if another process starts to listen at the same moment.
const TRY_COUNT: u32 = 8;

/// Creates the first socket of an address. Two processes can both bind the address before either
/// listens. If both then start to listen at the same moment, the kernel may refuse both, so this
/// retries.
fn begin_to_listen(address: Address) -> io::Result<OwnedFd> {
    for _ in 0..TRY_COUNT {
        let socket = tcp_socket(address, address.is_shared)?;
        match rustix::net::listen(&socket, backlog_number(address.backlog)) {
            Err(Errno::ADDRINUSE) => {}
            outcome => return outcome.map(|()| socket).map_err(io::Error::from),
        }
        drop(socket);
        pause();
    }
    Err(Errno::ADDRINUSE.into())
}

/// Creates a further socket of an address. Retries, because a competing process may still be bound
/// to the address until its own attempt fails.
fn listen_again(address: Address) -> io::Result<OwnedFd> {
    let attempt = || -> io::Result<OwnedFd> {
        let socket = tcp_socket(address, true)?;
        rustix::net::listen(&socket, backlog_number(address.backlog))?;
        Ok(socket)
    };
    for _ in 0..TRY_COUNT {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => pause(),
            outcome => return outcome,
        }
    }
    attempt()
}

/// Sleeps for a random time, so that two processes do not collide again.
fn pause() {
    let chance = RandomState::new().build_hasher().finish() % 16;
    std::thread::sleep(Duration::from_millis(1 + chance));
}

fn tcp_socket(address: Address, reuse_port: bool) -> io::Result<OwnedFd> {
    let Address { addr, v6_only, .. } = address;
    let family = if addr.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = sys::stream_socket(family)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, reuse_port)?;
    if addr.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, v6_only)?;
    }
    // Accepted sockets inherit `TCP_NODELAY`. Responses are written as a whole, so Nagle's
    // algorithm would only delay them.
    sockopt::set_tcp_nodelay(&socket, true)?;
    rustix::net::bind(&socket, &addr)?;
    Ok(socket)
}

/// Number of keep-alive probes within the second half of [`Limits::silence_time`].
const PROBE_COUNT: u32 = 3;

/// Makes the kernel close connections whose clients have vanished without FIN or RST. Accepted
/// sockets inherit these options.
fn detect_silence(socket: impl AsFd, limits: &Limits) -> io::Result<()> {
    /// Maximum of the kernel for the times of keep-alive, in seconds.
    const SECONDS_MAX: u64 = 32_767;
    let silence_time = limits.silence_time;
    let seconds = |time: Duration| Duration::from_secs(time.as_secs().clamp(1, SECONDS_MAX));
    sockopt::set_socket_keepalive(&socket, !silence_time.is_zero())?;
    if silence_time.is_zero() {
        return Ok(());
    }
    let probed_time = silence_time / 2;
    sockopt::set_tcp_keepidle(&socket, seconds(silence_time - probed_time))?;
    sockopt::set_tcp_keepintvl(&socket, seconds(probed_time / PROBE_COUNT))?;
    sockopt::set_tcp_keepcnt(&socket, PROBE_COUNT)?;
    // Without this option, unacknowledged data are sent again for a quarter of an hour. It also
    // limits the time for which a client does not read, so it is not shorter than `stall_time`.
    sys::set_user_timeout(&socket, silence_time.max(limits.stall_time))
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn the_first_address_that_can_be_bound_is_taken() {
        let taken = Listener::bind("127.0.0.1:0").unwrap();
        let taken = taken.local_addr().unwrap();
        assert_eq!(
            Listener::bind(taken).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let bound = Listener::bind(&[taken, free][..]).unwrap();
        assert_ne!(bound.local_addr(), Some(taken));
        for malformed in ["127.0.0.1", "127.0.0.1:x", ""] {
            assert!(Listener::bind(malformed).is_err(), "{malformed}");
        }
        let none: &[SocketAddr] = &[];
        assert!(Listener::bind(none).is_err());
    }

    /// The winner creates further sockets while the loser is still trying.
    #[test]
    fn exactly_one_of_several_concurrent_listeners_succeeds() {
        const ROUND_COUNT: usize = 300;
        const THREAD_COUNT: usize = 4;
        let barrier = Barrier::new(THREAD_COUNT);
        let race = |addr| {
            barrier.wait();
            Listener::tcp(addr, 16).and_then(|mut one| one.spread(2).map(|()| one))
        };
        for round in 0..ROUND_COUNT {
            let any = "127.83.7.9:0".parse().unwrap();
            let addr = Listener::tcp(any, 16).unwrap().local_addr().unwrap();
            let outcomes: Vec<_> = std::thread::scope(|scope| {
                let racers = [(); THREAD_COUNT].map(|()| scope.spawn(|| race(addr)));
                racers.map(|racer| racer.join().unwrap()).into()
            });
            let winner_count = outcomes.iter().filter(|one| one.is_ok()).count();
            assert_eq!(winner_count, 1, "round {round}: {outcomes:?}");
        }
    }
}
