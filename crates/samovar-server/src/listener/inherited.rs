//! Sockets that the service manager has bound (`LISTEN_FDS`).
//!
//! They replace the default listeners. If listeners were configured, each inherited socket must be
//! within one of them ([`is_within`]): a socket on all addresses must not
//! override a configuration that names only the loopback address.

use std::io;
use std::net::IpAddr;

use anyhow::Context as _;
use listenfd::ListenFd;
use samovar_http::Listener;

use super::spec::{Host, ListenSpec};

/// Returns whether `spec` covers every connection that a listening socket accepts.
pub(crate) fn is_within(socket: &Listener, spec: &ListenSpec) -> bool {
    let bound = match (socket.local_addr(), socket.path()) {
        (Some(address), _) => Some(ListenSpec::Tcp {
            host: Host::Address(address.ip()),
            port: address.port(),
        }),
        (None, path) => path.map(ListenSpec::Unix),
    };
    bound.is_some_and(|bound| spec.covers(&bound))
}

impl ListenSpec {
    /// Returns whether this listener covers every connection that a socket on `bound` accepts.
    /// Its host is an address.
    pub fn covers(&self, bound: &Self) -> bool {
        match (self, bound) {
            (
                Self::Tcp { host, port },
                Self::Tcp {
                    host: bound,
                    port: bound_port,
                },
            ) => {
                let address = match bound {
                    Host::Address(address) => Some(*address),
                    _ => None,
                };
                (*port == 0 || port == bound_port)
                    && address.is_some_and(|address| host.includes(address))
            }
            (Self::Unix(path), Self::Unix(bound)) => {
                std::path::absolute(path).is_ok_and(|path| path == *bound)
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

/// Takes the sockets passed in `LISTEN_FDS`; empty if there are none.
///
/// Must be called only once: a second call would create second owners of the same descriptors,
/// which `listenfd` cannot detect. Does nothing if `LISTEN_PID` is not the PID of this process, so
/// a child does not take its parent's sockets.
///
/// # Errors
///
/// The first descriptor that is not a listening stream socket. If only the other sockets were used,
/// clients of this socket would wait forever.
pub(crate) fn inherited() -> anyhow::Result<Vec<Listener>> {
    let mut sockets = ListenFd::from_env();
    (0..sockets.len())
        .map(|index| take(&mut sockets, index))
        .collect()
}

fn take(sockets: &mut ListenFd, index: usize) -> anyhow::Result<Listener> {
    // A socket of another kind stays in `sockets`, so the order of these attempts does not matter.
    let socket = match sockets.take_tcp_listener(index) {
        Ok(Some(tcp)) => Ok(tcp.into()),
        _ => match sockets.take_unix_listener(index) {
            Ok(Some(unix)) => Ok(unix.into()),
            Ok(None) => Err(io::ErrorKind::NotFound.into()),
            Err(error) => Err(error),
        },
    };
    let socket =
        socket.with_context(|| format!("descriptor {index} of LISTEN_FDS is no stream socket"))?;
    Listener::inherited(socket).context("cannot use a socket of the service manager")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

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
            let socket = Listener::inherited(socket.into()).expect("listens");
            assert_eq!(
                is_within(&socket, &spec),
                expected,
                "{address} within {text}"
            );
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
        let socket = Listener::inherited(socket.into()).expect("listens");
        assert!(is_within(&socket, &ListenSpec::Unix(path.clone())));
        assert!(!is_within(
            &socket,
            &ListenSpec::Unix(path.with_extension("x"))
        ));
        assert!(!is_within(&socket, &spec(":0")));
    }
}
