//! Why a TLS configuration was refused.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a TLS configuration was refused.
#[derive(Debug)]
pub struct TlsError {
    place: Place,
    /// What was wrong with it.
    pub kind: TlsErrorKind,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.kind)
    }
}

impl Error for TlsError {
    /// That of its kind, whose words are in this error's own.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.kind.source()
    }
}

/// What was wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsErrorKind {
    /// The file cannot be read.
    #[error("cannot be read")]
    Unreadable(#[source] io::Error),
    /// PEM that breaks off or does not decode.
    #[error("is no valid PEM: {0}")]
    NotPem(String),
    /// PEM, or something else, without a certificate in it.
    #[error("holds no certificate (PEM, `BEGIN CERTIFICATE`)")]
    NoCertificate,
    /// PEM, or something else, without a key in it.
    #[error("holds no private key that can be used (PEM: PKCS#8, PKCS#1 or SEC1, not encrypted)")]
    NoKey,
    /// A certificate that is no X.509 version 3.
    #[error("holds a certificate that cannot be used")]
    BadCertificate(#[source] rustls::Error),
    /// A key of an unknown kind.
    #[error("holds a private key that cannot be used")]
    BadKey(#[source] rustls::Error),
    /// Certificate and key belong to different pairs.
    #[error("is not the key of the certificate in {certificate}")]
    Mismatch {
        /// Where the certificate came from.
        certificate: String,
    },
    /// No certificate was configured.
    #[error("no certificate is configured")]
    Nothing,
    /// Certificates for clients that no verifier can be made of.
    #[error("cannot verify clients: {0}")]
    BadAuthorities(String),
    /// rustls refuses the sum of it.
    #[error("cannot be used")]
    Refused(#[source] rustls::Error),
}

/// What an error is about.
#[derive(Debug, Clone)]
pub(super) enum Place {
    File(PathBuf),
    /// Bytes that the program gave.
    Memory,
    Configuration,
}

impl Place {
    pub(super) fn file(path: &Path) -> Self {
        Self::File(path.to_owned())
    }

    pub(super) fn error(&self, kind: TlsErrorKind) -> TlsError {
        TlsError {
            place: self.clone(),
            kind,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Memory => f.write_str("PEM in memory"),
            Self::Configuration => f.write_str("TLS"),
        }
    }
}
