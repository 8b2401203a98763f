//! Resolves configured addresses to socket addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;

use anyhow::{Context as _, ensure};

use super::spec::{Host, ListenSpec};

/// The socket addresses of one [`ListenSpec`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bind {
    /// The first of these addresses that can be bound. The next one is tried only if
    /// [`family_missing`] returns true for the error.
    FirstOf(Vec<TcpAddress>),
    /// Each of these addresses. An error for which [`family_missing`] returns true is ignored if
    /// another address is bound: `/etc/hosts` often has an IPv6 address for `localhost` even on
    /// machines without IPv6.
    EachOf(Vec<TcpAddress>),
    /// A Unix socket at this path.
    Unix(PathBuf),
}

/// A TCP address with socket options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TcpAddress {
    /// Address and port. Port 0 lets the system choose.
    pub(crate) address: SocketAddr,
    /// Value of the socket option `IPV6_V6ONLY`, which is always set because the system's default
    /// varies. False for IPv4.
    pub(crate) v6_only: bool,
}

impl ListenSpec {
    /// Resolves host names.
    pub(crate) fn resolve(&self) -> anyhow::Result<Bind> {
        match self {
            Self::Unix(path) => Ok(Bind::Unix(path.clone())),
            Self::Tcp { host, port } => host.resolve(*port),
        }
    }
}

impl Host {
    fn resolve(&self, port: u16) -> anyhow::Result<Bind> {
        let v4 = TcpAddress::new(Ipv4Addr::UNSPECIFIED.into(), port);
        let dual = TcpAddress::new(Ipv6Addr::UNSPECIFIED.into(), port);
        let v6 = TcpAddress {
            v6_only: true,
            ..dual
        };
        Ok(match self {
            Self::Any | Self::PreferIpv6 => Bind::FirstOf(vec![dual, v4]),
            Self::PreferIpv4 => Bind::FirstOf(vec![v4, dual]),
            Self::OnlyIpv4 => Bind::FirstOf(vec![v4]),
            Self::OnlyIpv6 => Bind::FirstOf(vec![v6]),
            // A socket on `[::]` accepts IPv4 too: the default on Linux.
            Self::Address(address) => Bind::FirstOf(vec![TcpAddress::new(*address, port)]),
            Self::Name(name) => Bind::EachOf(resolve_name(name, port)?),
        })
    }
}

impl TcpAddress {
    fn new(address: IpAddr, port: u16) -> Self {
        Self {
            address: SocketAddr::new(address, port),
            v6_only: false,
        }
    }
}

fn resolve_name(name: &str, port: u16) -> anyhow::Result<Vec<TcpAddress>> {
    let cannot_resolve = || format!("cannot resolve {name}");
    let found = (name, port).to_socket_addrs();
    let found = found.with_context(cannot_resolve)?;
    let mut addresses: Vec<TcpAddress> = Vec::new();
    for address in found {
        // IPv6 only: the IPv4 addresses of a name are bound separately.
        let address = TcpAddress {
            address,
            v6_only: address.is_ipv6(),
        };
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    ensure!(!addresses.is_empty(), cannot_resolve());
    Ok(addresses)
}

/// Returns whether `error`, from creating or binding a socket, means that the machine lacks the
/// address family.
///
/// Kernels without IPv6 return `EAFNOSUPPORT`; kernels with IPv6 turned off return `EADDRNOTAVAIL`.
pub(crate) fn family_missing(error: &io::Error) -> bool {
    const AFNOSUPPORT: i32 = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
    error.raw_os_error() == Some(AFNOSUPPORT) || error.kind() == io::ErrorKind::AddrNotAvailable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(&str, bool)]) {
        let spec = ListenSpec::parse(text.as_ref()).expect("valid").spec;
        let (Bind::FirstOf(found) | Bind::EachOf(found)) = spec.resolve().expect("resolves") else {
            panic!("a Unix socket");
        };
        let found: Vec<_> = found
            .iter()
            .map(|tcp| (tcp.address.to_string(), tcp.v6_only))
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(text, v6)| ((*text).to_owned(), *v6))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn wildcards() {
        check(":5000", &[("[::]:5000", false), ("0.0.0.0:5000", false)]);
        check("*4:5000", &[("0.0.0.0:5000", false), ("[::]:5000", false)]);
        check("*6:5000", &[("[::]:5000", false), ("0.0.0.0:5000", false)]);
        check("!4:5000", &[("0.0.0.0:5000", false)]);
        check("!6:5000", &[("[::]:5000", true)]);
        check("[::]:5000", &[("[::]:5000", false)]);
        check("127.0.0.1:0", &[("127.0.0.1:0", false)]);
    }

    #[test]
    fn localhost_has_no_address_twice() {
        let spec = ListenSpec::Tcp {
            host: Host::Name("localhost".to_owned()),
            port: 1,
        };
        let Bind::EachOf(found) = spec.resolve().expect("resolves") else {
            panic!("each")
        };
        assert!(found.iter().all(|tcp| tcp.address.ip().is_loopback()));
        assert!(found.iter().all(|tcp| tcp.v6_only == tcp.address.is_ipv6()));
        let distinct: std::collections::HashSet<_> = found.iter().collect();
        assert_eq!(distinct.len(), found.len());
    }
}
