//! The settings of HTTP agents: certificates, time limits, resolvers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ureq::Agent;
use ureq::config::{Config, ConfigBuilder};
use ureq::http::Uri;
use ureq::tls::{Certificate, ClientCert, PemItem, RootCerts, TlsConfig, TlsProvider};
use ureq::typestate::AgentScope;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use crate::patience::Patience;
use crate::remote::Remote;

/// Maximum number of parallel requests for single narinfos, the same as Nix's.
pub const AT_ONCE_MAX: usize = 25;

/// Maximum wait for the response to a request with a body, and for each read of the response. The
/// server may have to store, assemble or publish what it received.
const WORK_TIME: Duration = Duration::from_secs(60);

/// Maximum time to send the body of one request. It suffices for the largest NAR over a slow line.
const SEND_TIME: Duration = Duration::from_secs(24 * 3600);

/// Resolves each host name as the host of this URL.
#[derive(Debug)]
pub(crate) struct OtherHost(Uri, DefaultResolver);

impl OtherHost {
    /// `url`: the URL of the host and port to connect to.
    pub(crate) fn new(url: Uri) -> Self {
        Self(url, DefaultResolver::default())
    }
}

impl Resolver for OtherHost {
    fn resolve(
        &self,
        _uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        self.1.resolve(&self.0, config, timeout)
    }
}

/// Returns the settings that all clients share.
pub(crate) fn builder(
    remote: &Remote,
    patience: Patience,
    certificate: Option<ClientCert>,
) -> anyhow::Result<ConfigBuilder<AgentScope>> {
    builder_with(remote, patience, certificate, None)
}

/// Returns the settings that all clients share. `authorities`: PEM file with the only trusted
/// certificates; `None`: those of this machine.
pub(crate) fn builder_with(
    remote: &Remote,
    patience: Patience,
    certificate: Option<ClientCert>,
    authorities: Option<&Path>,
) -> anyhow::Result<ConfigBuilder<AgentScope>> {
    let mut builder = Agent::config_builder()
        .http_status_as_error(false)
        .user_agent(concat!("samovar/", env!("CARGO_PKG_VERSION")))
        .timeout_connect(Some(patience.pace.silence))
        .timeout_recv_response(Some(WORK_TIME))
        .timeout_per_read(Some(WORK_TIME))
        .timeout_send_body(Some(SEND_TIME))
        .max_idle_connections(AT_ONCE_MAX)
        .max_idle_connections_per_host(AT_ONCE_MAX);
    if remote.is_secure() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(provider)
            .root_certs(RootCerts::new_with_certs(&match authorities {
                Some(file) => certificates_in(file, "name another file")?,
                None => root_certificates()?,
            }))
            .client_cert(certificate)
            .build();
        builder = builder.tls_config(tls);
    }
    Ok(builder)
}

/// Reads the trusted certificates of this machine from the locations that Nix uses.
///
/// # Source
///
/// Nix 2.36, `src/libstore/globals.cc`, `getDefaultSSLCertFile`.
fn root_certificates() -> anyhow::Result<Vec<Certificate<'static>>> {
    let named = ["NIX_SSL_CERT_FILE", "SSL_CERT_FILE"]
        .into_iter()
        .filter_map(std::env::var_os)
        .find(|value| !value.is_empty());
    let file = match named {
        Some(file) => PathBuf::from(file),
        None => [
            "/etc/ssl/certs/ca-certificates.crt",
            "/etc/pki/tls/certs/ca-bundle.crt",
            "/nix/var/nix/profiles/default/etc/ssl/certs/ca-bundle.crt",
        ]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
        .context("no trusted certificates found: set NIX_SSL_CERT_FILE to a PEM file")?,
    };
    certificates_in(&file, "set NIX_SSL_CERT_FILE to another file")
}

/// Reads the certificates in a PEM file. `fix`: what to do if it has none.
fn certificates_in(file: &Path, fix: &str) -> anyhow::Result<Vec<Certificate<'static>>> {
    let pem = std::fs::read(file)
        .with_context(|| format!("cannot read the trusted certificates in {file:?}"))?;
    let certificates: Vec<_> = ureq::tls::parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        bail!("{file:?} holds no certificate: {fix}");
    }
    Ok(certificates)
}
