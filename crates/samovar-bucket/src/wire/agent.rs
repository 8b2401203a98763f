//! The HTTP client: connections, time limits, trusted certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider};

use crate::error::Fault;
use crate::limit::IN_FLIGHT_MAX;
use crate::settings::Timing;

/// Files of the machine's trusted certificates: Debian and NixOS, Fedora, Nix elsewhere, macOS.
const MACHINE_FILES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/nix/var/nix/profiles/default/etc/ssl/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Returns a client that trusts the certificates in `ca_file`, or those of the machine.
pub(crate) fn agent(ca_file: Option<&Path>, timing: &Timing) -> Result<Agent, Fault> {
    // As many as may be in flight; a 64th of that number would otherwise be connected anew.
    let connections = usize::try_from(IN_FLIGHT_MAX).unwrap_or(usize::MAX);
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&trusted(ca_file)?))
        .build();
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .user_agent(concat!("samovar/", env!("CARGO_PKG_VERSION")))
        .proxy(None)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_resolve(Some(timing.connect))
        .timeout_connect(Some(timing.connect))
        .timeout_per_read(Some(timing.stall))
        .timeout_per_write(Some(timing.stall))
        .max_idle_connections(connections)
        .max_idle_connections_per_host(connections)
        .tls_config(tls)
        .build();
    Ok(config.new_agent())
}

/// Reads the trusted certificates. A machine without any can still use endpoints without TLS.
fn trusted(ca_file: Option<&Path>) -> Result<Vec<Certificate<'static>>, Fault> {
    if let Some(file) = ca_file {
        let certificates = read(file)?;
        if certificates.is_empty() {
            return Err(refused(file, None));
        }
        return Ok(certificates);
    }
    let named = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty());
    let there = || {
        MACHINE_FILES
            .iter()
            .map(PathBuf::from)
            .find(|file| file.exists())
    };
    match named.map(PathBuf::from).or_else(there) {
        Some(file) => read(&file),
        None => Ok(Vec::new()),
    }
}

fn read(file: &Path) -> Result<Vec<Certificate<'static>>, Fault> {
    let pem = std::fs::read(file).map_err(|error| refused(file, Some(error)))?;
    let items = ureq::tls::parse_pem(&pem).filter_map(Result::ok);
    let certificates = items.filter_map(|item| match item {
        PemItem::Certificate(certificate) => Some(certificate),
        _ => None,
    });
    Ok(certificates.collect())
}

fn refused(file: &Path, source: Option<std::io::Error>) -> Fault {
    let file = file.display().to_string();
    Fault::CaFile { file, source }
}
