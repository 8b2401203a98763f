//! Client certificates that grant access.
//!
//! The TLS handshake has already verified the certificate and its issuer. This module only checks
//! whether it is one of the configured certificates.

use std::collections::HashSet;
use std::sync::Arc;

use samovar_http::{Head, PeerName};

use super::AccessError;
use super::config::CertificateConfig;
use super::secret::{Digest, digest_of_hex, hex, sha256};

#[derive(Debug, Default)]
pub(crate) struct Certificates {
    any: bool,
    fingerprints: HashSet<Digest>,
    names: HashSet<PeerName>,
}

/// Returns whether the text is a SHA-256 fingerprint, as openssl prints it.
pub fn is_fingerprint(text: &str) -> bool {
    fingerprint(text).is_some()
}

fn fingerprint(text: &str) -> Option<Digest> {
    let digits: String = text.chars().filter(|sign| *sign != ':').collect();
    digest_of_hex(digits.trim())
}

impl Certificates {
    pub(crate) fn new(config: &CertificateConfig) -> Result<Self, AccessError> {
        let fingerprint =
            |text: &String| fingerprint(text).ok_or_else(|| AccessError::Fingerprint(text.clone()));
        let common_names = config.common_names.iter();
        let dns_names = config.dns_names.iter();
        let uris = config.uris.iter();
        let names = common_names
            .map(|name| PeerName::CommonName(name.as_str().into()))
            .chain(dns_names.map(|name| PeerName::Dns(name.to_ascii_lowercase().into())))
            .chain(uris.map(|uri| PeerName::Uri(uri.as_str().into())));
        Ok(Self {
            any: config.any,
            fingerprints: config
                .fingerprints
                .iter()
                .map(fingerprint)
                .collect::<Result<_, _>>()?,
            names: names.collect(),
        })
    }

    /// Returns the client's name if its certificate is one of the configured ones.
    pub(crate) fn find(&self, head: Head<'_>) -> Option<Arc<str>> {
        let certificate = head.peer_certificates().next()?;
        let names = head.peer_names();
        if let Some(name) = names.iter().find(|name| self.names.contains(*name)) {
            return Some(name.as_str().into());
        }
        let fingerprint = (!self.fingerprints.is_empty()).then(|| sha256(certificate));
        let is_listed = |fingerprint| self.fingerprints.contains(&fingerprint);
        if !self.any && !fingerprint.is_some_and(is_listed) {
            return None;
        }
        Some(match names.first() {
            Some(name) => name.as_str().into(),
            None => hex(&sha256(certificate)).into(),
        })
    }
}
