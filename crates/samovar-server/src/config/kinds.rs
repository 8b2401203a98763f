//! Types of option values.

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::value;
use crate::listener::ListenSpec;

/// HTTPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// PEM file: the server's certificate, followed by those of its issuers.
    pub certificate: PathBuf,
    /// PEM file: the private key of the certificate.
    pub key: PathBuf,
    /// Listeners given as `HOST:PORT:ssl`; `None` for all TCP listeners.
    pub only: Option<Vec<ListenSpec>>,
    /// Client certificates; `None` if they are not requested.
    pub clients: Option<ClientAuthority>,
}

/// Verification of client certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAuthority {
    /// PEM file: the certificate authorities.
    pub authorities: PathBuf,
    /// Whether clients without a certificate are refused.
    pub required: bool,
}

impl Tls {
    /// Whether a listener speaks TLS. Unix sockets never do, as in starman.
    pub fn covers(&self, listener: &ListenSpec) -> bool {
        matches!(listener, ListenSpec::Tcp { .. })
            && self
                .only
                .as_ref()
                .is_none_or(|only| only.contains(listener))
    }
}

/// Format of the access log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogForm {
    /// Apache's combined format.
    #[default]
    Combined,
    /// One JSON object a line.
    Json,
}

/// Destination of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output, configured as `-`.
    StandardOutput,
    /// A file, which is appended to.
    File(PathBuf),
}

impl From<PathBuf> for LogTarget {
    fn from(path: PathBuf) -> Self {
        match path.as_os_str() == "-" {
            true => Self::StandardOutput,
            false => Self::File(path),
        }
    }
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StandardOutput => f.write_str("on standard output"),
            Self::File(path) => write!(f, "{path:?}"),
        }
    }
}

/// Client address in the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAddress {
    /// The peer of the connection.
    Peer,
    /// The address reported by a trusted proxy.
    Forwarded,
    /// `X-Real-IP`, else the first address of `X-Forwarded-For`, else the peer. Clients can forge
    /// these headers, so only for servers that are reached through a proxy alone.
    Unproven,
}

/// GC leases: how long paths are kept from garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcLease {
    /// No leases.
    Off,
    /// At least this long after the narinfo was sent.
    For(Duration),
}

impl GcLease {
    /// The time where none is configured, if there is a daemon.
    pub const TIME_DEFAULT: Duration = Duration::from_secs(600);

    /// The shortest time: renewing a lease costs the daemon a process.
    const TIME_MIN: Duration = Duration::from_secs(1);

    /// A lease of this time, or of a second if that is shorter; zero turns leases off.
    pub fn at_least_a_second(time: Duration) -> Self {
        match time.is_zero() {
            true => Self::Off,
            false => Self::For(time.max(Self::TIME_MIN)),
        }
    }

    /// Parses a number of seconds, at least 1; `off` and `0` both mean off. `None` for anything
    /// else.
    pub fn parse(text: &OsStr) -> Option<Self> {
        if text == "off" {
            return Some(Self::Off);
        }
        let time = value::seconds(text)?;
        (time.is_zero() || time >= Self::TIME_MIN).then(|| Self::at_least_a_second(time))
    }

    /// The time; `None` if leases are off.
    pub const fn time(self) -> Option<Duration> {
        match self {
            Self::Off => None,
            Self::For(time) => Some(time),
        }
    }
}

/// Which NARs are hashed while they are sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verify {
    /// None.
    Never,
    /// The first of each path.
    #[default]
    First,
}

impl Verify {
    /// Parses `never` or `first`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "never" => Some(Self::Never),
            "first" => Some(Self::First),
            _ => None,
        }
    }
}
