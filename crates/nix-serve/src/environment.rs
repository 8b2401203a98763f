//! What the environment says, read once.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `NIX_SECRET_KEY_FILE` | file of the key to sign with; set but empty is an error at start |
//! | `NIX_REMOTE` | store URI |
//! | `NIX_STORE_DIR`, `NIX_STATE_DIR`, `NIX_LOG_DIR`, `NIX_CONF_DIR` | as for Nix |
//! | `PLACK_ENV`, `SERVER_STARTER_PORT` | without effect here, remarked on |
//!
//! `STARMAN_DEBUG` asks for detail in the error log. `LISTEN_FDS` belongs to
//! [`listener::inherited`](crate::listener::inherited()), `NOTIFY_SOCKET` and `WATCHDOG_USEC` to
//! [`notify`](crate::notify).
//!
//! # Source
//!
//! nix-serve, `nix-serve.psgi` and its wrapper; Nix 2.31, `globals.cc`; Starman 0.4016.

use std::ffi::OsString;
use std::path::PathBuf;

/// The variables that matter. Empty ones count as not set, except the key's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// `NIX_SECRET_KEY_FILE`. May be the empty path: serving unsigned where a key was meant would
    /// be worse than not to start.
    pub secret_key_file: Option<PathBuf>,
    /// `NIX_REMOTE`, if it is text.
    pub store_uri: Option<String>,
    /// `NIX_STORE_DIR`
    pub store_dir: Option<PathBuf>,
    /// `NIX_STATE_DIR`
    pub state_dir: Option<PathBuf>,
    /// `NIX_LOG_DIR`
    pub log_dir: Option<PathBuf>,
    /// `NIX_CONF_DIR`
    pub conf_dir: Option<PathBuf>,
    /// `STARMAN_DEBUG`, by Perl's idea of truth.
    pub debug: bool,
    /// Remarks, one line each, to be printed once.
    pub warnings: Vec<&'static str>,
}

impl Environment {
    /// Reads the environment of this process.
    pub fn of_process() -> Self {
        Self::read(|name| std::env::var_os(name))
    }

    /// Reads an environment through `lookup`.
    pub fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Self {
        let filled = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let path = |name: &str| filled(name).map(PathBuf::from);
        let mut warnings = Vec::new();
        if filled("PLACK_ENV").is_some_and(|env| env != "deployment") {
            warnings.push("PLACK_ENV has no effect: there is one environment, deployment");
        }
        if filled("SERVER_STARTER_PORT").is_some() {
            warnings.push("SERVER_STARTER_PORT has no effect: sockets are taken from LISTEN_FDS");
        }
        let store_uri = filled("NIX_REMOTE").and_then(|uri| uri.into_string().ok());
        if store_uri.is_none() && filled("NIX_REMOTE").is_some() {
            warnings.push("NIX_REMOTE is no text, as if it were not set");
        }
        Self {
            secret_key_file: lookup("NIX_SECRET_KEY_FILE").map(PathBuf::from),
            store_uri,
            store_dir: path("NIX_STORE_DIR"),
            state_dir: path("NIX_STATE_DIR"),
            log_dir: path("NIX_LOG_DIR"),
            conf_dir: path("NIX_CONF_DIR"),
            debug: filled("STARMAN_DEBUG").is_some_and(|value| value != "0"),
            warnings,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Environment {
        Environment::read(|wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn nothing_is_set() {
        assert_eq!(read(&[]), Environment::default());
    }

    #[test]
    fn empty_is_not_set_but_for_the_key() {
        let empty = read(&[
            ("NIX_REMOTE", ""),
            ("NIX_STORE_DIR", ""),
            ("NIX_SECRET_KEY_FILE", ""),
        ]);
        let expected = Environment {
            secret_key_file: Some(PathBuf::new()),
            ..Environment::default()
        };
        assert_eq!(empty, expected);
    }

    #[test]
    fn everything_is_set() {
        let environment = read(&[
            ("NIX_SECRET_KEY_FILE", "/k"),
            ("NIX_REMOTE", "daemon"),
            ("NIX_STORE_DIR", "/s"),
            ("NIX_STATE_DIR", "/v"),
            ("NIX_LOG_DIR", "/l"),
            ("NIX_CONF_DIR", "/c"),
            ("STARMAN_DEBUG", "1"),
            ("PLACK_ENV", "development"),
            ("SERVER_STARTER_PORT", "5000=3"),
        ]);
        assert_eq!(environment.secret_key_file, Some("/k".into()));
        assert_eq!(environment.store_uri.as_deref(), Some("daemon"));
        assert_eq!(environment.store_dir, Some("/s".into()));
        assert_eq!(environment.state_dir, Some("/v".into()));
        assert_eq!(environment.log_dir, Some("/l".into()));
        assert_eq!(environment.conf_dir, Some("/c".into()));
        assert!(environment.debug);
        assert_eq!(environment.warnings.len(), 2);
    }
}
