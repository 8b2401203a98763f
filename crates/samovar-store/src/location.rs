//! [`Location`]: the directories of a store.

use std::path::{Path, PathBuf};

use samovar_nix::StoreDir;

use crate::settings::{Settings, socket_below};
use crate::uri::Parameters;

/// The directories of one store, all absolute paths.
///
/// # Source
///
/// Nix 2.36, `src/libstore/include/nix/store/local-fs-store.hh`: below a root the suffixes are
/// `nix/store`, `nix/var/nix` and `nix/var/log/nix` whatever the logical store directory is, and
/// explicit parameters win over the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Logical store directory: the prefix of store paths.
    pub store_dir: StoreDir,
    /// Physical store directory: the parent of the files.
    pub real_dir: PathBuf,
    /// Nix's state directory; the database is in `db` below it.
    pub state_dir: PathBuf,
    /// Log directory; build logs are in `drvs` below it.
    pub log_dir: PathBuf,
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Whether the store is never written to, so that its database may be opened as immutable.
    pub read_only: bool,
    /// Whether Nix locks the database by a file beside it, as it does without WAL mode
    /// (`use-sqlite-wal = false`).
    pub dotfile_locks: bool,
}

impl Location {
    /// Derives the directories from a URI's parameters and the settings.
    #[must_use]
    pub fn new(parameters: &Parameters, settings: &Settings) -> Self {
        let store_dir = parameters
            .store
            .clone()
            .unwrap_or_else(|| settings.store_dir.clone());
        let directory = |explicit: &Option<PathBuf>, suffix: &str, default: &Path| {
            let below = || Some(parameters.root.as_ref()?.join(suffix));
            explicit
                .clone()
                .or_else(below)
                .unwrap_or(default.to_owned())
        };
        let default_dir = Path::new(store_dir.as_str());
        let real_dir = directory(&parameters.real, "nix/store", default_dir);
        let state_dir = directory(&parameters.state, "nix/var/nix", &settings.state_dir);
        let log_dir = directory(&parameters.log, "nix/var/log/nix", &settings.log_dir);
        Self {
            socket: socket(&state_dir, settings),
            store_dir,
            real_dir,
            state_dir,
            log_dir,
            read_only: parameters.read_only,
            dotfile_locks: !settings.use_sqlite_wal,
        }
    }

    /// Returns the database file.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.state_dir.join("db/db.sqlite")
    }

    /// Returns the file that holds the database's schema version.
    #[must_use]
    pub fn schema(&self) -> PathBuf {
        self.state_dir.join("db/schema")
    }
}

/// Returns the daemon's socket. Nix 2.35 and later listen below the store's own state directory,
/// older versions always below the global one. The former is preferred if it exists.
fn socket(state_dir: &Path, settings: &Settings) -> PathBuf {
    if let Some(socket) = &settings.daemon_socket {
        return socket.clone();
    }
    let own = socket_below(state_dir);
    if own.exists() { own } else { settings.socket() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uri::StoreUri;

    fn location(uri: &str) -> Location {
        let variable = |name: &str| match name {
            "NIX_CONF_DIR" => Some("/nonexistent".into()),
            "NIX_STATE_DIR" => Some("/nonexistent/state".into()),
            _ => None,
        };
        let settings = Settings::from_environment(variable).unwrap();
        Location::new(&StoreUri::parse(uri).unwrap().parameters, &settings)
    }

    #[test]
    fn default_directories() {
        let location = location("local");
        assert_eq!(location.real_dir, Path::new("/nix/store"));
        assert_eq!(
            location.database(),
            Path::new("/nonexistent/state/db/db.sqlite")
        );
        assert_eq!(location.log_dir, Path::new("/nix/var/log/nix"));
        assert_eq!(
            location.socket,
            Path::new("/nonexistent/state/daemon-socket/socket")
        );
    }

    #[test]
    fn below_a_root_the_logical_store_stays() {
        let location = location("local?root=/mnt&store=/my/store");
        assert_eq!(location.store_dir.to_string(), "/my/store");
        assert_eq!(location.real_dir, Path::new("/mnt/nix/store"));
        assert_eq!(location.state_dir, Path::new("/mnt/nix/var/nix"));
        assert_eq!(location.log_dir, Path::new("/mnt/nix/var/log/nix"));
    }

    #[test]
    fn explicit_directories_win_over_the_root() {
        let location = location("local?root=/mnt&real=/a&state=/b&log=/c");
        assert_eq!(location.real_dir, Path::new("/a"));
        assert_eq!(location.state_dir, Path::new("/b"));
        assert_eq!(location.log_dir, Path::new("/c"));
    }

    #[test]
    fn files_are_in_the_logical_store_directory_by_default() {
        assert_eq!(
            location("local?store=/my/store").real_dir,
            Path::new("/my/store")
        );
    }
}
