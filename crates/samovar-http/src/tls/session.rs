//! The client's side of a TLS connection.

use super::trust::Verified;
use crate::client::PeerName;

/// Certificates that a client has presented on a TLS connection.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// The certificates as DER, the end-entity certificate first.
    pub(crate) certificates: Vec<Box<[u8]>>,
    /// The names in the end-entity certificate.
    pub(crate) names: Vec<PeerName>,
    pub(crate) verified: Verified,
}

impl Session {
    /// Whether the client has sent a certificate that has expired or is not trusted any more.
    #[inline]
    pub(crate) fn has_lapsed(&self) -> bool {
        !self.certificates.is_empty() && self.verified.has_lapsed(&self.certificates)
    }
}
