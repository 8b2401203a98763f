//! A certificate, its key, and where both come from.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};

use super::error::{Place, TlsError, TlsErrorKind};
use super::validity::validity;

/// A PEM file larger than this is something else, in bytes. A chain is some kilobytes.
const FILE_LEN_MAX: u64 = 1 << 20;

/// PEM text, kept as where it is: a reload reads it again.
#[derive(Clone)]
pub(super) enum Pem {
    File(PathBuf),
    Memory(Arc<[u8]>),
}

impl Pem {
    pub(super) fn file(path: impl AsRef<Path>) -> Self {
        Self::File(path.as_ref().to_owned())
    }

    pub(super) fn place(&self) -> Place {
        match self {
            Self::File(path) => Place::file(path),
            Self::Memory(_) => Place::Memory,
        }
    }

    fn read(&self) -> Result<Arc<[u8]>, TlsError> {
        match self {
            Self::Memory(bytes) => Ok(Arc::clone(bytes)),
            Self::File(path) => match read_file(path) {
                Ok(bytes) => Ok(bytes.into()),
                Err(error) => Err(self.place().error(TlsErrorKind::Unreadable(error))),
            },
        }
    }

    /// All certificates in it, at least one.
    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let pem = self.read()?;
        let certificates = CertificateDer::pem_slice_iter(&pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| self.syntax(&error))?;
        if certificates.is_empty() {
            return Err(self.place().error(TlsErrorKind::NoCertificate));
        }
        Ok(certificates)
    }

    /// The first key in it.
    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.read()?).map_err(|error| match error {
            PemError::NoItemsFound => self.place().error(TlsErrorKind::NoKey),
            error => self.syntax(&error),
        })
    }

    fn syntax(&self, error: &PemError) -> TlsError {
        self.place().error(TlsErrorKind::NotPem(error.to_string()))
    }
}

/// Reads a regular file. To open a pipe that nobody writes to would be to wait for ever, at a
/// reload too.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_LEN_MAX {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(bytes)
}

impl std::fmt::Debug for Pem {
    /// Keys are not for logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.place().fmt(f)
    }
}

/// What a server shows to its clients, in words for a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The names it is good for, as DNS names; wildcards begin with `*.`. May be empty: it can be
    /// for an address, or be shown as the default whatever the name.
    pub names: Vec<String>,
    /// From when it is valid, if that was understood.
    pub not_before: Option<SystemTime>,
    /// Until when it is valid, if that was understood.
    pub not_after: Option<SystemTime>,
}

impl Certificate {
    /// Whether clients will refuse it at this time. It is served nevertheless: some clients do not
    /// look, and no certificate at all helps nobody.
    pub fn is_expired(&self, now: SystemTime) -> bool {
        self.not_after.is_some_and(|end| end < now)
    }
}

/// Reads a pair and holds its parts against each other.
pub(super) fn load(
    chain: &Pem,
    key: &Pem,
    provider: &CryptoProvider,
) -> Result<(CertifiedKey, Certificate), TlsError> {
    let certificates = chain.certificates()?;
    let leaf = certificates.first().cloned();
    let key_der = key.key()?;
    let private_key = provider
        .key_provider
        .load_private_key(key_der)
        .map_err(|error| key.place().error(TlsErrorKind::BadKey(error)))?;
    let certified = CertifiedKey::new(certificates, private_key);
    match certified.keys_match() {
        // A key that does not tell its public half is taken at its word.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(Error::InconsistentKeys(_)) => {
            let certificate = chain.place().to_string();
            return Err(key.place().error(TlsErrorKind::Mismatch { certificate }));
        }
        Err(error) => return Err(chain.place().error(TlsErrorKind::BadCertificate(error))),
    }
    let leaf = leaf.unwrap_or_else(|| CertificateDer::from(Vec::new()));
    let parsed = webpki::EndEntityCert::try_from(&leaf).map_err(|_webpki| {
        let error = Error::InvalidCertificate(rustls::CertificateError::BadEncoding);
        chain.place().error(TlsErrorKind::BadCertificate(error))
    })?;
    let names = parsed.valid_dns_names();
    let names = names.map(str::to_ascii_lowercase).collect();
    let validity = validity(&leaf);
    let facts = Certificate {
        names,
        not_before: validity.as_ref().map(|time| *time.start()),
        not_after: validity.as_ref().map(|time| *time.end()),
    };
    Ok((certified, facts))
}
