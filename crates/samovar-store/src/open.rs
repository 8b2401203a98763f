//! Opens the store that a URI and the settings name.

use std::path::PathBuf;

use crate::database::{SCHEMA_KNOWN, read_schema};
use crate::empty::EmptyStore;
use crate::error::{StoreError, Unavailable};
use crate::local::LocalStore;
use crate::location::Location;
use crate::settings::{Settings, SettingsError, socket_below};
use crate::store::Store;
use crate::uri::{Parameters, StoreKind, StoreUri, UriError};

/// Error of opening a store. Its message states the file, the cause and the remedy in one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The environment cannot be used.
    #[error("the environment cannot be used")]
    Settings(#[from] SettingsError),
    /// The store URI cannot be used.
    #[error("the store URI {uri:?} cannot be used")]
    Uri {
        /// The store URI, as given or from the settings.
        uri: String,
        /// The error in the URI.
        source: UriError,
    },
    /// The database is unavailable, and no daemon answers.
    #[error(
        "the Nix database {database:?} cannot be used: {reason}{schema}, and no nix-daemon answers \
         at {socket:?}{}", fix(*reason)
    )]
    Unavailable {
        /// The expected path of the database.
        database: PathBuf,
        /// The expected path of the daemon's socket.
        socket: PathBuf,
        /// Reason for which the database is unavailable.
        reason: Unavailable,
        /// The schema version that Nix recorded, in parentheses, if it is the cause; else empty.
        schema: String,
    },
    /// Any other failure of the database.
    #[error("the Nix database {database:?} cannot be used")]
    Database {
        /// The path of the database.
        database: PathBuf,
        /// The failure of the database.
        source: StoreError,
    },
    /// The store directory is missing or not readable.
    #[error(
        "the store directory {directory:?} is missing or not readable for this user: set \
         NIX_STORE_DIR, or `root` or `real` in the store's URI, to the directory of the files"
    )]
    NoFiles {
        /// The expected store directory.
        directory: PathBuf,
    },
    /// A thread could not be started.
    #[error("the store cannot be opened")]
    Start(#[source] StoreError),
}

/// Opens the store of a URI. If `uri` is `None`, opens the store that the settings name.
///
/// Also succeeds if the database cannot be read but the store's daemon responds. For a store given
/// as `local` or as a directory, that is the daemon named by the environment, or else the daemon
/// below the store's own state directory.
///
/// # Errors
///
/// Any [`OpenError`].
pub fn open(uri: Option<&str>, settings: &Settings) -> Result<Box<dyn Store>, OpenError> {
    let text = uri.or(settings.remote.as_deref()).unwrap_or_default();
    let uri = StoreUri::parse(text).map_err(|source| OpenError::Uri {
        uri: text.to_owned(),
        source,
    })?;
    let mut location = Location::new(&uri.parameters, settings);
    match &uri.kind {
        StoreKind::Local => {
            // An explicit local store may differ from the store of the machine's daemon.
            if settings.daemon_socket.is_none() {
                location.socket = socket_below(&location.state_dir);
            }
        }
        StoreKind::Daemon(Some(socket)) => location.socket.clone_from(socket),
        StoreKind::Daemon(None) => {}
        StoreKind::None => return Ok(Box::new(EmptyStore::new(location.store_dir))),
        StoreKind::Auto => auto(&mut location, &uri, settings),
    }
    let store = LocalStore::new(location.clone()).map_err(OpenError::Start)?;
    match store.probe_database() {
        // Another process holds the database's lock only for a moment, so this is no error here:
        // every look-up tries again.
        Ok(()) | Err(StoreError::Busy) => {}
        Err(error) if store.leaves_to_daemon(error) && store.has_daemon() => {}
        Err(error) => return Err(explain(&location, error)),
    }
    if !store.has_files() {
        return Err(OpenError::NoFiles {
            directory: location.real_dir,
        });
    }
    Ok(Box::new(store))
}

/// Returns whether this machine has any part of the store that the settings name: its directory,
/// its database or its daemon.
#[must_use]
pub fn has_default_store(settings: &Settings) -> bool {
    let mut location = Location::new(&Parameters::default(), settings);
    auto(&mut location, &StoreUri::default(), settings);
    // If it is unknown whether a part exists, opening the store reports the reason.
    let parts = [&location.real_dir, &location.database(), &location.socket];
    parts.iter().any(|part| part.try_exists().unwrap_or(true))
}

/// Selects the location for `auto`: the user's own store, if there is neither a
/// state directory nor a daemon.
///
/// # Source
///
/// Nix 2.8.0, `src/libstore/store-api.cc`, `openFromNonUri`: local if the state directory can be
/// read and written; else the daemon if its socket exists; else local. Since 2.10 a user other than
/// root without a state directory has a store in their own data directory.
fn auto(location: &mut Location, uri: &StoreUri, settings: &Settings) {
    let root = settings
        .data_home
        .as_ref()
        .map(|data| data.join("nix/root"));
    if let Some(root) = root
        && !location.state_dir.exists()
        && !location.socket.exists()
        && !rustix::process::geteuid().is_root()
        && uri.parameters == Parameters::default()
        && root.exists()
    {
        let parameters = Parameters {
            root: Some(root),
            ..Parameters::default()
        };
        *location = Location::new(&parameters, settings);
    }
}

fn explain(location: &Location, error: StoreError) -> OpenError {
    let database = location.database();
    let StoreError::Unavailable(reason) = error else {
        return OpenError::Database {
            database,
            source: error,
        };
    };
    let schema = match (reason, read_schema(&location.schema())) {
        (Unavailable::Form(_), Ok(schema)) => {
            format!(" (its schema is {schema}, and {SCHEMA_KNOWN} is supported)")
        }
        _ => String::new(),
    };
    OpenError::Unavailable {
        database,
        socket: location.socket.clone(),
        reason,
        schema,
    }
}

fn fix(reason: Unavailable) -> String {
    let remedy = StoreError::Unavailable(reason).remedy();
    remedy.map_or_else(String::new, |remedy| format!(": {remedy}"))
}
