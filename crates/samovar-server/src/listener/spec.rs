//! Parses the values of `--listen`, `--host` and `--port`.
//!
//! # Grammar
//!
//! | text | meaning |
//! | --- | --- |
//! | `HOST:PORT`, `[IPV6]:PORT`, `IPV6:PORT` | TCP; the last colon stands before the port |
//! | `:PORT`, `*:PORT` | TCP on every address, IPv6 and IPv4 |
//! | `*4:PORT`, `*6:PORT` | TCP on every address, IPv4 or IPv6 preferred |
//! | `!4:PORT`, `!6:PORT` | TCP on every IPv4 address, or on every IPv6 address |
//! | `…:ssl` | TCP with TLS; other words after a second colon mean nothing, as in starman |
//! | `unix:PATH`, a text without a colon, or one that begins with `/` or `.` | a Unix socket |
//!
//! # Quirks
//!
//! `--listen 5000` creates a Unix socket named `5000`, as in starman; see
//! [`ParsedListen::bare_name`]. Starman takes a path with a colon for a host; this parser does not.
//!
//! # Source
//!
//! Starman 0.4016, `Starman::Server::run`; streaming-commons, `HostPreference`; nix-serve-ng 1.1.0,
//! `Options.hs`.

use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Default port of a binary cache.
pub const PORT_DEFAULT: u16 = 5000;

/// Default port of the admin server.
pub const ADMIN_PORT_DEFAULT: u16 = 5001;

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListenSpec {
    /// TCP; port 0 lets the system choose.
    Tcp {
        /// The addresses to bind.
        host: Host,
        /// The port; 0 lets the system choose one.
        port: u16,
    },
    /// A Unix socket at this path.
    Unix(PathBuf),
}

/// The addresses of a TCP listener, as configured.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// Every address: `[::]` for both families, `0.0.0.0` where there is no IPv6.
    Any,
    /// Every IPv4 address, or `[::]` on a machine without IPv4. Written `*4`.
    PreferIpv4,
    /// Every address, as [`Host::Any`]. Written `*6`.
    PreferIpv6,
    /// Every IPv4 address. Written `!4`.
    OnlyIpv4,
    /// Every IPv6 address, and no IPv4. Written `!6`.
    OnlyIpv6,
    /// This IP address only.
    Address(IpAddr),
    /// A name, to be resolved to all its addresses.
    Name(String),
}

/// A parsed value of `--listen`, and what was odd about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedListen {
    /// The address to listen on.
    pub spec: ListenSpec,
    /// Whether the value ends in `:ssl`.
    pub tls: bool,
    /// An unknown word after a second colon, which is ignored; `None` if there is no such word.
    pub ignored_suffix: Option<String>,
    /// Whether the value is a Unix socket path without a slash. It was probably meant as a port or
    /// host.
    pub bare_name: bool,
}

impl ListenSpec {
    /// Creates the specification of a port on the loopback address.
    pub fn local(port: u16) -> Self {
        Self::Tcp {
            host: Host::Address(Ipv4Addr::LOCALHOST.into()),
            port,
        }
    }

    /// Returns the address, also if it stands for all interfaces. `None` for a Unix socket, and for
    /// a name, which may have several addresses.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        let Self::Tcp { host, .. } = self else {
            return None;
        };
        match host {
            Host::Address(address) => Some(*address),
            Host::Name(_) => None,
            _ => Some(Ipv6Addr::UNSPECIFIED.into()),
        }
    }

    /// Parses the value of `--listen`. Returns `None` if it is empty, or its host or port is
    /// invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # use samovar_server::listener::{Host, ListenSpec};
    /// let parsed = ListenSpec::parse("[::1]:8080".as_ref()).expect("valid");
    /// let host = Host::Address("::1".parse().expect("an address"));
    /// assert_eq!(parsed.spec, ListenSpec::Tcp { host, port: 8080 });
    /// ```
    pub fn parse(text: &OsStr) -> Option<ParsedListen> {
        let bytes = text.as_bytes();
        if bytes.is_empty() || bytes == b"unix:" {
            return None;
        }
        if let Some(path) = bytes.strip_prefix(b"unix:") {
            return Some(unix(path, false));
        }
        if bytes.starts_with(b"/") || bytes.starts_with(b".") {
            return Some(unix(bytes, false));
        }
        if !bytes.contains(&b':') {
            return Some(unix(bytes, !bytes.contains(&b'/')));
        }
        parse_tcp(text.to_str()?)
    }

    /// Parses an address without the quirks of `--listen`. Refuses TLS, other suffixes, and a
    /// socket path without a slash, which was probably meant as a port or host.
    pub fn parse_strict(text: &OsStr) -> Option<Self> {
        let parsed = Self::parse(text)?;
        let is_plain = !parsed.bare_name && parsed.ignored_suffix.is_none() && !parsed.tls;
        is_plain.then_some(parsed.spec)
    }
}

fn unix(path: &[u8], bare_name: bool) -> ParsedListen {
    let spec = ListenSpec::Unix(PathBuf::from(OsStr::from_bytes(path)));
    ParsedListen {
        spec,
        tls: false,
        ignored_suffix: None,
        bare_name,
    }
}

fn parse_tcp(text: &str) -> Option<ParsedListen> {
    let (address, suffix) = split_suffix(text);
    let (host, port) = address.rsplit_once(':')?;
    let spec = ListenSpec::Tcp {
        port: parse_port(port)?,
        host: Host::parse(host)?,
    };
    let tls = suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case("ssl"));
    let ignored_suffix = suffix
        .filter(|suffix| !tls && !suffix.is_empty())
        .map(str::to_owned);
    Some(ParsedListen {
        spec,
        tls,
        ignored_suffix,
        bare_name: false,
    })
}

/// Splits off a suffix that follows a second colon, as starman does; `None` if there is no suffix.
fn split_suffix(text: &str) -> (&str, Option<&str>) {
    let Some((address, suffix)) = text.rsplit_once(':') else {
        return (text, None);
    };
    let is_tls = suffix.eq_ignore_ascii_case("ssl");
    let is_third = suffix.parse::<u16>().is_err() && address.matches(':').count() == 1;
    if address.contains(':') && (is_tls || is_third) {
        (address, Some(suffix))
    } else {
        (text, None)
    }
}

/// Parses a port of digits only: `u16::from_str` would accept a plus sign. Returns `None` for any
/// other text.
fn parse_port(text: &str) -> Option<u16> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

impl Host {
    /// Parses the value of `--host`, or the host of `--listen`. Returns `None` if the text is
    /// neither an address, nor one of warp's notations, nor a valid name.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "*" => return Some(Self::Any),
            "*4" => return Some(Self::PreferIpv4),
            "*6" => return Some(Self::PreferIpv6),
            "!4" => return Some(Self::OnlyIpv4),
            "!6" => return Some(Self::OnlyIpv6),
            _ => {}
        }
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']')?;
            return match inner.parse::<Ipv6Addr>() {
                Ok(address) => Some(Self::Address(IpAddr::V6(address))),
                // An address with a zone, as in `fe80::1%eth0`, which only the resolver
                // understands.
                Err(_) => {
                    (inner.contains(':') && is_name(inner)).then(|| Self::Name(inner.to_owned()))
                }
            };
        }
        if let Ok(address) = text.parse() {
            return Some(Self::Address(address));
        }
        let may_be_name = is_name(text) && (!text.contains(':') || text.contains('%'));
        may_be_name.then(|| Self::Name(text.to_owned()))
    }
}

fn is_name(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._%:".contains(&byte) || byte >= 0x80)
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::PreferIpv4 => f.write_str("*4"),
            Self::PreferIpv6 => f.write_str("*6"),
            Self::OnlyIpv4 => f.write_str("!4"),
            Self::OnlyIpv6 => f.write_str("!6"),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Name(name) if name.contains(':') => write!(f, "[{name}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for ListenSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let parsed = ListenSpec::parse(OsStr::new(text));
        let shown = parsed.as_ref().map(|parsed| {
            let kind = if matches!(parsed.spec, ListenSpec::Unix(_)) {
                "unix "
            } else {
                ""
            };
            let tls = if parsed.tls { " tls" } else { "" };
            format!("{kind}{}{tls}", parsed.spec)
        });
        assert_eq!(shown.as_deref(), expected);
    }

    #[test]
    fn tcp() {
        check(":5000", Some("*:5000"));
        check("*:5000", Some("*:5000"));
        check("127.0.0.1:5000", Some("127.0.0.1:5000"));
        check("localhost:0", Some("localhost:0"));
        check("[::1]:5000", Some("[::1]:5000"));
        check("[::]:65535", Some("[::]:65535"));
        check("!6:80", Some("!6:80"));
        // The NixOS module joins bindAddress, a colon and the port, without brackets for IPv6.
        check(":::5000", Some("[::]:5000"));
        check("::1:5000", Some("[::1]:5000"));
        check("[fe80::1%eth0]:80", Some("[fe80::1%eth0]:80"));
    }

    #[test]
    fn suffixes_after_a_second_colon() {
        check("127.0.0.1:5000:ssl", Some("127.0.0.1:5000 tls"));
        check(":5000:SSL", Some("*:5000 tls"));
        check("[::1]:5000:ssl", Some("[::1]:5000 tls"));
        check("127.0.0.1:5000:tcp", Some("127.0.0.1:5000"));
        let parsed = ListenSpec::parse(OsStr::new("a:1:tcp")).expect("valid");
        assert_eq!(parsed.ignored_suffix.as_deref(), Some("tcp"));
    }

    #[test]
    fn unix_sockets() {
        check("/run/nix-serve.sock", Some("unix /run/nix-serve.sock"));
        check("/run/a:b.sock", Some("unix /run/a:b.sock"));
        check("./s", Some("unix ./s"));
        check("run/s", Some("unix run/s"));
        check("unix:/run/s", Some("unix /run/s"));
        check("5000", Some("unix 5000"));
        assert!(
            ListenSpec::parse(OsStr::new("5000"))
                .expect("valid")
                .bare_name
        );
        assert!(
            !ListenSpec::parse(OsStr::new("run/s"))
                .expect("valid")
                .bare_name
        );
    }

    #[test]
    fn invalid_values() {
        check("", None);
        check("unix:", None);
        check(":", None);
        check("host:", None);
        check(":65536", None);
        check(":+80", None);
        check("a:b", None);
        check("[::1:80", None);
        check("[host]:80", None);
        check("http://host:80", None);
        check("a b:80", None);
        check("1:2:3:80", None);
    }
}
