//! Values that are more than a number or a path.

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::value;
use crate::listener::ListenSpec;

/// What HTTPS needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// PEM: the server's certificate and then its issuers'.
    pub certificate: PathBuf,
    /// PEM: the certificate's private key.
    pub key: PathBuf,
    /// The listeners with `:ssl`, if that is what asked for it; otherwise all TCP listeners.
    pub only: Option<Vec<ListenSpec>>,
    /// Whose client certificates are good, if clients are asked for one.
    pub clients: Option<ClientAuthority>,
}

/// Whose client certificates are good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAuthority {
    /// PEM: the authorities.
    pub authorities: PathBuf,
    /// Whether a client has to have one.
    pub required: bool,
}

impl Tls {
    /// Whether a listener is to speak it. Never on a unix socket, as in starman.
    pub fn covers(&self, listener: &ListenSpec) -> bool {
        matches!(listener, ListenSpec::Tcp { .. })
            && self
                .only
                .as_ref()
                .is_none_or(|only| only.contains(listener))
    }
}

/// A limit that can be left alone or lifted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeLimit {
    /// Not given: the server's own.
    Default,
    /// No limit, written 0.
    Unlimited,
    /// This long.
    After(Duration),
}

impl TimeLimit {
    /// What the limit is, where the server's own is `default`.
    pub fn or_default(self, default: Duration) -> Option<Duration> {
        match self {
            Self::Default => Some(default),
            Self::Unlimited => None,
            Self::After(time) => Some(time),
        }
    }
}

/// How requests are logged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogForm {
    /// Apache's combined format.
    #[default]
    Combined,
    /// One JSON object a line.
    Json,
}

/// Where a log goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// Written `-`.
    StandardOutput,
    /// Appended to.
    File(PathBuf),
}

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StandardOutput => f.write_str("on standard output"),
            Self::File(path) => write!(f, "{path:?}"),
        }
    }
}

/// Whose address is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAddress {
    /// The peer of the connection.
    Peer,
    /// The one that a trusted proxy names, by the rules of access by network.
    Forwarded,
    /// What `X-Real-IP`, or the first of `X-Forwarded-For`, says, and the peer if neither is there.
    /// The client can write them, so this is for servers that only a proxy can reach.
    Unproven,
}

/// How long paths are held against garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldTime {
    /// Not at all.
    Off,
    /// For this long at least after they were announced.
    For(Duration),
}

impl HoldTime {
    /// Reads a number of seconds, 1 or more, or `off`, for which 0 stands, too.
    pub fn parse(text: &OsStr) -> Option<Self> {
        if text == "off" {
            return Some(Self::Off);
        }
        let time = value::seconds(text)?;
        match time.is_zero() {
            true => Some(Self::Off),
            // Each time costs the daemon a process.
            false => (time >= Duration::from_secs(1)).then_some(Self::For(time)),
        }
    }

    /// The time, if there is one.
    pub const fn time(self) -> Option<Duration> {
        match self {
            Self::Off => None,
            Self::For(time) => Some(time),
        }
    }
}

/// Which NARs are hashed on their way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verify {
    /// None.
    Never,
    /// The first of each path.
    #[default]
    First,
}

impl Verify {
    /// Reads the value of `--verify`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "never" => Some(Self::Never),
            "first" => Some(Self::First),
            _ => None,
        }
    }
}
