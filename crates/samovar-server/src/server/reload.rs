//! Reloads caches and certificate, without effect on open connections.

use std::time::SystemTime;

use anyhow::Context as _;
use samovar_cache::Site;
use samovar_http::tls::{ClientCertificates, TlsConfig};

use super::caches;
use super::observer::Logs;
use crate::config::{Configuration, Names, Tls};
use crate::log::ErrorLog;

/// Reads the configuration again, after HUP.
pub type Again<'a> = dyn Fn() -> anyhow::Result<Configuration> + 'a;

/// Reopens logs and reloads the caches. After an error the caches stay as they were.
pub(super) fn reload(site: &Site, started: &Configuration, again: &Again<'_>, logs: &Logs) {
    logs.reopen();
    let outcome = again().and_then(|config| {
        let warnings = caches::replace(site, started, &config)?;
        Ok((config, warnings))
    });
    let errors = &logs.errors;
    match outcome {
        Ok((config, warnings)) => {
            let warnings = config.remarks.iter().chain(&warnings);
            warnings.for_each(|warning| errors.warning(warning));
            let key_count: usize = config
                .caches
                .iter()
                .map(|it| it.secret_key_files.len())
                .sum();
            let keys = match key_count {
                0 => "",
                1 => ", with its secret key",
                _ => ", with its secret keys",
            };
            errors.info(format_args!("the configuration was reloaded{keys}"));
        }
        Err(error) => errors.error(format_args!("{error:#}; nothing was changed")),
    }
}

pub(super) fn read_certificate(
    tls: &Tls,
    names: &Names,
    errors: &ErrorLog,
) -> anyhow::Result<TlsConfig> {
    let mut builder = TlsConfig::builder().certificate_files(&tls.certificate, &tls.key);
    if let Some(clients) = &tls.clients {
        let needed = match clients.required {
            true => ClientCertificates::Required,
            false => ClientCertificates::Optional,
        };
        builder = builder.client_authorities_file(&clients.authorities, needed);
    }
    let config = builder.build().with_context(|| {
        let (certificate, key) = (names.option("tls.certificate"), names.option("tls.key"));
        format!("cannot use TLS: set {certificate} and {key} to other files")
    })?;
    warn_of_expiry(tls, &config, errors);
    Ok(config)
}

/// Reloads the certificate. After an error the current one stays in use.
pub(super) fn reload_certificate(tls: &Tls, config: &TlsConfig, errors: &ErrorLog) {
    match config.reload() {
        Ok(()) => {
            errors.info("the certificate was reloaded");
            warn_of_expiry(tls, config, errors);
        }
        Err(error) => {
            let error = anyhow::Error::new(error);
            errors.error(format_args!("{error:#}; the certificate was not changed"));
        }
    }
}

fn warn_of_expiry(tls: &Tls, config: &TlsConfig, errors: &ErrorLog) {
    let now = SystemTime::now();
    if config.certificates().iter().any(|one| one.is_expired(now)) {
        let file = &tls.certificate;
        errors.warning(format_args!(
            "the certificate in {file:?} has expired: clients will refuse it"
        ));
    }
}
