//! Requests, tried again where that may help.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ureq::http::Response;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body, RequestBuilder};

use crate::remote::Remote;

/// Requests at once, where a cache has to be asked for one narinfo after the other: as many as Nix
/// makes.
pub(crate) const AT_ONCE_MAX: usize = 25;

const CONNECT_TIME: Duration = Duration::from_secs(15);

/// How long a server may be silent.
const SILENCE_TIME: Duration = Duration::from_secs(60);

/// The same where somebody looks on.
const WATCH_TIME: Duration = Duration::from_secs(3);

const ATTEMPT_COUNT_MAX: u32 = 5;

/// Before the second attempt; twice as long before each further one.
const PAUSE: Duration = Duration::from_millis(250);

/// However long a server asks to wait.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A client of one server.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    agent: Agent,
    remote: Remote,
}

impl Http {
    /// # Errors
    ///
    /// If the certificates of this machine cannot be read.
    pub(crate) fn new(remote: Remote) -> anyhow::Result<Self> {
        Self::with_patience(remote, CONNECT_TIME, SILENCE_TIME)
    }

    /// For somebody who looks on.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub(crate) fn watching(remote: Remote) -> anyhow::Result<Self> {
        Self::with_patience(remote, WATCH_TIME, WATCH_TIME)
    }

    fn with_patience(
        remote: Remote,
        connect_time: Duration,
        silence_time: Duration,
    ) -> anyhow::Result<Self> {
        let mut builder = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("samovar/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(connect_time))
            .timeout_recv_response(Some(silence_time))
            .timeout_per_read(Some(silence_time))
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

    /// The server.
    pub(crate) fn remote(&self) -> &Remote {
        &self.remote
    }

    /// The URL of `path` on the server, without a login.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.remote)
    }

    /// Sends GET for `path`, which begins with a slash.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<Response<Body>> {
        let url = self.url(path);
        retry(&url, || self.authorized(self.agent.get(&url)).call())
    }

    /// Sends GET once, without a retry.
    pub(crate) fn get_once(&self, path: &str) -> anyhow::Result<Response<Body>> {
        let url = self.url(path);
        let answer = self.authorized(self.agent.get(&url)).call();
        answer.with_context(|| format!("{url} cannot be reached"))
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

/// A body, as far as `len_max` bytes.
pub(crate) fn read_body(response: Response<Body>, len_max: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let reader = response.into_body().into_reader();
    let len = reader
        .take(len_max.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if len as u64 > len_max {
        bail!("it is longer than {len_max} bytes");
    }
    Ok(bytes)
}

/// Asks until there is an answer that another attempt would not change.
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
    bail!("{url} was not asked")
}

/// Statuses that say "later".
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

/// The certificates that this machine trusts, from where Nix looks for them.
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
        .context(
            "no file of trusted certificates was found: set NIX_SSL_CERT_FILE to one in PEM form",
        )?,
    };
    let pem = std::fs::read(&file)
        .with_context(|| format!("the trusted certificates in {file:?} cannot be read"))?;
    let certificates: Vec<_> = ureq::tls::parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        bail!("there is no certificate in {file:?}: set NIX_SSL_CERT_FILE to another file");
    }
    Ok(certificates)
}
