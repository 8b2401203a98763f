//! Settings of a store from the environment and `nix.conf`.
//!
//! # Source
//!
//! Nix 2.8.0 and 2.36, `src/libstore/globals.cc`: a variable that is set but empty counts as unset,
//! and `NIX_STORE` is the older name of `NIX_STORE_DIR`.

mod conf;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use samovar_nix::StoreDir;

pub use conf::Conf;

/// The directories and the store that the environment and `nix.conf` name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Logical store directory: the prefix of store paths.
    pub store_dir: StoreDir,
    /// Nix's state directory, which contains the database and the daemon's socket.
    pub state_dir: PathBuf,
    /// Log directory; build logs are in `drvs` below it.
    pub log_dir: PathBuf,
    /// The daemon's socket that the environment names; `None` if it names none.
    pub daemon_socket: Option<PathBuf>,
    /// The default store URI: `NIX_REMOTE`, else `store` in `nix.conf`; `None` if neither is set.
    pub remote: Option<String>,
    /// Whether Nix keeps its database in WAL mode (`use-sqlite-wal`, default true).
    pub use_sqlite_wal: bool,
    /// Parent of the store of a user without a state directory: `XDG_DATA_HOME`, else below `HOME`.
    pub data_home: Option<PathBuf>,
}

/// Error of a variable in the environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The directory in this variable is not absolute.
    #[error("{0} must be an absolute path, got {1:?}: set it to an absolute path, or unset it")]
    NotAbsolute(&'static str, String),
    /// The value of this variable is not UTF-8. The second field is the value with U+FFFD in place
    /// of invalid bytes.
    #[error("{0} must be UTF-8 text, got {1:?}")]
    NotUtf8(&'static str, String),
}

impl Settings {
    /// Reads the settings from an environment given as a look-up, and from the `nix.conf` it names.
    ///
    /// An unreadable `nix.conf` counts as empty, as in Nix, so that a server without access to it
    /// can start.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if a directory is relative or a value is not UTF-8.
    ///
    /// # Examples
    ///
    /// ```
    /// # use samovar_store::Settings;
    /// let none = |_: &str| None;
    /// let settings = Settings::from_environment(none).expect("the defaults are valid");
    /// assert_eq!(settings.store_dir.to_string(), "/nix/store");
    /// ```
    pub fn from_environment(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, SettingsError> {
        let env = Environment {
            variable: &variable,
        };
        let conf_dir = env
            .directory("NIX_CONF_DIR")?
            .unwrap_or_else(|| "/etc/nix".into());
        let mut conf = Conf::read(&conf_dir.join("nix.conf"));
        if let Some(text) = env.text("NIX_CONFIG")? {
            conf.add(&text, &conf_dir);
        }
        let store_dir = match env.text("NIX_STORE_DIR")? {
            Some(dir) => store_dir("NIX_STORE_DIR", &dir)?,
            None => match env.text("NIX_STORE")? {
                Some(dir) => store_dir("NIX_STORE", &dir)?,
                None => StoreDir::default(),
            },
        };
        Ok(Self {
            store_dir,
            state_dir: env
                .directory("NIX_STATE_DIR")?
                .unwrap_or_else(|| "/nix/var/nix".into()),
            log_dir: env
                .directory("NIX_LOG_DIR")?
                .unwrap_or_else(|| "/nix/var/log/nix".into()),
            daemon_socket: env.directory("NIX_DAEMON_SOCKET_PATH")?,
            remote: env
                .text("NIX_REMOTE")?
                .or_else(|| conf.text("store").map(str::to_owned)),
            use_sqlite_wal: conf.flag("use-sqlite-wal").unwrap_or(true),
            data_home: env
                .path("XDG_DATA_HOME")
                .or_else(|| env.path("HOME").map(|home| home.join(".local/share"))),
        })
    }

    /// Reads the settings of this process.
    ///
    /// # Errors
    ///
    /// See [`Settings::from_environment`].
    pub fn from_process() -> Result<Self, SettingsError> {
        Self::from_environment(|name| std::env::var_os(name))
    }

    /// Returns the path of the daemon's socket: the one that the environment names, or else the
    /// default below the state directory.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.daemon_socket
            .clone()
            .unwrap_or_else(|| socket_below(&self.state_dir))
    }
}

/// Returns the daemon's socket below a state directory.
pub(crate) fn socket_below(state_dir: &Path) -> PathBuf {
    state_dir.join("daemon-socket/socket")
}

struct Environment<'a> {
    variable: &'a dyn Fn(&str) -> Option<OsString>,
}

impl Environment<'_> {
    fn path(&self, name: &str) -> Option<PathBuf> {
        (self.variable)(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    }

    fn directory(&self, variable: &'static str) -> Result<Option<PathBuf>, SettingsError> {
        match self.path(variable) {
            Some(path) if !path.is_absolute() => Err(SettingsError::NotAbsolute(
                variable,
                path.display().to_string(),
            )),
            other => Ok(other),
        }
    }

    fn text(&self, variable: &'static str) -> Result<Option<String>, SettingsError> {
        let Some(path) = self.path(variable) else {
            return Ok(None);
        };
        match path.into_os_string().into_string() {
            Ok(text) => Ok(Some(text)),
            Err(other) => Err(SettingsError::NotUtf8(
                variable,
                other.to_string_lossy().into_owned(),
            )),
        }
    }
}

fn store_dir(variable: &'static str, value: &str) -> Result<StoreDir, SettingsError> {
    StoreDir::new(value).map_err(|_error| SettingsError::NotAbsolute(variable, value.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let mut map: HashMap<&str, &str> = pairs.iter().copied().collect();
        map.entry("NIX_CONF_DIR").or_insert("/nonexistent");
        Settings::from_environment(|name| map.get(name).map(OsString::from))
    }

    #[test]
    fn defaults() {
        let settings = from(&[]).unwrap();
        assert_eq!(settings.store_dir.to_string(), "/nix/store");
        assert_eq!(settings.state_dir, Path::new("/nix/var/nix"));
        assert_eq!(settings.log_dir, Path::new("/nix/var/log/nix"));
        assert_eq!(
            settings.socket(),
            Path::new("/nix/var/nix/daemon-socket/socket")
        );
        assert_eq!(settings.remote, None);
        assert!(settings.use_sqlite_wal);
    }

    #[test]
    fn every_variable() {
        let settings = from(&[
            ("NIX_STORE_DIR", "/s/store"),
            ("NIX_STORE", "/ignored"),
            ("NIX_STATE_DIR", "/s/var"),
            ("NIX_LOG_DIR", "/s/log"),
            ("NIX_REMOTE", "daemon"),
            ("NIX_DAEMON_SOCKET_PATH", "/s/socket"),
        ])
        .unwrap();
        assert_eq!(settings.store_dir.to_string(), "/s/store");
        assert_eq!(settings.state_dir, Path::new("/s/var"));
        assert_eq!(settings.log_dir, Path::new("/s/log"));
        assert_eq!(settings.remote.as_deref(), Some("daemon"));
        assert_eq!(settings.socket(), Path::new("/s/socket"));
    }

    #[test]
    fn the_older_name_of_the_store_directory() {
        assert_eq!(
            from(&[("NIX_STORE", "/old")])
                .unwrap()
                .store_dir
                .to_string(),
            "/old"
        );
    }

    #[test]
    fn empty_is_unset() {
        let settings = from(&[("NIX_STORE_DIR", ""), ("NIX_REMOTE", "")]).unwrap();
        assert_eq!(settings.store_dir.to_string(), "/nix/store");
        assert_eq!(settings.remote, None);
    }

    #[test]
    fn relative_directories_are_refused() {
        let error = from(&[("NIX_STATE_DIR", "var")]).unwrap_err();
        assert!(matches!(
            error,
            SettingsError::NotAbsolute("NIX_STATE_DIR", _)
        ));
        let error = from(&[("NIX_STORE_DIR", "store")]).unwrap_err();
        assert!(matches!(
            error,
            SettingsError::NotAbsolute("NIX_STORE_DIR", _)
        ));
    }

    #[test]
    fn nix_conf_names_the_store_when_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("nix.conf"),
            "store = /mnt\nuse-sqlite-wal = false\n",
        )
        .unwrap();
        let conf_dir = dir.path().to_str().unwrap();
        let settings = from(&[("NIX_CONF_DIR", conf_dir)]).unwrap();
        assert_eq!(settings.remote.as_deref(), Some("/mnt"));
        assert!(!settings.use_sqlite_wal);
        let settings = from(&[("NIX_CONF_DIR", conf_dir), ("NIX_REMOTE", "daemon")]).unwrap();
        assert_eq!(settings.remote.as_deref(), Some("daemon"));
    }
}
