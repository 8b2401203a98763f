//! Errors of TLS configurations.

use std::error::Error;
use std::fmt;
use std::io;

/// Error of a TLS configuration; `Display` names the file.
#[derive(Debug)]
pub struct TlsError {
    /// A file, `PEM in memory`, or `TLS` for the configuration as a whole.
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
    /// Returns the source of the kind, because the kind is part of this error's own text.
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
    /// Truncated or malformed PEM.
    #[error("is not valid PEM: {0}")]
    NotPem(String),
    /// A file without a certificate.
    #[error("holds no certificate (PEM, `BEGIN CERTIFICATE`)")]
    NoCertificate,
    /// A file without a private key.
    #[error("holds no supported private key (PEM: PKCS#8, PKCS#1 or SEC1, not encrypted)")]
    NoKey,
    /// Not an X.509 version 3 certificate.
    #[error("holds an unsupported certificate")]
    BadCertificate(#[source] rustls::Error),
    /// A key of an unsupported type.
    #[error("holds an unsupported private key")]
    BadKey(#[source] rustls::Error),
    /// Certificate and key belong to different pairs.
    #[error("is not the key of the certificate in {certificate}")]
    Mismatch {
        /// Location of the certificate.
        certificate: String,
    },
    /// No certificate was configured.
    #[error("no certificate is configured")]
    Nothing,
    /// Authorities for clients from which no verifier can be built.
    #[error("cannot verify clients: {0}")]
    BadAuthorities(String),
    /// rustls refused the configuration.
    #[error("configuration refused")]
    Refused(#[source] rustls::Error),
}
