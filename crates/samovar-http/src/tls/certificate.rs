//! Server certificates and their keys, loaded from files or memory.

use std::borrow::Cow;
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
use x509_cert::der::Decode;

use super::error::TlsError;

/// Maximum size of a PEM file, in bytes. A certificate chain has only a few kilobytes.
const FILE_LEN_MAX: u64 = 1 << 20;

/// Source of PEM text. A reload reads files again.
#[derive(Clone)]
pub(super) enum Pem {
    File(PathBuf),
    Memory(Arc<[u8]>),
}

impl Pem {
    pub(super) fn file(path: impl AsRef<Path>) -> Self {
        Self::File(path.as_ref().to_owned())
    }

    pub(super) fn location(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Memory(_) => "PEM in memory".to_owned(),
        }
    }

    pub(super) fn error(&self, problem: impl Into<Cow<'static, str>>) -> TlsError {
        TlsError::new(self.location(), problem)
    }

    fn read(&self) -> Result<Arc<[u8]>, TlsError> {
        match self {
            Self::Memory(bytes) => Ok(Arc::clone(bytes)),
            Self::File(path) => match read_file(path) {
                Ok(bytes) => Ok(bytes.into()),
                Err(error) => Err(self.error("cannot be read").because(error)),
            },
        }
    }

    /// Reads all certificates; fails if there are none.
    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let pem = self.read()?;
        let certificates = CertificateDer::pem_slice_iter(&pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| self.syntax(&error))?;
        if certificates.is_empty() {
            return Err(self.error("holds no certificate (PEM, `BEGIN CERTIFICATE`)"));
        }
        Ok(certificates)
    }

    /// Reads the first private key.
    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.read()?).map_err(|error| match error {
            PemError::NoItemsFound => self.error(
                "holds no supported private key (PEM: PKCS#8, PKCS#1 or SEC1, not encrypted)",
            ),
            error => self.syntax(&error),
        })
    }

    pub(super) fn unsupported(&self, error: Error) -> TlsError {
        // rustls has no variant for it, only a text.
        if format!("{error:?}").contains("UnsupportedCertVersion") {
            return self.error(
                "holds a certificate of X.509 version 1 or 2, which has no extensions for its \
                 names and its use, and which no client accepts: make one of version 3, for \
                 example with `openssl req -x509 -addext subjectAltName=DNS:NAME`",
            );
        }
        self.error("holds an unsupported certificate")
            .because(error)
    }

    fn syntax(&self, error: &PemError) -> TlsError {
        self.error(format!("is not valid PEM: {error}"))
    }
}

/// Reads a regular file. It is opened in non-blocking mode: opening a pipe without a writer would
/// otherwise block forever, even during a reload.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_LEN_MAX {
        return Err(io::Error::other("larger than 1 MiB"));
    }
    Ok(bytes)
}

impl std::fmt::Debug for Pem {
    /// Writes only the location: private keys must not reach logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.location())
    }
}

/// Names and validity of a server certificate in use, for logs and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// DNS names of the certificate; wildcards begin with `*.`. Empty if the certificate was issued
    /// for an IP address or serves only as the default.
    pub names: Vec<String>,
    /// Start of the validity period; `None` if it could not be parsed.
    pub not_before: Option<SystemTime>,
    /// End of the validity period; `None` if it could not be parsed.
    pub not_after: Option<SystemTime>,
}

impl Certificate {
    /// Returns whether the certificate has expired at `now`. An expired certificate is still
    /// served: some clients do not check the date, and without a certificate these clients would
    /// fail, too.
    pub fn is_expired(&self, now: SystemTime) -> bool {
        self.not_after.is_some_and(|end| end < now)
    }
}

/// Loads a certificate chain and its key, and checks that they belong together.
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
        .map_err(|error| key.error("holds an unsupported private key").because(error))?;
    let certified = CertifiedKey::new(certificates, private_key);
    match certified.keys_match() {
        // Some keys do not reveal their public half, so they cannot be compared; assume a match.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(Error::InconsistentKeys(_)) => {
            let certificate = chain.location();
            let problem = format!("is not the key of the certificate in {certificate}");
            return Err(key.error(problem));
        }
        Err(error) => return Err(chain.unsupported(error)),
    }
    let leaf = leaf.unwrap_or_else(|| CertificateDer::from(Vec::new()));
    let parsed = webpki::EndEntityCert::try_from(&leaf).map_err(|_webpki| {
        let error = Error::InvalidCertificate(rustls::CertificateError::BadEncoding);
        chain.unsupported(error)
    })?;
    let names = parsed.valid_dns_names();
    let names = names.map(str::to_ascii_lowercase).collect();
    let (not_before, not_after) = validity(&leaf).unzip();
    let facts = Certificate {
        names,
        not_before,
        not_after,
    };
    Ok((certified, facts))
}

/// Returns `notBefore` and `notAfter` of a DER certificate; `None` for one that is not strict DER.
pub(super) fn validity(certificate: &[u8]) -> Option<(SystemTime, SystemTime)> {
    let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
    let validity = certificate.tbs_certificate().validity();
    Some((
        validity.not_before.to_system_time(),
        validity.not_after.to_system_time(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_is_read() {
        let mut params = rcgen::CertificateParams::new(vec!["a.test".into()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2001, 9, 9);
        params.not_after = rcgen::date_time_ymd(2060, 2, 29);
        let key = rcgen::KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap();
        let (not_before, not_after) = validity(der.der()).unwrap();
        let seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(seconds(not_before).as_secs(), 999_993_600);
        assert_eq!(seconds(not_after).as_secs(), 2_845_238_400);
        for len in 0..der.der().len() {
            assert_eq!(validity(&der.der()[..len]), None);
        }
    }
}
