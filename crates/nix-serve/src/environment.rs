//! What the environment says, read once.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `NIX_SECRET_KEY_FILE` | file of the key to sign with; set but empty is an error at start |
//! | `NIX_SERVE_NAR_CACHE`, `NIX_SERVE_NAR_CACHE_SIZE` | as `--nar-cache`, `--nar-cache-size` |
//! | `NIX_SERVE_HOLD` | as `--hold` |
//! | `CACHE_DIRECTORY` | the service manager's: the default of `--nar-cache` |
//! | `NIX_SERVE_VERIFY`, `NIX_SERVE_SCRUB` | as `--verify`, `--scrub` |
//! | `NIX_SERVE_PAGES` | as `--pages`; 1 or 0 |
//! | `NIX_SERVE_STATE_DIRECTORY` | as `--state-directory`; else the service manager's |
//! | `STATE_DIRECTORY` | the service manager's: the default of `--state-directory` |
//! | `PLACK_ENV`, `SERVER_STARTER_PORT` | without effect here, remarked on |
//!
//! `NIX_REMOTE`, `NIX_STORE_DIR` and their kin are read by `samovar_store::Settings`.
//! `STARMAN_DEBUG` asks for detail in the error log. `LISTEN_FDS` belongs to
//! [`listener::inherited`](samovar_server::listener::inherited()), `NOTIFY_SOCKET` and `WATCHDOG_USEC` to
//! [`notify`](samovar_server::notify).
//!
//! # Source
//!
//! nix-serve, `nix-serve.psgi` and its wrapper; Nix 2.31, `globals.cc`; Starman 0.4016.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use samovar_server::config::{HoldTime, Verify};
use samovar_server::listener::ListenSpec;

/// The variables that matter. Empty ones count as not set, except the key's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// `NIX_SECRET_KEY_FILE`. May be the empty path: serving unsigned where a key was meant would
    /// be worse than not to start.
    pub secret_key_file: Option<PathBuf>,
    /// `STARMAN_DEBUG`, by Perl's idea of truth.
    pub debug: bool,
    /// `NIX_SERVE_NAR_CACHE`.
    pub nar_cache: Option<PathBuf>,
    /// `NIX_SERVE_NAR_CACHE_SIZE`, in bytes.
    pub nar_cache_size: Option<u64>,
    /// `NIX_SERVE_HOLD`.
    pub hold: Option<HoldTime>,
    /// `NIX_SERVE_VERIFY`.
    pub verify: Option<Verify>,
    /// `NIX_SERVE_SCRUB`, in bytes.
    pub scrub_rate: Option<u64>,
    /// `NIX_SERVE_PAGES`.
    pub pages: bool,
    /// `NIX_SERVE_STATE_DIRECTORY`, or `STATE_DIRECTORY` of the service manager; the first, where
    /// that names several.
    pub state_directory: Option<PathBuf>,
    /// `CACHE_DIRECTORY` of the service manager; the first, where it names several.
    pub cache_directory: Option<PathBuf>,
    /// `NIX_SERVE_ADMIN`.
    pub admin: Option<ListenSpec>,
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
        let mut number = |name, warning| {
            let text = filled(name)?;
            let number = text.to_str().and_then(|text| text.trim().parse().ok());
            if number.is_none() {
                warnings.push(warning);
            }
            number
        };
        let nar_cache_size = number(
            "NIX_SERVE_NAR_CACHE_SIZE",
            "NIX_SERVE_NAR_CACHE_SIZE is not a number of bytes: it has no effect",
        );
        let scrub_rate = number(
            "NIX_SERVE_SCRUB",
            "NIX_SERVE_SCRUB is not a number of bytes: it has no effect",
        );
        let verify = filled("NIX_SERVE_VERIFY");
        let verify_parsed = verify
            .as_ref()
            .and_then(|text| Verify::parse(text.to_str()?));
        if verify.is_some() && verify_parsed.is_none() {
            warnings.push("NIX_SERVE_VERIFY is neither first nor never: it has no effect");
        }
        let hold = filled("NIX_SERVE_HOLD");
        let hold_time = hold.as_deref().and_then(HoldTime::parse);
        if hold.is_some() && hold_time.is_none() {
            warnings.push(
                "NIX_SERVE_HOLD is neither a number of seconds, 1 or more, nor off: it has no \
                 effect",
            );
        }
        let admin = filled("NIX_SERVE_ADMIN");
        let admin_parsed = admin.as_deref().and_then(admin_address);
        if admin.is_some() && admin_parsed.is_none() {
            warnings.push(
                "NIX_SERVE_ADMIN is no HOST:PORT, :PORT or path of a socket: it has no effect",
            );
        }
        let pages = filled("NIX_SERVE_PAGES");
        if pages
            .as_ref()
            .is_some_and(|text| text != "0" && text != "1")
        {
            warnings.push("NIX_SERVE_PAGES is neither 1 nor 0: it has no effect");
        }
        let first_of = |names: OsString| {
            let mut names = names.as_bytes().split(|byte| *byte == b':');
            PathBuf::from(OsStr::from_bytes(names.next().unwrap_or_default()))
        };
        Self {
            admin: admin_parsed,
            hold: hold_time,
            nar_cache: filled("NIX_SERVE_NAR_CACHE").map(PathBuf::from),
            nar_cache_size,
            verify: verify_parsed,
            scrub_rate,
            pages: pages.is_some_and(|text| text == "1"),
            state_directory: filled("NIX_SERVE_STATE_DIRECTORY")
                .map(PathBuf::from)
                .or_else(|| filled("STATE_DIRECTORY").map(first_of)),
            cache_directory: filled("CACHE_DIRECTORY").map(first_of),
            secret_key_file: lookup("NIX_SECRET_KEY_FILE").map(PathBuf::from),
            debug: filled("STARMAN_DEBUG").is_some_and(|value| value != "0"),
            warnings,
        }
    }
}

/// What metrics and status are served on: plain HTTP, so nothing stands behind the port.
pub fn admin_address(text: &OsStr) -> Option<ListenSpec> {
    let parsed = ListenSpec::parse(text).ok()?;
    let is_clear = !parsed.bare_name && parsed.ignored_suffix.is_none() && !parsed.tls;
    is_clear.then_some(parsed.spec)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
    fn hold_times() {
        let check = |text: &str, expected, warning_count| {
            let environment = read(&[("NIX_SERVE_HOLD", text)]);
            assert_eq!(environment.hold, expected, "{text}");
            assert_eq!(environment.warnings.len(), warning_count, "{text}");
        };
        check("off", Some(HoldTime::Off), 0);
        check("0", Some(HoldTime::Off), 0);
        check("1", Some(HoldTime::For(Duration::from_secs(1))), 0);
        check("0.9", None, 1);
        check("on", None, 1);
    }

    #[test]
    fn everything_is_set() {
        let environment = read(&[
            ("NIX_SECRET_KEY_FILE", "/k"),
            ("STARMAN_DEBUG", "1"),
            ("PLACK_ENV", "development"),
            ("SERVER_STARTER_PORT", "5000=3"),
            ("NIX_SERVE_NAR_CACHE", "/n"),
            ("NIX_SERVE_NAR_CACHE_SIZE", "7"),
            ("NIX_SERVE_HOLD", "90"),
            ("CACHE_DIRECTORY", "/c:/d"),
            ("NIX_SERVE_VERIFY", "never"),
            ("NIX_SERVE_SCRUB", "8"),
            ("NIX_SERVE_ADMIN", "127.0.0.1:5001"),
            ("STATE_DIRECTORY", "/s:/t"),
        ]);
        assert_eq!(environment.verify, Some(Verify::Never));
        assert_eq!(environment.scrub_rate, Some(8));
        assert_eq!(environment.admin, Some(ListenSpec::local(5001)));
        assert_eq!(environment.state_directory, Some("/s".into()));
        assert_eq!(environment.nar_cache, Some("/n".into()));
        assert_eq!(environment.nar_cache_size, Some(7));
        assert_eq!(
            environment.hold,
            Some(HoldTime::For(Duration::from_secs(90)))
        );
        assert_eq!(environment.cache_directory, Some("/c".into()));
        assert_eq!(environment.secret_key_file, Some("/k".into()));
        assert!(environment.debug);
        assert_eq!(environment.warnings.len(), 2);
    }
}
