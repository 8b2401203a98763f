//! Sockets that connections arrive on.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

#[cfg(feature = "tls")]
use crate::tls::TlsConfig;

/// A bound socket, or several for one address.
///
/// For TCP each I/O thread gets a socket of its own on the same port (`SO_REUSEPORT`), so that the
/// kernel spreads connections and no thread wakes for another's. Unix sockets and inherited ones
/// are shared.
#[derive(Debug)]
pub struct Listener {
    sockets: Vec<OwnedFd>,
    /// Set if more sockets for the same address can be made.
    spread: Option<Address>,
    #[cfg(feature = "tls")]
    tls: Option<TlsConfig>,
}

/// A TCP address and how to listen on it.
#[derive(Debug, Clone, Copy)]
struct Address {
    addr: SocketAddr,
    v6_only: bool,
    /// Other processes may listen there too.
    is_shared: bool,
    backlog: u32,
}

impl Listener {
    /// Binds a TCP address and listens. `backlog`: connections that may wait to be accepted.
    /// `[::]` takes IPv4 connections too.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if anybody listens there, another server with `SO_REUSEPORT` included; others
    /// as the system gives them.
    pub fn tcp(addr: SocketAddr, backlog: u32) -> io::Result<Self> {
        Self::bind(Address {
            addr,
            v6_only: false,
            is_shared: false,
            backlog,
        })
    }

    /// As [`tcp`](Self::tcp), but an IPv6 address leaves IPv4 connections to others.
    ///
    /// # Errors
    ///
    /// As [`tcp`](Self::tcp).
    pub fn tcp_v6_only(addr: SocketAddr, backlog: u32) -> io::Result<Self> {
        Self::bind(Address {
            addr,
            v6_only: true,
            is_shared: false,
            backlog,
        })
    }

    /// As [`tcp`](Self::tcp), but joins other processes of the same user that listen on this
    /// address in the same way: the kernel spreads connections over all of them. For more
    /// connections than one process may have descriptors.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if somebody listens there who does not share; others as the system gives them.
    pub fn tcp_shared(addr: SocketAddr, backlog: u32) -> io::Result<Self> {
        Self::bind(Address {
            addr,
            v6_only: false,
            is_shared: true,
            backlog,
        })
    }

    fn bind(address: Address) -> io::Result<Self> {
        // Without SO_REUSEPORT only one can listen on a port, also of two that start at the same
        // moment: a second server would silently take half of the connections.
        let socket = begin_to_listen(address)?;
        // From here on for the further sockets of this one.
        sockopt::set_socket_reuseport(&socket, true)?;
        let addr = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
        Ok(Self {
            sockets: vec![socket],
            spread: Some(Address { addr, ..address }),
            #[cfg(feature = "tls")]
            tls: None,
        })
    }

    /// Binds a unix socket. A socket file that nobody answers on is replaced.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if a server answers there; `AlreadyExists` if the path is something other than
    /// a socket; others as the system gives them.
    pub fn unix(path: &Path, backlog: u32) -> io::Result<Self> {
        let _lock = lock_directory(path);
        if let Ok(metadata) = std::fs::symlink_metadata(path) {
            if !metadata.file_type().is_socket() {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "a file that is no socket",
                ));
            }
            match knock(path) {
                Err(Errno::CONNREFUSED) => {}
                // A full backlog, a datagram socket, no permission: all are signs of life.
                Ok(()) | Err(_) => {
                    return Err(io::Error::new(
                        io::ErrorKind::AddrInUse,
                        "another server listens there",
                    ));
                }
            }
            std::fs::remove_file(path)?;
        }
        let socket = OwnedFd::from(UnixListener::bind(path)?);
        rustix::net::listen(&socket, backlog_number(backlog))?;
        Self::inherited(socket)
    }

    /// Takes a socket that listens already, from a service manager for example.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if it is something other than a socket that listens: to wait on one would be
    /// to wake for ever.
    pub fn inherited(socket: OwnedFd) -> io::Result<Self> {
        Self::handed_over(vec![socket])
    }

    /// Takes sockets for one address that listen already.
    pub(crate) fn handed_over(sockets: Vec<OwnedFd>) -> io::Result<Self> {
        let invalid = |message| Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        if sockets.is_empty() {
            return invalid("no socket");
        }
        for socket in &sockets {
            if !sockopt::socket_acceptconn(socket)? {
                return invalid("a socket that does not listen");
            }
            // As for a socket of our own; a unix socket has no such option and no such delay.
            sockopt::set_tcp_nodelay(socket, true).unwrap_or_default();
            rustix::io::ioctl_fionbio(socket, true)?;
        }
        Ok(Self {
            sockets,
            spread: None,
            #[cfg(feature = "tls")]
            tls: None,
        })
    }

    /// Makes one socket for each of `count` I/O threads. A server does it when it starts; a
    /// process that gives up the right to bind a low port has to do it before.
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

    /// Speaks HTTPS on it.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, config: TlsConfig) -> Self {
        self.tls = Some(config);
        self
    }

    /// Whether it speaks HTTPS.
    pub fn is_secure(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    /// The address, for a TCP socket.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        let socket = self.sockets.first()?;
        SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()
    }

    /// The path that it was bound to, for a unix socket with a file.
    pub fn path(&self) -> Option<PathBuf> {
        let socket = self.sockets.first()?;
        let address = SocketAddrUnix::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
        address
            .path_bytes()
            .map(|path| OsStr::from_bytes(path).into())
    }

    /// The sockets of each of `count` threads. Every socket has a thread, because connections may
    /// wait on each; a thread without one shares another's. And a copy of every socket.
    pub(crate) fn into_sockets(
        mut self,
        count: usize,
    ) -> io::Result<(Vec<Vec<Socket>>, Vec<OwnedFd>)> {
        self.spread(count)?;
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
            #[cfg(feature = "tls")]
            tls: self.tls.clone(),
        }
    }
}

/// One I/O thread's end of a listener.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: OwnedFd,
    pub(crate) is_shared: bool,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<TlsConfig>,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// How long the directory of a unix socket may be locked by somebody else.
const LOCK_TIME: Duration = Duration::from_secs(1);

/// Lets nobody else look for a server at a path in this directory and replace the socket: one that
/// has started at the same moment and is bound, but does not listen yet, looks like a dead one.
/// None if that cannot be, because anybody may hold a lock on a directory such as `/tmp` for ever.
fn lock_directory(path: &Path) -> Option<File> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let directory = File::open(parent.unwrap_or(Path::new("."))).ok()?;
    let start = Instant::now();
    loop {
        match directory.try_lock() {
            Ok(()) => return Some(directory),
            Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_TIME => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return None,
        }
    }
}

/// Connects to a unix socket and hangs up. Does not wait: a server that hangs has a full backlog,
/// and a connection that blocks would hang with it.
fn knock(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&probe, &SocketAddrUnix::new(path)?)
}

fn backlog_number(backlog: u32) -> i32 {
    i32::try_from(backlog).unwrap_or(i32::MAX)
}

/// How often it is tried again to listen when somebody else begins to at the same moment.
const TRY_COUNT: u32 = 8;

/// The first socket of an address. It can be bound while somebody else is bound and does not listen
/// yet; of two who then begin to listen at the very same moment the kernel may refuse both. Their
/// next try finds one who listens, or nobody.
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

/// A further socket of an address that is ours: who is in the way is about to find that out.
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

/// For a time by chance, so that two do not meet again.
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
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, reuse_port)?;
    if addr.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, v6_only)?;
    }
    // Inherited by accepted sockets: an answer is written whole, so waiting for more to send would
    // only delay it.
    sockopt::set_tcp_nodelay(&socket, true)?;
    rustix::net::bind(&socket, &addr)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// With further sockets: they are made while the loser still tries.
    #[test]
    fn of_several_that_begin_at_once_one_listens() {
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
