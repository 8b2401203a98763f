//! Addresses and names of clients.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Address of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Address of a TCP client.
    Tcp(SocketAddr),
    /// A client on a unix socket, which has no address; its credentials, if the kernel knows them.
    Unix(Option<UnixPeer>),
}

/// Credentials of the process that connected to a unix socket, as of that time (`SO_PEERCRED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnixPeer {
    /// Effective user ID.
    pub uid: u32,
    /// Effective group ID; supplementary groups are not included.
    pub gid: u32,
}

/// A name of the client, from its certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PeerName {
    /// The common name of the subject, if there is exactly one.
    CommonName(Box<str>),
    /// A DNS name among the subject's alternative names, in lower case.
    Dns(Box<str>),
    /// A URI among the subject's alternative names.
    Uri(Box<str>),
}

impl Peer {
    /// Returns the address under which a client is counted. For IPv6, it is the first 64 bits,
    /// because one customer usually controls the remaining bits.
    pub(crate) fn network(self) -> u128 {
        match self {
            Self::Tcp(address) => match address.ip().to_canonical() {
                IpAddr::V4(address) => u128::from(address.to_bits()),
                IpAddr::V6(address) => address.to_bits() >> 64 << 64,
            },
            Self::Unix(_) => 0,
        }
    }
}

impl PeerName {
    /// Returns the name without its kind, for logs. A DNS name and a common name with the same text
    /// are different names.
    pub fn as_str(&self) -> &str {
        match self {
            Self::CommonName(name) | Self::Dns(name) | Self::Uri(name) => name,
        }
    }
}

impl fmt::Display for Peer {
    /// Writes the IP address without the port, as in access logs; `-` for a unix socket.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.ip().to_canonical().fmt(f),
            Self::Unix(_) => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_clients() {
        let of = |text: &str| Peer::Tcp(text.parse().unwrap()).network();
        assert_eq!(of("1.2.3.4:5"), of("1.2.3.4:6"));
        assert_eq!(of("1.2.3.4:5"), of("[::ffff:1.2.3.4]:5"));
        assert_ne!(of("1.2.3.4:5"), of("1.2.3.5:5"));
        assert_eq!(of("[2001:db8::1]:5"), of("[2001:db8::2:3]:5"));
        assert_ne!(of("[2001:db8::1]:5"), of("[2001:db8:0:1::1]:5"));
    }
}
