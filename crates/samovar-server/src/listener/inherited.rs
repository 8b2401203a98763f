//! Sockets that the service manager has bound (`LISTEN_FDS`).
//!
//! They replace the default listeners. If listeners were configured, each inherited socket must be
//! within one of them ([`InheritedListener::is_within`]): a socket on all addresses must not
//! override a configuration that names only the loopback address.

use std::fmt;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;

use super::spec::{Host, ListenSpec};

/// A listening socket passed by the service manager, in blocking or non-blocking mode.
#[derive(Debug)]
pub enum InheritedListener {
    /// TCP, IPv4 or IPv6.
    Tcp(TcpListener),
    /// A Unix stream socket.
    Unix(UnixListener),
}

impl InheritedListener {
    /// Returns whether `spec` covers every connection that this socket accepts.
    pub fn is_within(&self, spec: &ListenSpec) -> bool {
        match (self, spec) {
            (Self::Tcp(socket), ListenSpec::Tcp { host, port }) => {
                socket.local_addr().is_ok_and(|bound| {
                    (*port == 0 || *port == bound.port()) && host.includes(bound.ip())
                })
            }
            (Self::Unix(socket), ListenSpec::Unix(path)) => {
                let path = std::path::absolute(path).ok();
                socket
                    .local_addr()
                    .is_ok_and(|bound| bound.as_pathname() == path.as_deref() && path.is_some())
            }
            _ => false,
        }
    }
}

impl Host {
    fn includes(&self, bound: IpAddr) -> bool {
        match self {
            Self::Any | Self::PreferIpv4 | Self::PreferIpv6 => true,
            Self::OnlyIpv4 => bound.is_ipv4(),
            Self::OnlyIpv6 => bound.is_ipv6(),
            // `[::]` accepts IPv4 too, `0.0.0.0` does not accept IPv6.
            Self::Address(address) if address.is_unspecified() => {
                address.is_ipv6() || bound.is_ipv4()
            }
            Self::Address(address) => *address == bound,
            Self::Name(name) => {
                let found = std::net::ToSocketAddrs::to_socket_addrs(&(name.as_str(), 0));
                found.is_ok_and(|mut found| found.any(|address| address.ip() == bound))
            }
        }
    }
}

impl fmt::Display for InheritedListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(socket) => match socket.local_addr() {
                Ok(address) => address.fmt(f),
                Err(_) => f.write_str("a TCP socket"),
            },
            Self::Unix(socket) => {
                let address = socket.local_addr().ok();
                match address.as_ref().and_then(|address| address.as_pathname()) {
                    Some(path) => path.display().fmt(f),
                    None => f.write_str("a unix socket without a path"),
                }
            }
        }
    }
}

/// An inherited descriptor that is not a listening stream socket.
#[derive(Debug, thiserror::Error)]
#[error("descriptor {index} of LISTEN_FDS is no stream socket")]
pub struct InheritedError {
    /// Index, counted from 0; the descriptor number is three more.
    pub index: usize,
    /// Why the descriptor cannot be used.
    #[source]
    pub source: io::Error,
}

/// Takes the sockets passed in `LISTEN_FDS`; empty if there are none.
///
/// Must be called only once: a second call would create second owners of the same descriptors,
/// which `listenfd` cannot detect. Does nothing if `LISTEN_PID` is not the PID of this process, so
/// a child does not take its parent's sockets.
///
/// # Errors
///
/// [`InheritedError`] for the first descriptor of another kind. Using only the other sockets would
/// let the clients of that one wait forever.
pub fn inherited() -> Result<Vec<InheritedListener>, InheritedError> {
    let mut sockets = ListenFd::from_env();
    (0..sockets.len())
        .map(|index| take(&mut sockets, index))
        .collect()
}

fn take(sockets: &mut ListenFd, index: usize) -> Result<InheritedListener, InheritedError> {
    // A socket of another kind stays in `sockets`, so the order of these attempts does not matter.
    if let Ok(Some(tcp)) = sockets.take_tcp_listener(index) {
        return Ok(InheritedListener::Tcp(tcp));
    }
    match sockets.take_unix_listener(index) {
        Ok(Some(unix)) => Ok(InheritedListener::Unix(unix)),
        Ok(None) => Err(InheritedError {
            index,
            source: io::ErrorKind::NotFound.into(),
        }),
        Err(source) => Err(InheritedError { index, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> ListenSpec {
        ListenSpec::parse(text.as_ref()).expect("valid").spec
    }

    #[test]
    fn tcp_sockets_are_within_the_addresses_that_include_them() {
        let bind = |address: &str| TcpListener::bind((address, 0)).expect("binds");
        let check = |address: &str, text: &str, expected: bool| {
            let socket = bind(address);
            let port = socket.local_addr().expect("is bound").port();
            let spec = spec(&text.replace("PORT", &port.to_string()));
            let is_within = InheritedListener::Tcp(socket).is_within(&spec);
            assert_eq!(is_within, expected, "{address} within {text}");
        };
        check("127.0.0.1", "127.0.0.1:PORT", true);
        check("127.0.0.1", "127.0.0.1:0", true);
        check("127.0.0.1", "127.0.0.1:1", false);
        check("127.0.0.1", ":PORT", true);
        check("127.0.0.1", "0.0.0.0:PORT", true);
        check("127.0.0.1", "[::]:PORT", true);
        check("127.0.0.1", "localhost:PORT", true);
        check("127.0.0.1", "127.0.0.2:PORT", false);
        check("127.0.0.1", "!6:PORT", false);
        check("127.0.0.1", "/run/socket", false);
        check("0.0.0.0", "127.0.0.1:PORT", false);
        check("0.0.0.0", "!4:PORT", true);
    }

    #[test]
    fn unix_sockets_are_within_their_own_path() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let socket = UnixListener::bind(&path).expect("binds");
        let socket = InheritedListener::Unix(socket);
        assert!(socket.is_within(&ListenSpec::Unix(path.clone())));
        assert!(!socket.is_within(&ListenSpec::Unix(path.with_extension("x"))));
        assert!(!socket.is_within(&spec(":0")));
        assert_eq!(socket.to_string(), path.display().to_string());
    }
}
