//! The certificate authorities of clients, and whether they still trust a connection.
//!
//! # Theory of operation
//!
//! A handshake verifies the certificate of its client, but a resumed session does not, and a
//! connection may stay open for days. So a resumed session is verified again, and each request
//! compares the end of the certificate's validity with the clock, and the generation of the
//! authorities with the one under which the certificate was verified. After a reload with other
//! authorities, the next request on each connection verifies the certificate against these.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;

use super::certificate::validity;
use crate::sync::Lock as _;

/// The authorities of one listener.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    /// Number of changes of the authorities.
    generation: AtomicU64,
    current: Mutex<Authorities>,
}

/// Authorities, and the verification of certificates against them. The default trusts no client.
#[derive(Debug, Clone, Default)]
pub(super) struct Authorities {
    pub(super) certificates: Vec<CertificateDer<'static>>,
    pub(super) verifier: Option<Arc<dyn ClientCertVerifier>>,
}

/// The certificate of a connection, and when it was verified.
#[derive(Debug, Default)]
pub(crate) struct Verified {
    trust: Arc<Trust>,
    /// The generation of the authorities that trusted the certificate.
    generation: AtomicU64,
    not_after: Option<SystemTime>,
    has_lapsed: AtomicBool,
}

impl Trust {
    /// Replaces the authorities. Returns their generation.
    pub(super) fn replace(&self, new: Authorities) -> u64 {
        let mut current = self.current.locked();
        if current.certificates != new.certificates {
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        *current = new;
        self.generation.load(Ordering::Acquire)
    }

    /// Whether the authorities trust this chain now.
    fn trusts(&self, chain: &[Box<[u8]>]) -> bool {
        let verifier = self.current.locked().verifier.clone();
        let chain: Vec<_> = chain
            .iter()
            .map(|der| CertificateDer::from(&**der))
            .collect();
        match (verifier, chain.split_first()) {
            (Some(verifier), Some((own, issuers))) => verifier
                .verify_client_cert(own, issuers, UnixTime::now())
                .is_ok(),
            _ => false,
        }
    }
}

impl Verified {
    /// Describes a chain that the authorities of `generation` have verified.
    pub(crate) fn new(trust: Arc<Trust>, generation: u64, chain: &[Box<[u8]>]) -> Self {
        let own = chain.first().and_then(|der| validity(der));
        Self {
            trust,
            generation: AtomicU64::new(generation),
            not_after: own.map(|(_, not_after)| not_after),
            has_lapsed: AtomicBool::new(false),
        }
    }

    /// Verifies the chain of a resumed session.
    pub(crate) fn verify(&self, chain: &[Box<[u8]>]) -> bool {
        chain.is_empty() || self.trust.trusts(chain)
    }

    /// Whether the certificate has expired, or is not trusted any more. `chain`: the certificates
    /// of the connection, not empty.
    pub(crate) fn has_lapsed(&self, chain: &[Box<[u8]>]) -> bool {
        if self.has_lapsed.load(Ordering::Relaxed)
            || self.not_after.is_some_and(|end| end < SystemTime::now())
        {
            return true;
        }
        let generation = self.trust.generation.load(Ordering::Acquire);
        if self.generation.load(Ordering::Relaxed) == generation {
            return false;
        }
        let is_trusted = self.trust.trusts(chain);
        match is_trusted {
            true => self.generation.store(generation, Ordering::Relaxed),
            false => self.has_lapsed.store(true, Ordering::Relaxed),
        }
        !is_trusted
    }
}
