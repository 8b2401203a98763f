//! Checks of the files that the server reads, and of the user who must be able to read them again.

use std::time::{Duration, SystemTime};

use samovar_cache::access::Access;

use super::{Findings, split};
use crate::config::Configuration;
use crate::daemon::Identity;
use crate::server::{certificates, open_keys, tls_fault, unreadable, unwritable, with_files};

/// A certificate that expires within this time gets a warning: automatic renewal should have
/// replaced it by now.
const RENEWAL_TIME: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Checks the access rules. A server does not start if one of their files is unusable.
pub(super) fn access(config: &Configuration, findings: &mut Findings) {
    for cache in config.caches.iter().filter(|cache| !cache.access.is_open()) {
        match Access::new(cache.access.clone()) {
            Ok((_, warnings)) => {
                for warning in &warnings {
                    let (fault, fix) = split(warning, "add an entry to it, or remove it");
                    findings.warning("access", fault, fix);
                }
                if warnings.is_empty() {
                    let prefix = &cache.prefix;
                    findings.ok(
                        "access",
                        format!("the access rules of {prefix}/ are readable"),
                    );
                }
            }
            Err(error) => {
                let text = format!("{:#}", anyhow::Error::new(error));
                let (fault, fix) = text.split_once("; ").unwrap_or((
                    &text,
                    "correct the file or the entry in access.…; `samovar password NAME` and \
                     `samovar token line NAME` print lines for these files",
                ));
                findings.error("access", fault, fix);
            }
        }
    }
}

/// Checks the files of TLS. Returns the DNS names of the certificates.
pub(super) fn certificate(config: &Configuration, findings: &mut Findings) -> Vec<String> {
    let Some(tls) = &config.tls else {
        return Vec::new();
    };
    let tls_config = match certificates(tls).build() {
        Ok(tls_config) => tls_config,
        Err(error) => {
            let (fault, fix) = tls_fault(error, tls, &config.names);
            findings.error("TLS", fault, fix);
            return Vec::new();
        }
    };
    for remark in open_keys(tls) {
        let (fault, fix) = split(&remark, "");
        findings.warning("TLS", fault, fix);
    }
    let now = SystemTime::now();
    let mut dns_names = Vec::new();
    for (file, certificate) in with_files(tls, &tls_config) {
        let names = if certificate.names.is_empty() {
            "addresses only".to_owned()
        } else {
            certificate.names.join(", ")
        };
        let fix = "renew it, and send HUP to the server";
        if certificate.is_expired(now) {
            findings.error(
                "TLS",
                format!("the certificate in {file:?} has expired"),
                fix,
            );
        } else if certificate.is_expired(now + RENEWAL_TIME) {
            let text = format!("the certificate in {file:?} expires within 14 days");
            findings.warning("TLS", text, fix);
        } else if certificate.not_before.is_some_and(|start| start > now) {
            let text = format!("the certificate in {file:?} is not valid yet");
            findings.error("TLS", text, "correct this machine's clock, or wait");
        } else {
            findings.ok("TLS", format!("the certificate is valid for {names}"));
        }
        dns_names.extend(certificate.names);
    }
    dns_names
}

/// Switches to the configured user, and checks that this user can open the files of a reload.
pub(super) fn identity(config: &Configuration, findings: &mut Findings) {
    let found = Identity::find(config.user.as_deref(), config.group.as_deref());
    let assumed = found.and_then(|identity| match identity {
        Some(identity) => identity.assume().map(|()| true),
        None => Ok(false),
    });
    match assumed {
        Ok(true) => {
            for (fault, fix) in unreadable(config) {
                findings.error("user", fault, fix);
            }
            for (fault, fix) in unwritable(config) {
                findings.warning("user", fault, fix);
            }
        }
        Ok(false) => {}
        Err(error) => {
            let fix = "set another user or group, or run samovar doctor as root";
            findings.error("user", error.to_string(), fix);
        }
    }
}
