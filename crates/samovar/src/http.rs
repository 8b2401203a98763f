//! Sends HTTP requests and retries them.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ureq::http::Response;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body, RequestBuilder};

use crate::remote::Remote;

/// Maximum number of parallel requests for single narinfos, the same as Nix's.
pub(crate) const AT_ONCE_MAX: usize = 25;

const CONNECT_TIME: Duration = Duration::from_secs(15);

/// Maximum time until the response, and for each read of its body.
const SILENCE_TIME: Duration = Duration::from_secs(60);

const ATTEMPT_COUNT_MAX: u32 = 5;

/// Pause before the second attempt. It doubles before each further attempt.
const PAUSE: Duration = Duration::from_millis(250);

/// Longest pause that a server can request by `Retry-After`.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A client of one server.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    agent: Agent,
    remote: Remote,
}

impl Http {
    pub(crate) fn new(remote: Remote) -> anyhow::Result<Self> {
        let mut builder = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("samovar/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_TIME))
            .timeout_recv_response(Some(SILENCE_TIME))
            .timeout_per_read(Some(SILENCE_TIME))
            .max_idle_connections(AT_ONCE_MAX)
            .max_idle_connections_per_host(AT_ONCE_MAX);
        if remote.is_secure() {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let tls = TlsConfig::builder()
                .provider(TlsProvider::Rustls)
                .unversioned_rustls_crypto_provider(provider)
                .root_certs(RootCerts::new_with_certs(&root_certificates()?))
                .build();
            builder = builder.tls_config(tls);
        }
        Ok(Self {
            agent: builder.build().into(),
            remote,
        })
    }

    /// Returns the server's URL and login.
    pub(crate) fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Returns the URL of `path` on the server, without a login.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.remote)
    }

    /// Sends GET for `path`, which begins with a slash.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<Response<Body>> {
        let url = self.url(path);
        retry(&url, || self.authorized(self.agent.get(&url)).call())
    }

    /// Sends POST for `path`, which begins with a slash.
    pub(crate) fn post(&self, path: &str, body: &[u8]) -> anyhow::Result<Response<Body>> {
        let url = self.url(path);
        retry(&url, || {
            self.authorized(self.agent.post(&url))
                .header("Content-Type", "text/plain")
                .send(body)
        })
    }

    fn authorized<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match self.remote.authorization() {
            Some(value) => request.header("Authorization", value),
            None => request,
        }
    }
}

/// Reads a body of at most `len_max` bytes.
pub(crate) fn read_body(response: Response<Body>, len_max: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let reader = response.into_body().into_reader();
    let len = reader
        .take(len_max.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if len as u64 > len_max {
        bail!("the answer is longer than {len_max} bytes");
    }
    Ok(bytes)
}

/// Sends a request until the response needs no retry.
fn retry(
    url: &str,
    mut ask: impl FnMut() -> Result<Response<Body>, ureq::Error>,
) -> anyhow::Result<Response<Body>> {
    let mut pause = PAUSE;
    for attempt in 1.. {
        let is_last = attempt >= ATTEMPT_COUNT_MAX;
        let wanted = match ask() {
            Ok(response) if is_last || !is_passing(response.status().as_u16()) => {
                return Ok(response);
            }
            Ok(response) => retry_after(&response),
            Err(error) if is_last || !may_pass(&error) => {
                return Err(error).with_context(|| {
                    format!("{url} cannot be reached: check the URL, the network and the server")
                });
            }
            Err(_) => None,
        };
        std::thread::sleep(wanted.unwrap_or(pause).min(PAUSE_MAX));
        pause *= 2;
    }
    bail!("{url} was not requested")
}

/// Returns whether the status is temporary.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

fn may_pass(error: &ureq::Error) -> bool {
    matches!(
        error,
        ureq::Error::Io(_) | ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed
    )
}

fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let value = response.headers().get("Retry-After")?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
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
    let pem = std::fs::read(&file)
        .with_context(|| format!("cannot read the trusted certificates in {file:?}"))?;
    let certificates: Vec<_> = ureq::tls::parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        bail!("{file:?} holds no certificate: set NIX_SSL_CERT_FILE to another file");
    }
    Ok(certificates)
}
