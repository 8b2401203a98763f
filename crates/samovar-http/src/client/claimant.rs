//! [`Claimant`]: the client for whom a long computation is done.

use std::net::IpAddr;

use super::Peer;

/// The client for whom a worker does a long computation, and its rank. In the queue of such
/// computations, the networks of clients take turns: a /48 of IPv6 addresses, an IPv4 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimant {
    pub(crate) network: u64,
    pub(crate) comes_first: bool,
}

/// The number of the network of all clients without an address.
const NOWHERE: u64 = u64::MAX;

impl Claimant {
    /// Returns the client with this address, or one without any, such as a process on a unix
    /// socket.
    pub fn of(address: Option<IpAddr>) -> Self {
        let network = match address.map(|address| address.to_canonical()) {
            Some(IpAddr::V4(address)) => u64::from(address.to_bits()),
            // No claimant by IPv4 has this top bit.
            Some(IpAddr::V6(address)) => {
                let [a, b, c, d, e, f, ..] = address.octets();
                u64::from_be_bytes([0x80, 0, a, b, c, d, e, f])
            }
            None => NOWHERE,
        };
        Self {
            network,
            comes_first: false,
        }
    }

    /// Places the client before all others that are not placed so.
    #[must_use]
    pub fn first(self) -> Self {
        Self {
            comes_first: true,
            ..self
        }
    }

    /// Returns the claimant of a request whose service has named none.
    pub(crate) fn at(peer: Option<Peer>) -> Self {
        match peer {
            Some(Peer::Tcp(address)) => Self::of(Some(address.ip())).first(),
            _ => Self::of(None).first(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Claimant;

    #[test]
    fn networks_of_clients() {
        let of = |address: &str| Claimant::of(Some(address.parse().unwrap())).network;
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("2001:db8:1::1"), of("2001:db8:1:ffff::"));
        assert_ne!(of("2001:db8:1::1"), of("2001:db8:2::1"));
        assert_ne!(of("0.0.0.1"), of("0:0:1::"));
        assert_ne!(
            of("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            Claimant::of(None).network
        );
    }
}
