//! Reads the environment variables of nix-serve, which set the defaults of its options.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `NIX_SECRET_KEY_FILE` | file of the secret key; set but empty is an error at start |
//! | `NIX_SERVE_NAR_CACHE`, `NIX_SERVE_NAR_CACHE_SIZE` | `--nar-cache-directory`, `--nar-cache-size` |
//! | `NIX_SERVE_GC_LEASE` | `--gc-lease` |
//! | `CACHE_DIRECTORY` | the service manager's: default of `--nar-cache-directory` |
//! | `NIX_SERVE_VERIFY`, `NIX_SERVE_SCRUB` | `--verify`, `--scrub` |
//! | `NIX_SERVE_PAGES` | `--pages`; 1 or 0 |
//! | `NIX_SERVE_ADMIN` | `--admin-listen` |
//! | `NIX_SERVE_STATE_DIRECTORY` | `--state-directory` |
//! | `STATE_DIRECTORY` | the service manager's: default of `--state-directory` |
//! | `STARMAN_DEBUG` | debug messages in the error log |
//! | `PLACK_ENV`, `SERVER_STARTER_PORT` | ignored with a warning |
//!
//! Read elsewhere: `NIX_REMOTE`, `NIX_STORE_DIR` and the like by `samovar_store::Settings`,
//! `LISTEN_FDS`, `NOTIFY_SOCKET` and `WATCHDOG_USEC` by `samovar-server`.
//!
//! # Source
//!
//! nix-serve, `nix-serve.psgi` and its wrapper; Nix 2.31, `globals.cc`; Starman 0.4016.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use samovar_server::config::{AdminSettings, CacheSettings, Configuration, Names};

use crate::cli;

/// Returns a configuration with the values of the environment of this process. Options of the
/// command line are applied to it later.
pub fn of_process() -> Configuration {
    read(|name| std::env::var_os(name))
}

/// Returns a configuration with the values of the variables that `lookup` finds. Options of the
/// command line are applied to it later. Empty variables count as not set, except
/// `NIX_SECRET_KEY_FILE`.
pub fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Configuration {
    let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
    let mut config = defaults();
    let mut warnings = Vec::new();
    if set("PLACK_ENV").is_some_and(|env| env != "deployment") {
        warnings.push("PLACK_ENV has no effect: the environment is always deployment".to_owned());
    }
    if set("SERVER_STARTER_PORT").is_some() {
        let text = "SERVER_STARTER_PORT has no effect: sockets are taken from LISTEN_FDS";
        warnings.push(text.to_owned());
    }
    for (name, option) in OPTIONS {
        if let Some(text) = set(name)
            && let Err(expected) = cli::set(&mut config, option, &text)
        {
            warnings.push(format!("{name} has no effect: {text:?} is not {expected}"));
        }
    }
    let first_of = |names: OsString| {
        let mut names = names.as_bytes().split(|byte| *byte == b':');
        PathBuf::from(OsStr::from_bytes(names.next().unwrap_or_default()))
    };
    if config.state_directory.is_none() {
        config.state_directory = set("STATE_DIRECTORY").map(first_of);
    }
    if let Some(directory) = set("CACHE_DIRECTORY").map(first_of) {
        config.cache_directory = directory;
    }
    // An empty variable counts as a path that cannot be read, because serving without signatures
    // would be worse.
    let key_file = lookup("NIX_SECRET_KEY_FILE").map(PathBuf::from);
    config.caches[0].secret_key_files = key_file.into_iter().collect();
    config.is_verbose = set("STARMAN_DEBUG").is_some_and(|value| value != "0");
    config.remarks = warnings;
    config
}

/// Returns nix-serve's defaults: no metrics and no web interface.
fn defaults() -> Configuration {
    Configuration {
        names: Names::NIX_SERVE,
        admin: AdminSettings {
            listeners: Vec::new(),
            is_default: false,
            ..AdminSettings::default()
        },
        caches: vec![CacheSettings {
            pages: None,
            ..CacheSettings::default()
        }],
        ..Configuration::default()
    }
}

/// Environment variables, each with the option that it sets.
pub(crate) const OPTIONS: [(&str, &str); 8] = [
    ("NIX_SERVE_NAR_CACHE", "nar-cache-directory"),
    ("NIX_SERVE_NAR_CACHE_SIZE", "nar-cache-size"),
    ("NIX_SERVE_GC_LEASE", "gc-lease"),
    ("NIX_SERVE_VERIFY", "verify"),
    ("NIX_SERVE_SCRUB", "scrub"),
    ("NIX_SERVE_PAGES", "pages"),
    ("NIX_SERVE_STATE_DIRECTORY", "state-directory"),
    ("NIX_SERVE_ADMIN", "admin-listen"),
];

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;
    use std::time::Duration;

    use samovar_server::config::Pages;
    use samovar_server::listener::ListenSpec;

    use super::*;

    fn of(variables: &[(&str, &str)]) -> Configuration {
        read(|wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn without_variables_nothing_differs_from_the_defaults() {
        assert_eq!(of(&[]), defaults());
    }

    #[test]
    fn empty_variables_are_not_set_except_for_the_key() {
        let empty = of(&[("PLACK_ENV", ""), ("NIX_SECRET_KEY_FILE", "")]);
        assert_eq!(empty.caches[0].secret_key_files, [PathBuf::new()]);
        assert_eq!(empty.remarks, [""; 0]);
    }

    #[test]
    fn gc_lease_times() {
        let check = |text: &str, expected, warning_count| {
            let config = of(&[("NIX_SERVE_GC_LEASE", text)]);
            assert_eq!(config.gc_lease, expected, "{text}");
            assert_eq!(config.remarks.len(), warning_count, "{text}");
        };
        check("off", Some(Duration::ZERO), 0);
        check("0", Some(Duration::ZERO), 0);
        check("1", Some(Duration::from_secs(1)), 0);
        check("10 min", Some(Duration::from_secs(600)), 0);
        check("0.9", None, 1);
        check("on", None, 1);
    }

    #[test]
    fn every_variable_is_read() {
        let config = of(&[
            ("NIX_SECRET_KEY_FILE", "/k"),
            ("STARMAN_DEBUG", "1"),
            ("PLACK_ENV", "development"),
            ("SERVER_STARTER_PORT", "5000=3"),
            ("NIX_SERVE_NAR_CACHE", "/n"),
            ("NIX_SERVE_NAR_CACHE_SIZE", "7"),
            ("NIX_SERVE_GC_LEASE", "90"),
            ("CACHE_DIRECTORY", "/c:/d"),
            ("NIX_SERVE_VERIFY", "never"),
            ("NIX_SERVE_SCRUB", "8"),
            ("NIX_SERVE_PAGES", "1"),
            ("NIX_SERVE_ADMIN", "127.0.0.1:5001"),
            ("STATE_DIRECTORY", "/s:/t"),
        ]);
        assert!(!config.verifies_first);
        assert_eq!(config.scrub_rate, NonZeroU64::new(8));
        assert_eq!(config.admin.listeners, [ListenSpec::local(5001)]);
        assert_eq!(config.state_directory, Some("/s".into()));
        assert_eq!(config.nar_cache, Some("/n".into()));
        assert_eq!(config.nar_cache_size, Some(7));
        let lease = Duration::from_secs(90);
        assert_eq!(config.gc_lease, Some(lease));
        assert_eq!(config.cache_directory, PathBuf::from("/c"));
        assert_eq!(config.caches[0].secret_key_files, [PathBuf::from("/k")]);
        assert_eq!(config.caches[0].pages, Some(Pages::default()));
        assert!(config.is_verbose);
        assert_eq!(config.remarks.len(), 2);
    }
}
