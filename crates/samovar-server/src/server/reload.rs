//! Reloads caches and certificate, without effect on open connections.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::SystemTime;

use samovar_cache::Site;
use samovar_http::tls::{Certificate, ClientCertificates, TlsBuilder, TlsConfig, TlsError};

use super::caches;
use super::observer::Logs;
use crate::config::{CertificateFiles, Configuration, Names, Tls};
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
    let mut builder = certificates(tls);
    if let Some(clients) = &tls.clients {
        let needed = match clients.required {
            true => ClientCertificates::Required,
            false => ClientCertificates::Optional,
        };
        builder = builder.client_authorities_file(&clients.authorities, needed);
    }
    let config = builder.build().map_err(|error| {
        let (fault, fix) = tls_fault(error, tls, names);
        anyhow::anyhow!("cannot use TLS: {fault}; {fix}")
    })?;
    warn_of_files(tls, &config, errors);
    Ok(config)
}

/// Returns the configuration of TLS without the authorities of clients.
pub(crate) fn certificates(tls: &Tls) -> TlsBuilder {
    let add = |builder: TlsBuilder, files: &CertificateFiles| {
        builder.certificate_files(&files.certificate, &files.key)
    };
    tls.certificates.iter().fold(TlsConfig::builder(), add)
}

/// Returns an error of the files of TLS as text, and how to fix it.
pub(crate) fn tls_fault(error: TlsError, tls: &Tls, names: &Names) -> (String, String) {
    let entry = entry(&error, tls);
    let error = anyhow::Error::new(error);
    let (certificate, key) = (names.option("tls.certificate"), names.option("tls.key"));
    let fix = match (io_error_kind(&error), entry) {
        (Some(ErrorKind::PermissionDenied), _) => {
            "change its owner or mode, so that the user of the server can read it".to_owned()
        }
        (Some(ErrorKind::NotFound), Some(entry)) => format!("correct its path in {entry}"),
        (_, Some(entry)) => format!("correct {entry}"),
        (Some(ErrorKind::NotFound), None) => {
            format!("correct its path in {certificate} or {key}")
        }
        (_, None) => format!("set {certificate} and {key} to the files of one certificate"),
    };
    (format!("{error:#}"), fix)
}

/// Names the entry of `tls.certificates` that has an error; `None` if none has.
fn entry(error: &TlsError, tls: &Tls) -> Option<String> {
    let files = tls.certificates.get(error.certificate()?)?;
    Some(format!("entry {} of `tls.certificates`", files.entry?))
}

/// Returns the remarks about TLS keys that every user of the machine can read.
pub(crate) fn open_keys(tls: &Tls) -> impl Iterator<Item = String> {
    let keys = tls.certificates.iter().map(|files| &files.key);
    let is_open = |file: &&PathBuf| fs::metadata(file).is_ok_and(|key| key.mode() & 0o004 != 0);
    keys.filter(is_open).map(|file| {
        format!("the TLS key {file:?} is readable by all users: run `chmod o-rwx` on it")
    })
}

/// Returns the certificates of a configuration, each with its file.
pub(crate) fn with_files(tls: &Tls, config: &TlsConfig) -> Vec<(PathBuf, Certificate)> {
    let files = tls.certificates.iter().map(|one| one.certificate.clone());
    files.zip(config.certificates()).collect()
}

/// Returns the kind of the system error that caused an error, if one did.
fn io_error_kind(error: &anyhow::Error) -> Option<ErrorKind> {
    let mut causes = error.chain();
    causes.find_map(|cause| Some(cause.downcast_ref::<io::Error>()?.kind()))
}

/// Reloads the certificates. After an error the current ones stay in use.
pub(super) fn reload_certificates(tls: &Tls, config: &TlsConfig, errors: &ErrorLog) {
    let count = tls.certificates.len();
    match config.reload() {
        Ok(()) => {
            match count {
                1 => errors.info("the certificate was reloaded"),
                _ => errors.info(format_args!("the {count} certificates were reloaded")),
            }
            warn_of_files(tls, config, errors);
        }
        Err(error) => {
            let entry = entry(&error, tls).map_or_else(String::new, |entry| format!(" ({entry})"));
            let outcome = match count {
                1 => "the certificate was not changed",
                _ => "no certificate was changed",
            };
            let error = anyhow::Error::new(error);
            errors.error(format_args!("{error:#}{entry}; {outcome}"));
        }
    }
}

fn warn_of_files(tls: &Tls, config: &TlsConfig, errors: &ErrorLog) {
    open_keys(tls).for_each(|remark| errors.warning(remark));
    let now = SystemTime::now();
    for (file, certificate) in with_files(tls, config) {
        if certificate.is_expired(now) {
            errors.warning(format_args!(
                "the certificate in {file:?} has expired: clients will refuse it"
            ));
        }
    }
}
