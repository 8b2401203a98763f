//! What the environment says, read once.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `NIX_SECRET_KEY_FILE` | file of the key to sign with; set but empty is an error at start |
//! | `PLACK_ENV`, `SERVER_STARTER_PORT` | without effect here, remarked on |
//!
//! `NIX_REMOTE`, `NIX_STORE_DIR` and their kin are read by `samovar_store::Settings`.
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
        let mut warnings = Vec::new();
        if filled("PLACK_ENV").is_some_and(|env| env != "deployment") {
            warnings.push("PLACK_ENV has no effect: there is one environment, deployment");
        }
        if filled("SERVER_STARTER_PORT").is_some() {
            warnings.push("SERVER_STARTER_PORT has no effect: sockets are taken from LISTEN_FDS");
        }
        Self {
            secret_key_file: lookup("NIX_SECRET_KEY_FILE").map(PathBuf::from),
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
        let empty = read(&[("PLACK_ENV", ""), ("NIX_SECRET_KEY_FILE", "")]);
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
            ("STARMAN_DEBUG", "1"),
            ("PLACK_ENV", "development"),
            ("SERVER_STARTER_PORT", "5000=3"),
        ]);
        assert_eq!(environment.secret_key_file, Some("/k".into()));
        assert!(environment.debug);
        assert_eq!(environment.warnings.len(), 2);
    }
}
