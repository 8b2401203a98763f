//! Types of option values.

use std::fmt;
use std::path::PathBuf;

use crate::listener::ListenSpec;

/// Settings of HTTPS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The certificates, never empty. Clients get the first one if they request no name, or one
    /// that no certificate has.
    pub certificates: Vec<CertificateFiles>,
    /// The listeners that use TLS, given as `HOST:PORT:ssl`; `None` if all TCP listeners do.
    pub only: Option<Vec<ListenSpec>>,
    /// Verification of client certificates; `None` if they are not requested.
    pub clients: Option<ClientAuthority>,
}

/// The files of a certificate of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// PEM file: the certificate, followed by the certificates of its issuers.
    pub certificate: PathBuf,
    /// PEM file: the private key of the certificate.
    pub key: PathBuf,
    /// Number of the entry in `tls.certificates`, from 1; `None` for `tls.certificate`.
    pub entry: Option<usize>,
}

/// How client certificates are verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAuthority {
    /// PEM file: the certificate authorities that issue client certificates.
    pub authorities: PathBuf,
    /// Whether clients without a certificate are rejected.
    pub required: bool,
}

impl Tls {
    /// Returns whether a listener speaks TLS. Unix sockets never do, as in starman.
    pub fn covers(&self, listener: &ListenSpec) -> bool {
        let is_named = |only: &Vec<ListenSpec>| only.contains(listener);
        matches!(listener, ListenSpec::Tcp { .. }) && self.only.as_ref().is_none_or(is_named)
    }
}

/// Format of the access log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogForm {
    /// Apache's combined format.
    #[default]
    Combined,
    /// JSON, one object per line.
    Json,
}

/// Destination of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output, configured as `-`.
    StandardOutput,
    /// A file, to which lines are appended.
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

/// Source of the client address in the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAddress {
    /// The peer address of the connection.
    Peer,
    /// The address that a trusted proxy reports.
    Forwarded,
    /// `X-Real-IP`, else the first address of `X-Forwarded-For`, else the peer address. Clients can
    /// forge these header fields, so use it only for servers that no client reaches without a
    /// proxy.
    Unproven,
}
