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

impl Bind {
    /// Returns the TCP addresses.
    pub(crate) fn addresses(&self) -> &[TcpAddress] {
        match self {
            Self::FirstOf(addresses) | Self::EachOf(addresses) => addresses,
            Self::Unix(_) => &[],
        }
    }

    /// Returns whether nothing is to be bound.
    pub(crate) fn is_empty(&self) -> bool {
        !matches!(self, Self::Unix(_)) && self.addresses().is_empty()
    }

    /// Returns whether a socket of this accepts all connections to `address`.
    pub(crate) fn includes(&self, address: &TcpAddress) -> bool {
        match self {
            Self::FirstOf(addresses) => addresses.first().is_some_and(|own| own.includes(address)),
            Self::EachOf(addresses) => addresses.iter().any(|own| own.includes(address)),
            Self::Unix(_) => false,
        }
    }

    /// Returns whether sockets of this accept all connections to the addresses of `other`.
    pub(crate) fn includes_all(&self, other: &Self) -> bool {
        let needed = match other {
            Self::FirstOf(addresses) => addresses.get(..1).unwrap_or_default(),
            Self::EachOf(addresses) => addresses,
            Self::Unix(_) => return false,
        };
        needed.iter().all(|address| self.includes(address))
    }

    /// Removes the addresses for which `is_unneeded` returns true; all of them if only one of them
    /// is to be bound, and the first is unneeded. Returns whether there were any.
    pub(crate) fn remove(&mut self, is_unneeded: impl Fn(&TcpAddress) -> bool) -> bool {
        let (Self::FirstOf(addresses) | Self::EachOf(addresses)) = self else {
            return false;
        };
        let count = addresses.len();
        let is_first_unneeded = addresses.first().is_some_and(&is_unneeded);
        match self {
            Self::FirstOf(addresses) if is_first_unneeded => addresses.clear(),
            Self::EachOf(addresses) => addresses.retain(|address| !is_unneeded(address)),
            Self::FirstOf(_) | Self::Unix(_) => {}
        }
        self.addresses().len() < count
    }
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

    /// Returns whether a socket of this address accepts all connections to `other`.
    fn includes(&self, other: &Self) -> bool {
        let (own, ip) = (self.address, other.address.ip());
        if own.port() != other.address.port() || own.port() == 0 {
            return false;
        }
        let has_more_families = self.v6_only && !other.v6_only && ip.is_unspecified();
        let is_same_family = own.is_ipv6() == ip.is_ipv6() && !has_more_families;
        let accepts_both = own.is_ipv6() && !self.v6_only;
        match own.ip().is_unspecified() {
            true => is_same_family || accepts_both && ip.is_ipv4(),
            false => own == other.address,
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
    fn an_address_includes_those_whose_connections_it_accepts() {
        let includes = |one: &str, other: &str| {
            let bind = |text: &str| {
                let spec = ListenSpec::parse(text.as_ref()).expect("valid").spec;
                spec.resolve().expect("resolves")
            };
            bind(one).includes_all(&bind(other))
        };
        for (one, other) in [
            ("*:5", "127.0.0.1:5"),
            ("*:5", "[::1]:5"),
            ("*:5", "0.0.0.0:5"),
            ("*:5", "!6:5"),
            ("[::]:5", "*:5"),
            ("[::]:5", "127.0.0.1:5"),
            ("0.0.0.0:5", "127.0.0.1:5"),
            ("!6:5", "[::1]:5"),
            ("127.0.0.1:5", "127.0.0.1:5"),
        ] {
            assert!(includes(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("*:5", "127.0.0.1:6"),
            ("*:0", "127.0.0.1:0"),
            ("!6:5", "127.0.0.1:5"),
            ("!6:5", "*:5"),
            ("0.0.0.0:5", "[::1]:5"),
            ("0.0.0.0:5", "*:5"),
            ("127.0.0.1:5", "127.0.0.2:5"),
        ] {
            assert!(!includes(one, other), "{one} {other}");
        }
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
