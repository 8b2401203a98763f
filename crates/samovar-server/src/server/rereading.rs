//! The files that a reload reads again, as the configured user.

use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::config::Configuration;

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
        files.push(("TLS certificate", &tls.certificate));
        files.push(("TLS key", &tls.key));
        let clients = tls.clients.as_ref();
        files.extend(clients.map(|clients| ("file of client authorities", &*clients.authorities)));
    }
    files.sort_unstable();
    files.dedup();
    let user = || match (&config.user, &config.group) {
        (Some(user), _) => format!("the user {user:?}"),
        (None, Some(group)) => format!("the group {group:?}"),
        (None, None) => "the user of the server".to_owned(),
    };
    let is_unreadable = |file: &Path| {
        // Without `NONBLOCK`, opening a pipe that has no writer would block forever.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = rustix::fs::open(file, flags, Mode::empty());
        matches!(opened, Err(Errno::ACCESS | Errno::PERM))
    };
    let faults = files.into_iter().filter(|(_, file)| is_unreadable(file));
    faults
        .map(|(what, file)| {
            let fault = format!(
                "{} cannot read the {what} {file:?}, so that reloads (HUP) will fail",
                user()
            );
            (fault, "change its owner or mode, or those of its directory")
        })
        .collect()
}
