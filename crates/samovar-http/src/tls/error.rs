//! Errors of TLS configurations.

use std::error::Error;
use std::fmt;
use std::io;

/// Error of a TLS configuration. Its `Display` text names the file.
#[derive(Debug)]
pub struct TlsError {
    /// Path of the file; `PEM in memory`; or `TLS` for the configuration as a whole.
    pub(super) location: String,
    /// The cause.
    pub kind: TlsErrorKind,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.kind)
    }
}

impl Error for TlsError {
    /// Returns the source of the kind; the kind itself is already part of this error's text.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.kind.source()
    }
}

/// Kind of a [`TlsError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsErrorKind {
    /// The file cannot be read.
    #[error("cannot be read")]
    Unreadable(#[source] io::Error),
    /// The PEM text is truncated or malformed.
    #[error("is not valid PEM: {0}")]
    NotPem(String),
    /// The file contains no certificate.
    #[error("holds no certificate (PEM, `BEGIN CERTIFICATE`)")]
    NoCertificate,
    /// The file contains no private key.
    #[error("holds no supported private key (PEM: PKCS#8, PKCS#1 or SEC1, not encrypted)")]
    NoKey,
    /// The file contains a certificate that is not X.509 version 3.
    #[error("holds an unsupported certificate")]
    BadCertificate(#[source] rustls::Error),
    /// The type of the private key is not supported.
    #[error("holds an unsupported private key")]
    BadKey(#[source] rustls::Error),
    /// The certificate and the key do not belong together.
    #[error("is not the key of the certificate in {certificate}")]
    Mismatch {
        /// Location of the certificate.
        certificate: String,
    },
    /// The configuration has no certificate.
    #[error("no certificate is configured")]
    Nothing,
    /// The authorities for client certificates are unusable.
    #[error("cannot verify clients: {0}")]
    BadAuthorities(String),
    /// rustls refused the configuration.
    #[error("configuration refused")]
    Refused(#[source] rustls::Error),
}
