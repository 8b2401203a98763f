//! [`Guarded`]: a resolver for servers that are trusted only as far as they are public. Such a
//! server may redirect a request, but not into the network of this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::PoisonError;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Who can reach an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// This machine.
    Loopback,
    /// The link, such as the metadata service of a cloud.
    Link,
    /// A private network, a group, or nobody.
    Private,
    /// Everybody.
    Public,
}

impl Reach {
    /// # Source
    ///
    /// The IANA special-purpose address registries (RFC 6890).
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => Self::of_v6(address),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        let [first, second, ..] = address.octets();
        match (first, second) {
            (127 | 0, _) => Self::Loopback,
            (169, 254) => Self::Link,
            (10, _) | (172, 16..=31) | (192, 168) | (100, 64..=127) | (198, 18 | 19) => {
                Self::Private
            }
            (224.., _) => Self::Private,
            _ => Self::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        let [first, second, ..] = address.segments();
        match first {
            _ if address.is_loopback() || address.is_unspecified() => Self::Loopback,
            0xfe80..=0xfebf => Self::Link,
            0xfc00..=0xfdff | 0xfec0..=0xfeff | 0xff00..=0xffff => Self::Private,
            // An IPv4 address behind a translator (NAT64, 6to4) is judged as itself.
            0x64 if second == 0xff9b => {
                let [.., high, low] = address.segments();
                Self::of_v4(embedded(high, low))
            }
            0x2002 => {
                let [_, high, low, ..] = address.segments();
                Self::of_v4(embedded(high, low))
            }
            _ => Self::Public,
        }
    }
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

/// Resolves the host of a server as usual. Of the addresses of other hosts, to which the server
/// redirects, only those remain that everybody can reach, or that are of a kind which the server's
/// own address is, too.
#[derive(Debug)]
pub(crate) struct Guarded {
    host: String,
    /// The kinds of the server's addresses, when they were last resolved.
    own: Mutex<Vec<Reach>>,
    resolver: DefaultResolver,
}

impl Guarded {
    /// Returns a resolver for requests to `host`.
    pub(crate) fn new(host: String) -> Self {
        Self {
            host,
            own: Mutex::default(),
            resolver: DefaultResolver::default(),
        }
    }

    fn is_admitted(&self, address: IpAddr) -> bool {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let reach = Reach::of(address);
        reach == Reach::Public || own.contains(&reach)
    }
}

impl Resolver for Guarded {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let all = self.resolver.resolve(uri, config, timeout)?;
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.eq_ignore_ascii_case(&self.host) {
            let kinds = all.iter().map(|address| Reach::of(address.ip())).collect();
            *self.own.lock().unwrap_or_else(PoisonError::into_inner) = kinds;
            return Ok(all);
        }
        let mut admitted = self.resolver.empty();
        for address in all.iter().filter(|address| self.is_admitted(address.ip())) {
            admitted.push(*address);
        }
        match admitted.is_empty() {
            false => Ok(admitted),
            true => Err(ureq::Error::Io(std::io::Error::other(format!(
                "it redirects the request to {host}, which has no public address"
            )))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_judged_by_who_can_reach_them() {
        let of = |text: &str| Reach::of(text.parse().unwrap());
        for text in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "::1",
            "::",
            "::ffff:127.0.0.1",
        ] {
            assert_eq!(of(text), Reach::Loopback, "{text}");
        }
        for text in [
            "169.254.169.254",
            "fe80::1",
            "::ffff:169.254.1.1",
            "64:ff9b::a9fe:a9fe",
        ] {
            assert_eq!(of(text), Reach::Link, "{text}");
        }
        let private = [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "2002:a00:1::1",
        ];
        for text in private {
            assert_eq!(of(text), Reach::Private, "{text}");
        }
        for text in [
            "151.101.1.91",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1",
            "64:ff9b::808:808",
        ] {
            assert_eq!(of(text), Reach::Public, "{text}");
        }
    }

    #[test]
    fn other_hosts_are_reached_only_as_publicly_as_the_server_itself() {
        let guarded = Guarded::new("up.example".to_owned());
        let is_admitted = |text: &str| guarded.is_admitted(text.parse().unwrap());
        assert!(is_admitted("151.101.1.91"));
        assert!(!is_admitted("127.0.0.1") && !is_admitted("10.0.0.1"));
        *guarded.own.lock().unwrap() = vec![Reach::Loopback];
        assert!(is_admitted("127.0.0.2") && is_admitted("151.101.1.91"));
        assert!(!is_admitted("169.254.169.254") && !is_admitted("10.0.0.1"));
    }
}
