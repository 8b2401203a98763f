//! Reloads caches and certificate, without effect on open connections.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::time::SystemTime;

use samovar_cache::Site;
use samovar_http::tls::{ClientCertificates, TlsConfig};

use super::caches;
use super::observer::Logs;
use crate::config::{Configuration, Names, Tls};
use crate::log::ErrorLog;

/// Reads the configuration again, after HUP.
pub type Again<'a> = dyn Fn() -> anyhow::Result<(Configuration, Applied<'a>)> + 'a;

/// Called once the configuration is in use. Returns the names of the options that differ from those
/// in use before; `None` if there are only options of the command line, which stay the same.
pub type Applied<'a> = Box<dyn FnOnce() -> Option<Vec<String>> + 'a>;

/// Maximum number of options that the line about a reload names.
const NAMED_COUNT: usize = 20;

/// Reopens logs and reloads the caches. After an error the caches stay as they were.
pub(super) fn reload(site: &Site, started: &Configuration, again: &Again<'_>, logs: &Logs) {
    logs.reopen();
    let outcome = again().and_then(|(config, applied)| {
        let warnings = caches::replace(site, started, &config)?;
        Ok((config, warnings, applied()))
    });
    let errors = &logs.errors;
    match outcome {
        Ok((config, warnings, changed)) => {
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
            let changed = changed.map_or_else(String::new, |names| changes(&names));
            errors.info(format_args!(
                "the configuration was reloaded{keys}{changed}"
            ));
        }
        Err(error) => errors.error(format_args!("{error:#}; the configuration was not changed")),
    }
}

/// Lists the options that a reload has changed.
fn changes(names: &[String]) -> String {
    match names.split_at_checked(NAMED_COUNT) {
        _ if names.is_empty() => "; no option of a cache was changed".to_owned(),
        Some((first, more)) if !more.is_empty() => {
            format!("; changed: {} and {} more", first.join(", "), more.len())
        }
        _ => format!("; changed: {}", names.join(", ")),
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
    let config = builder.build().map_err(|error| {
        let error = anyhow::Error::new(error);
        let fix = tls_fix(&error, names);
        anyhow::anyhow!("cannot use TLS: {error:#}; {fix}")
    })?;
    warn_of_files(tls, &config, errors);
    Ok(config)
}

/// Returns how to fix an error of the files of TLS.
pub(crate) fn tls_fix(error: &anyhow::Error, names: &Names) -> String {
    let (certificate, key) = (names.option("tls.certificate"), names.option("tls.key"));
    match io_error_kind(error) {
        Some(ErrorKind::PermissionDenied) => {
            "change its owner or mode, so that the user of the server can read it".to_owned()
        }
        Some(ErrorKind::NotFound) => format!("correct its path in {certificate} or {key}"),
        _ => format!("set {certificate} and {key} to the files of one certificate"),
    }
}

/// Returns the remark about a TLS key that every user of the machine can read.
pub(crate) fn open_key(tls: &Tls) -> Option<String> {
    let file = &tls.key;
    let is_open = fs::metadata(file).is_ok_and(|key| key.mode() & 0o004 != 0);
    is_open
        .then(|| format!("the TLS key {file:?} is readable by all users: run `chmod o-rwx` on it"))
}

/// Returns the kind of the system error that caused an error, if one did.
fn io_error_kind(error: &anyhow::Error) -> Option<ErrorKind> {
    let mut causes = error.chain();
    causes.find_map(|cause| Some(cause.downcast_ref::<io::Error>()?.kind()))
}

/// Reloads the certificate. After an error the current one stays in use.
pub(super) fn reload_certificate(tls: &Tls, config: &TlsConfig, errors: &ErrorLog) {
    match config.reload() {
        Ok(()) => {
            errors.info("the certificate was reloaded");
            warn_of_files(tls, config, errors);
        }
        Err(error) => {
            let error = anyhow::Error::new(error);
            errors.error(format_args!("{error:#}; the certificate was not changed"));
        }
    }
}

fn warn_of_files(tls: &Tls, config: &TlsConfig, errors: &ErrorLog) {
    if let Some(remark) = open_key(tls) {
        errors.warning(remark);
    }
    let now = SystemTime::now();
    if config.certificates().iter().any(|one| one.is_expired(now)) {
        let file = &tls.certificate;
        errors.warning(format_args!(
            "the certificate in {file:?} has expired: clients will refuse it"
        ));
    }
}
