//! TLS configuration of a listener, and how to reload it.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustls::crypto::{CryptoProvider, ring};
use rustls::server::{ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, SupportedCipherSuite, version};

use super::certificate::{self, Certificate, Pem};
use super::error::TlsError;
use super::resolver::{Resolver, Unused};
use super::stream::Stream;
use super::trust::{Authorities, Trust};
use crate::sync::Lock;

/// Capacity of the session cache, which serves TLS 1.2 clients without ticket support. A session
/// takes some hundred bytes, more with client certificates.
const SESSION_COUNT_MAX: usize = 1024;

/// Policy for the certificates of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Optional. If a client presents a certificate that cannot be verified, the handshake fails.
    /// Handlers can read the certificate, if any.
    Optional,
    /// Required: the handshake fails without one.
    Required,
}

/// TLS configuration of a listener: certificates with their keys, and the verification of client
/// certificates.
///
/// Clones share their state: [`reload`](Self::reload) on one of them applies to all of them.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    recipe: Mutex<TlsBuilder>,
    loaded: Mutex<Arc<Loaded>>,
    trust: Arc<Trust>,
}

/// The configuration that was built from a [`TlsBuilder`].
#[derive(Debug)]
struct Loaded {
    server: Arc<ServerConfig>,
    certificates: Vec<Certificate>,
    authorities: Authorities,
    /// The generation of the authorities in [`Trust`].
    generation: u64,
}

impl TlsConfig {
    /// Creates a builder that has no certificates yet.
    pub fn builder() -> TlsBuilder {
        TlsBuilder::default()
    }

    /// Loads one certificate chain and its key from PEM files.
    ///
    /// # Errors
    ///
    /// As [`TlsBuilder::build`].
    pub fn files(chain: impl AsRef<Path>, key: impl AsRef<Path>) -> Result<Self, TlsError> {
        Self::builder().certificate_files(chain, key).build()
    }

    /// Reads all files again and uses them for new connections. Open connections continue
    /// unchanged, except that the next request on a connection whose client certificate the new
    /// authorities do not trust is refused. Earlier sessions are not resumed, because the trusted
    /// client authorities may have changed.
    ///
    /// # Errors
    ///
    /// As [`TlsBuilder::build`]; the current configuration then stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let recipe = self.shared.recipe.locked();
        self.load(&recipe)
    }

    /// Replaces the configuration by another one, and applies it as [`reload`](Self::reload) does.
    ///
    /// # Errors
    ///
    /// As [`TlsBuilder::build`]; the current configuration then stays in use.
    pub fn replace(&self, recipe: TlsBuilder) -> Result<(), TlsError> {
        let mut current = self.shared.recipe.locked();
        self.load(&recipe)?;
        *current = recipe;
        Ok(())
    }

    /// Loads a configuration. The caller holds the lock of the recipe until the end, so that the
    /// later of two concurrent calls wins.
    fn load(&self, recipe: &TlsBuilder) -> Result<(), TlsError> {
        let mut loaded = recipe.load()?;
        loaded.generation = self.shared.trust.replace(loaded.authorities.clone());
        *self.shared.loaded.locked() = Arc::new(loaded);
        Ok(())
    }

    /// Returns the certificates in use, in the order they were added.
    pub fn certificates(&self) -> Vec<Certificate> {
        self.loaded().certificates.clone()
    }

    /// Returns the configuration for a new connection.
    #[cfg(test)]
    pub(crate) fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.loaded().server)
    }

    /// Starts TLS on a connection.
    pub(crate) fn stream(&self, socket: OwnedFd) -> Stream {
        let loaded = self.loaded();
        Stream::new(socket, Arc::clone(&loaded.server))
            .trusting(Arc::clone(&self.shared.trust), loaded.generation)
    }

    fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.shared.loaded.locked())
    }
}

/// Builder of a [`TlsConfig`].
#[derive(Debug, Clone, Default)]
pub struct TlsBuilder {
    /// Pairs of certificate chain and key.
    certificates: Vec<(Pem, Pem)>,
    clients: Option<(Pem, ClientCertificates)>,
}

impl TlsBuilder {
    /// Adds a certificate from PEM files: `chain` contains the certificate followed by its issuers,
    /// `key` the private key. It is used for clients that request one of its names (SNI). The first
    /// certificate added is also used for clients without SNI, and for names without a certificate.
    /// Each other one must have a name, and no two may have the same one.
    #[must_use]
    pub fn certificate_files(mut self, chain: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.certificates.push((Pem::file(chain), Pem::file(key)));
        self
    }

    /// Like [`certificate_files`](Self::certificate_files), from PEM in memory. A reload keeps it.
    #[must_use]
    pub fn certificate_pem(mut self, chain: &[u8], key: &[u8]) -> Self {
        self.certificates
            .push((Pem::Memory(chain.into()), Pem::Memory(key.into())));
        self
    }

    /// Requests certificates from clients and verifies them against the authorities in a PEM file.
    /// Handlers can read a client's certificates with
    /// [`Head::peer_certificates`](crate::Head::peer_certificates).
    ///
    /// Once a certificate has expired, or is not trusted after a reload, the next request on its
    /// connection gets 403, and its WebSockets are closed with 1008. Responses in progress are
    /// finished, however long they wait for the application: a service that sends events for hours
    /// ends them itself.
    #[must_use]
    pub fn client_authorities_file(
        mut self,
        authorities: impl AsRef<Path>,
        clients: ClientCertificates,
    ) -> Self {
        self.clients = Some((Pem::file(authorities), clients));
        self
    }

    /// Reads the files and builds the configuration. Expired certificates are accepted, see
    /// [`Certificate::is_expired`].
    ///
    /// # Errors
    ///
    /// If a file cannot be read or parsed, a key does not belong to its certificate, two
    /// certificates have the same name, or there is no certificate. The error names the file.
    pub fn build(self) -> Result<TlsConfig, TlsError> {
        let mut loaded = self.load()?;
        let trust = Trust::default();
        loaded.generation = trust.replace(loaded.authorities.clone());
        Ok(TlsConfig {
            shared: Arc::new(Shared {
                recipe: Mutex::new(self),
                loaded: Mutex::new(Arc::new(loaded)),
                trust: Arc::new(trust),
            }),
        })
    }

    fn load(&self) -> Result<Loaded, TlsError> {
        let invalid = |problem| TlsError::new("TLS".to_owned(), problem);
        let refused = |error: rustls::Error| invalid("configuration refused").because(error);
        let provider = Arc::new(provider());
        let mut resolver = Resolver::default();
        let mut certificates = Vec::new();
        for (number, (chain, key)) in self.certificates.iter().enumerate() {
            let facts = self
                .load_certificate(chain, key, &provider, &mut resolver)
                .map_err(|error| error.of_certificate(number))?;
            certificates.push(facts);
        }
        if certificates.is_empty() {
            return Err(invalid("no certificate is configured"));
        }
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(refused)?;
        let authorities = match &self.clients {
            None => Authorities::default(),
            Some((pem, clients)) => authorities(pem, *clients, provider)?,
        };
        let builder = match &authorities.verifier {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
        };
        let mut server = builder.with_cert_resolver(Arc::new(resolver));
        // Prefer the suites that are cheapest on this machine to the client's order.
        server.ignore_client_order = true;
        server.session_storage = ServerSessionMemoryCache::new(SESSION_COUNT_MAX);
        server.ticketer = ring::Ticketer::new().map_err(refused)?;
        server.max_early_data_size = 0;
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        if cfg!(feature = "http2") {
            server.alpn_protocols.insert(0, b"h2".to_vec());
        }
        Ok(Loaded {
            server: Arc::new(server),
            certificates,
            authorities,
            generation: 0,
        })
    }

    /// Loads a certificate and adds it to the resolver.
    fn load_certificate(
        &self,
        chain: &Pem,
        key: &Pem,
        provider: &CryptoProvider,
        resolver: &mut Resolver,
    ) -> Result<Certificate, TlsError> {
        let (certified, facts) = certificate::load(chain, key, provider)?;
        match resolver.add(certified, &facts.names) {
            Ok(()) => Ok(facts),
            Err(Unused::NoName) => Err(chain.error(
                "holds a certificate without a DNS name, which only the first certificate may be: \
                 no client would get it",
            )),
            Err(Unused::Twice(name, other)) => {
                let other = self.certificates.get(other);
                let other = other.map_or_else(String::new, |(chain, _)| chain.location());
                Err(chain.error(format!(
                    "holds a certificate for {name}, as {other} does: clients could get only one"
                )))
            }
        }
    }
}

fn authorities(
    pem: &Pem,
    clients: ClientCertificates,
    provider: Arc<CryptoProvider>,
) -> Result<Authorities, TlsError> {
    let mut roots = RootCertStore::empty();
    let certificates = pem.certificates()?;
    for certificate in &certificates {
        roots
            .add(certificate.clone())
            .map_err(|error| pem.unsupported(error))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let builder = match clients {
        ClientCertificates::Optional => builder.allow_unauthenticated(),
        ClientCertificates::Required => builder,
    };
    let verifier = builder
        .build()
        .map_err(|error| pem.error(format!("cannot verify clients: {error}")))?;
    Ok(Authorities {
        certificates,
        verifier: Some(verifier),
    })
}

/// Returns ring's cipher suites, cheapest first: encrypting 1 GB in records of 16 KiB takes 0.13 s
/// with AES-128-GCM, 0.15 s with AES-256-GCM and 0.55 s with `ChaCha20`.
fn provider() -> CryptoProvider {
    fn rank(suite: &SupportedCipherSuite) -> u8 {
        let name = suite.suite().as_str().unwrap_or_default();
        match name {
            _ if name.contains("AES_128") => 0,
            _ if name.contains("AES_256") => 1,
            _ => 2,
        }
    }
    let mut provider = ring::default_provider();
    provider.cipher_suites.sort_by_key(rank);
    provider
}
