//! The client address of a request, also behind reverse proxies.
//!
//! # Theory of operation
//!
//! A proxy appends the address of its peer to `X-Forwarded-For` (or `Forwarded`). The client can
//! forge everything to the left of that entry. The header is therefore used only if the peer is a
//! trusted proxy, and the client is the rightmost address that is not a trusted proxy. Only the
//! configured header is read: most proxies write one of the two and forward the other unchanged.
//!
//! If the proxy's entry is not an address (for example `unknown`), the client's address is unknown
//! and belongs to no network.
//!
//! # Source
//!
//! RFC 7239, sections 4 to 6; `X-Forwarded-For` as nginx, Apache and Caddy write it.

use std::net::{IpAddr, SocketAddr};

use ipnet::{IpNet, Ipv4Net};
use samovar_http::Peer;

use super::config::Forwarded;

/// A set of IP networks, each given as an address prefix such as `10.0.0.0/8`.
#[derive(Debug, Default)]
pub(crate) struct Networks(Vec<IpNet>);

/// Returns whether the text is a network such as `10.0.0.0/8`, or an address.
pub fn is_network(text: &str) -> bool {
    network(text).is_some()
}

fn network(text: &str) -> Option<IpNet> {
    let text = text.trim();
    let alone = || text.parse::<IpAddr>().map(IpNet::from);
    let network = text.parse::<IpNet>().ok().or_else(|| alone().ok())?;
    Some(canonical(network))
}

/// Returns a network of IPv4 addresses in the form `::ffff:0:0/96` as one of IPv4 addresses, which
/// is the form that addresses of clients are compared in.
fn canonical(network: IpNet) -> IpNet {
    let IpNet::V6(mapped) = network else {
        return network;
    };
    let len = mapped.prefix_len().checked_sub(96);
    match (mapped.addr().to_ipv4_mapped(), len) {
        (Some(address), Some(len)) => Ipv4Net::new(address, len).map_or(network, IpNet::V4),
        _ => network,
    }
}

/// Returns the network without its host bits (`10.0.0.0/8`) if a text such as `10.1.2.3/8` has host
/// bits that are not zero; otherwise `None`.
pub fn without_host_bits(text: &str) -> Option<String> {
    let network = network(text)?;
    (network != network.trunc()).then(|| network.trunc().to_string())
}

impl Networks {
    /// Parses prefixes such as `10.0.0.0/8` and single addresses. The error is the first invalid
    /// entry.
    pub(crate) fn parse(entries: &[String]) -> Result<Self, &str> {
        let parsed = entries
            .iter()
            .map(|entry| network(entry).ok_or(entry.as_str()));
        parsed.collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The trusted proxies.
#[derive(Debug, Default)]
pub(crate) struct Proxies {
    pub(crate) networks: Networks,
    /// Whether peers on a Unix socket are trusted proxies.
    pub(crate) unix: bool,
    pub(crate) header: Forwarded,
}

impl Proxies {
    /// Whether these fields contain the header in which a proxy names the client.
    pub(crate) fn is_told<'a>(
        &self,
        mut fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> bool {
        fields.any(|(field, _)| field.eq_ignore_ascii_case(self.header.name()))
    }

    /// Returns the client's address, or `None` if it is unknown.
    pub(crate) fn client<'a>(
        &self,
        peer: Peer,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Option<IpAddr> {
        let (own, is_proxy) = match peer {
            Peer::Tcp(address) => {
                let address = address.ip().to_canonical();
                let is_proxy = !self.networks.is_empty() && self.networks.contains(address);
                (Some(address), is_proxy)
            }
            Peer::Unix(_) => (None, self.unix),
        };
        if !is_proxy {
            return own;
        }
        let name = self.header.name();
        let values = fields
            .filter(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value);
        let mut walk = Walk {
            proxies: self,
            found: None,
        };
        for value in values {
            match self.header {
                Forwarded::XForwardedFor => x_forwarded_for(value, |hop| walk.hop(hop)),
                Forwarded::Forwarded => forwarded(value, |hop| walk.hop(hop)),
            }
        }
        match walk.found {
            // The header has no entries, so the proxy may have forwarded the request of any client.
            None => None,
            Some((address, _)) => address,
        }
    }
}

/// Finds the client's address. [`hop`](Self::hop) is called with the header's entries from left to
/// right.
struct Walk<'p> {
    proxies: &'p Proxies,
    /// The candidate for the client, `None` before the first entry: its address (`None` if the
    /// entry is not an address), and whether it is a trusted proxy.
    found: Option<(Option<IpAddr>, bool)>,
}

impl Walk<'_> {
    fn hop(&mut self, hop: Option<IpAddr>) {
        let is_proxy = hop.is_some_and(|address| self.proxies.networks.contains(address));
        // If all entries are trusted proxies, the leftmost is the client.
        if self.found.is_none() || !is_proxy {
            self.found = Some((hop, is_proxy));
        }
    }
}

fn x_forwarded_for(value: &[u8], mut hop: impl FnMut(Option<IpAddr>)) {
    for entry in value.split(|byte| *byte == b',') {
        hop(address(entry.trim_ascii()));
    }
}

/// Parses a `Forwarded` value (RFC 7239, section 4). If any part of it cannot be parsed, the client
/// is unknown: a quotation mark opened by the client could swallow the entry that the proxy
/// appended.
fn forwarded(value: &[u8], mut hop: impl FnMut(Option<IpAddr>)) {
    let mut rest = value;
    let mut current = None;
    loop {
        let Some((pair, behind)) = pair(rest) else {
            return hop(None);
        };
        if let Some((name, node)) = pair
            && name.eq_ignore_ascii_case(b"for")
        {
            if current.is_some() {
                return hop(None);
            }
            current = Some(address(node));
        }
        match behind.split_first() {
            None => return hop(current.flatten()),
            Some((b',', behind)) => {
                hop(current.take().flatten());
                rest = behind;
            }
            Some((b';', behind)) => rest = behind,
            Some(_) => return hop(None),
        }
    }
}

type Pair<'a> = Option<(&'a [u8], &'a [u8])>;

/// Parses `[ token "=" value ]`. Returns the token and the value, if there are any, and the rest of
/// the text; `None` if the text is invalid.
fn pair(text: &[u8]) -> Option<(Pair<'_>, &[u8])> {
    let is_end = |byte: &u8| matches!(byte, b',' | b';');
    let text = text.trim_ascii_start();
    if text.first().is_none_or(is_end) {
        return Some((None, text));
    }
    let equals = text.iter().position(|byte| *byte == b'=')?;
    let (name, value) = text.split_at(equals);
    if !name
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
    {
        return None;
    }
    let value = value.get(1..)?;
    let (value, rest) = match value.strip_prefix(b"\"") {
        Some(quoted) => {
            let end = quoted.iter().position(|byte| *byte == b'"')?;
            let (value, rest) = quoted.split_at(end);
            // A backslash starts a quoted pair, which an address never contains.
            if value.contains(&b'\\') {
                return None;
            }
            (value, rest.get(1..)?)
        }
        None => {
            let end = value.iter().position(is_end).unwrap_or(value.len());
            let (value, rest) = value.split_at(end);
            let value = value.trim_ascii_end();
            if value.iter().any(|byte| matches!(byte, b'"' | b' ' | b'\t')) {
                return None;
            }
            (value, rest)
        }
    };
    Some((Some((name, value)), rest.trim_ascii_start()))
}

/// Parses an address, with or without a port and brackets. Returns `None` for any other text.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    let address = bare
        .parse()
        .ok()
        .or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))?;
    Some(IpAddr::to_canonical(&address))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn proxies(header: Forwarded) -> Proxies {
        let entries = ["10.0.0.0/8".to_owned(), "fd00::/8".to_owned()];
        Proxies {
            networks: Networks::parse(&entries).unwrap(),
            unix: false,
            header,
        }
    }

    fn tcp(address: &str) -> Peer {
        Peer::Tcp(SocketAddr::new(address.parse().unwrap(), 1))
    }

    #[track_caller]
    fn check(header: Forwarded, peer: &str, values: &[&str], expected: Option<&str>) {
        let name = header.name();
        let fields = values.iter().map(|value| (name, value.as_bytes()));
        let found = proxies(header).client(tcp(peer), fields);
        assert_eq!(found, expected.map(|text| text.parse().unwrap()));
    }

    #[test]
    fn networks_of_mapped_addresses_are_those_of_ipv4() {
        let entries = ["::ffff:192.0.2.0/120", "::ffff:198.51.100.7"].map(str::to_owned);
        let networks = Networks::parse(&entries).unwrap();
        let contains = |address: &str| networks.contains(address.parse().unwrap());
        assert!(contains("192.0.2.9") && contains("198.51.100.7"));
        assert!(!contains("192.0.3.9") && !contains("198.51.100.8"));
        assert_eq!(without_host_bits("10.1.2.3/8").unwrap(), "10.0.0.0/8");
        assert_eq!(without_host_bits("10.0.0.0/8"), None);
        assert_eq!(without_host_bits("10.1.2.3"), None);
    }

    #[test]
    fn x_forwarded_for_is_read_from_the_right() {
        let check = |peer, values: &[&str], expected| {
            check(Forwarded::XForwardedFor, peer, values, expected);
        };
        check("10.0.0.1", &["192.0.2.1"], Some("192.0.2.1"));
        check("10.0.0.1", &["198.51.100.9, 192.0.2.1"], Some("192.0.2.1"));
        check(
            "10.0.0.1",
            &["198.51.100.9", "192.0.2.1"],
            Some("192.0.2.1"),
        );
        check(
            "10.0.0.1",
            &["192.0.2.1, 10.0.0.2, 10.3.0.1"],
            Some("192.0.2.1"),
        );
        check("10.0.0.1", &["10.0.0.7, 10.0.0.2"], Some("10.0.0.7"));
        check("10.0.0.1", &[], None);
        check("10.0.0.1", &["10.9.9.9, nonsense"], None);
        check("10.0.0.1", &["nonsense, 192.0.2.1"], Some("192.0.2.1"));
        check("10.0.0.1", &["192.0.2.1, unknown, 10.0.0.2"], None);
        check("10.0.0.1", &[""], None);
        check("10.0.0.1", &["192.0.2.1:4711"], Some("192.0.2.1"));
        check("10.0.0.1", &["[2001:db8::1]:80"], Some("2001:db8::1"));
        check("10.0.0.1", &["[2001:db8::1]"], Some("2001:db8::1"));
        check("10.0.0.1", &["2001:db8::1"], Some("2001:db8::1"));
        check("10.0.0.1", &["::ffff:192.0.2.1"], Some("192.0.2.1"));
        check("::ffff:10.0.0.1", &["192.0.2.1"], Some("192.0.2.1"));
    }

    #[test]
    fn the_header_is_ignored_unless_the_peer_is_a_trusted_proxy() {
        for header in [Forwarded::XForwardedFor, Forwarded::Forwarded] {
            let values = ["10.0.0.9", "for=10.0.0.9"];
            check(header, "192.0.2.7", &values, Some("192.0.2.7"));
        }
        let other = [(&b"Forwarded"[..], &b"for=192.0.2.1"[..])];
        let found = proxies(Forwarded::XForwardedFor).client(tcp("10.0.0.1"), other.into_iter());
        assert_eq!(found, None);
        let ours = [(&b"x-forwarded-for"[..], &b"192.0.2.1"[..])];
        let mut proxies = proxies(Forwarded::XForwardedFor);
        assert_eq!(proxies.client(Peer::Unix(None), ours.into_iter()), None);
        proxies.unix = true;
        let found = proxies.client(Peer::Unix(None), ours.into_iter());
        assert_eq!(found, Some("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn forwarded_is_read_from_the_right() {
        let check = |values: &[&str], expected| {
            check(Forwarded::Forwarded, "fd00::1", values, expected);
        };
        check(
            &["for=192.0.2.60;proto=http;by=203.0.113.43"],
            Some("192.0.2.60"),
        );
        check(
            &["For=\"[2001:db8:cafe::17]:4711\""],
            Some("2001:db8:cafe::17"),
        );
        check(
            &["for=192.0.2.43, for=198.51.100.17"],
            Some("198.51.100.17"),
        );
        check(
            &["for=192.0.2.43 , for=\"10.0.0.3\" ; proto=https"],
            Some("192.0.2.43"),
        );
        check(
            &["for=192.0.2.43", "for=198.51.100.17"],
            Some("198.51.100.17"),
        );
        check(&["for=192.0.2.43, proto=http"], None);
        check(&["for=unknown"], None);
        check(&["for=\"_gazonk\""], None);
        check(&["for=192.0.2.43;for=10.0.0.1"], None);
        // An unclosed quote sent by the client swallows no later entry.
        check(&["for=\"x, for=192.0.2.1"], None);
        check(&["for=10.0.0.1;x=\", for=\"[2001:db8::1]\""], None);
        check(&["for=10.0.0.1;x=\\\", for=192.0.2.1"], None);
        check(&["secret=a\"b, for=192.0.2.1"], None);
    }

    #[test]
    fn networks_are_prefixes_or_addresses() {
        let parse = |text: &str| Networks::parse(&[text.to_owned()]).is_ok();
        assert!(parse("192.0.2.0/24") && parse("::/0") && parse("192.0.2.1") && parse("::1"));
        assert!(!parse("192.0.2.0/33") && !parse("example.org") && !parse(""));
        let networks = Networks::parse(&["192.0.2.128/25".to_owned()]).unwrap();
        assert!(networks.contains("192.0.2.128".parse().unwrap()));
        assert!(!networks.contains("192.0.2.127".parse().unwrap()));
    }

    proptest! {
        /// The proxy's own entry decides, whatever the client sends.
        #[test]
        fn the_entry_of_the_proxy_decides_whatever_the_client_sends(client in "[ -~]{0,60}") {
            let check = |header: Forwarded, own: &str| {
                let value = format!("{client}, {own}");
                let fields = [(header.name(), value.as_bytes())];
                proxies(header).client(tcp("10.0.0.1"), fields.into_iter())
            };
            let expected = Some("192.0.2.1".parse().unwrap());
            prop_assert_eq!(check(Forwarded::XForwardedFor, "192.0.2.1"), expected);
            let found = check(Forwarded::Forwarded, "for=192.0.2.1");
            prop_assert!(found.is_none() || found == expected, "{:?}", found);
        }
    }
}
