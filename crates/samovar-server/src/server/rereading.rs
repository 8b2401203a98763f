//! The files that a reload opens again, as the configured user.

use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::config::{Configuration, LogTarget};

/// Returns the fault of each file that a reload must read and that the present user cannot read,
/// and its fix. Call it after the process has switched its user: the start reads these files
/// before.
pub(crate) fn unreadable(config: &Configuration) -> Vec<(String, &'static str)> {
    let mut files: Vec<(&str, &Path)> = Vec::new();
    files.extend(
        config
            .files
            .iter()
            .map(|file| ("configuration file", &**file)),
    );
    for cache in &config.caches {
        let keys = cache.secret_key_files.iter();
        files.extend(keys.map(|file| ("secret key file", &**file)));
        let access = [
            ("users file", &cache.access.users_file),
            ("tokens file", &cache.access.tokens_file),
        ];
        let given = access.into_iter();
        files.extend(given.filter_map(|(what, file)| Some((what, file.as_deref()?))));
    }
    if let Some(tls) = &config.tls {
        for one in &tls.certificates {
            files.push(("TLS certificate", &one.certificate));
            files.push(("TLS key", &one.key));
        }
        let clients = tls.clients.as_ref();
        files.extend(clients.map(|clients| ("file of client authorities", &*clients.authorities)));
    }
    files.sort_unstable();
    files.dedup();
    let faults = files
        .into_iter()
        .filter(|(_, file)| is_denied(file, OFlags::RDONLY));
    faults
        .map(|(what, file)| {
            let fault = format!(
                "{} cannot read the {what} {file:?}, so that reloads (HUP) will fail",
                user(config)
            );
            (fault, FIX)
        })
        .collect()
}

/// Returns the fault of each log file that exists and to which the present user cannot write, and
/// its fix. Call it after the process has switched its user.
pub(crate) fn unwritable(config: &Configuration) -> Vec<(String, &'static str)> {
    let access = match &config.access_log {
        Some(LogTarget::File(file)) => Some(("access log", &**file)),
        Some(LogTarget::StandardOutput) | None => None,
    };
    let errors = config.error_log.as_deref().map(|file| ("error log", file));
    let files = access.into_iter().chain(errors);
    let faults = files.filter(|(_, file)| is_denied(file, OFlags::WRONLY | OFlags::APPEND));
    faults
        .map(|(what, file)| {
            let fault = format!(
                "{} cannot write to the {what} {file:?}, so that reloads (HUP) will keep the old \
                 file, and upgrades (USR2) will fail",
                user(config)
            );
            (fault, FIX)
        })
        .collect()
}

const FIX: &str = "change its owner or mode, or those of its directory";

/// Describes the user of the server.
fn user(config: &Configuration) -> String {
    match (&config.user, &config.group) {
        (Some(user), _) => format!("the user {user:?}"),
        (None, Some(group)) => format!("the group {group:?}"),
        (None, None) => "the user of the server".to_owned(),
    }
}

/// Returns whether the present user may not open a file in this way.
fn is_denied(file: &Path, way: OFlags) -> bool {
    // Without `NONBLOCK`, opening a pipe without another end would block forever.
    let flags = way | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = rustix::fs::open(file, flags, Mode::empty());
    matches!(opened, Err(Errno::ACCESS | Errno::PERM))
}
