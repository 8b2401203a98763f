//! Opening the store that a URI and the settings name.

use std::path::PathBuf;

use rustix::fs::Access;

use crate::daemon::{Daemon, DaemonStore};
use crate::database::read_schema;
use crate::error::{StoreError, Unavailable};
use crate::local::LocalStore;
use crate::location::Location;
use crate::settings::{Settings, SettingsError, socket_below};
use crate::store::Store;
use crate::uri::{Parameters, StoreKind, StoreUri, UriError};

/// Why no store could be opened: which file, what is wrong, how to mend it, in one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The environment cannot be used.
    #[error("the environment cannot be used")]
    Settings(#[from] SettingsError),
    /// The store URI cannot be used.
    #[error("the store URI {uri:?} cannot be used")]
    Uri {
        /// The URI.
        uri: String,
        /// What is wrong with it.
        source: UriError,
    },
    /// There is no database, and no daemon.
    #[error(
        "there is no Nix database at {database:?} and no daemon at {socket:?}: set NIX_STATE_DIR \
         or the store to where Nix keeps its state, or start nix-daemon"
    )]
    Missing {
        /// Where the database should be.
        database: PathBuf,
        /// Where the daemon should listen.
        socket: PathBuf,
    },
    /// The database is of a version that is not understood.
    #[error(
        "the Nix database {database:?} is not of a form that is understood: {what} (its schema is \
         {found}, and 10 is known), and no daemon answers at {socket:?}: upgrade Samovar, or \
         start nix-daemon"
    )]
    Schema {
        /// The database.
        database: PathBuf,
        /// What is not as it should be.
        what: &'static str,
        /// What Nix calls the schema.
        found: String,
        /// Where the daemon should listen.
        socket: PathBuf,
    },
    /// A change of the database broke off, and this user may not undo it.
    #[error(
        "a change of the Nix database {database:?} broke off and has to be undone, which any Nix \
         command of the store's owner does, and no daemon answers at {socket:?}"
    )]
    HotJournal {
        /// The database.
        database: PathBuf,
        /// Where the daemon should listen.
        socket: PathBuf,
    },
    /// This user may not read the database.
    #[error(
        "the Nix database {database:?} is not readable for this user, and no daemon answers at \
         {socket:?}: make it and its directory readable, or start nix-daemon"
    )]
    PermissionDenied {
        /// The database.
        database: PathBuf,
        /// Where the daemon should listen.
        socket: PathBuf,
    },
    /// The database is in WAL mode and idle, and this user may not open it first.
    #[error(
        "the Nix database {database:?} is idle and this user may not create its WAL index, and no \
         daemon answers at {socket:?}: start nix-daemon, or let this user write to the directory"
    )]
    WalIndexMissing {
        /// The database.
        database: PathBuf,
        /// Where the daemon should listen.
        socket: PathBuf,
    },
    /// Anything else about the database.
    #[error("the Nix database {database:?} cannot be used")]
    Database {
        /// The database.
        database: PathBuf,
        /// What is wrong.
        source: StoreError,
    },
    /// There is a database, but nobody to hand out the files.
    #[error(
        "the store directory {directory:?} is missing or not readable for this user: set \
         NIX_STORE_DIR, or root or real in the store's URI, to where the files are"
    )]
    NoFiles {
        /// Where the files should be.
        directory: PathBuf,
    },
    /// A thread could not be started.
    #[error("the store cannot be opened")]
    Start(#[source] StoreError),
}

/// Opens a store by the text of its URI, or, when that is `None`, the one that the settings name.
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
    open_uri(&uri, settings)
}

/// Opens the store of a parsed URI.
///
/// While the database of a store cannot be read its daemon stands in if it answers, and so the
/// store is opened all the same. For a store named `local`, or by its directory, that is the daemon
/// below its state directory or the one that the environment names, and no other.
///
/// # Errors
///
/// Any [`OpenError`].
pub fn open_uri(uri: &StoreUri, settings: &Settings) -> Result<Box<dyn Store>, OpenError> {
    let mut location = Location::new(&uri.parameters, settings);
    let uses_daemon = match &uri.kind {
        StoreKind::Local => {
            // Somebody named this very store: the machine's daemon has another one.
            if settings.daemon_socket.is_none() {
                location.socket = socket_below(&location.state_dir);
            }
            false
        }
        StoreKind::Daemon(socket) => {
            if let Some(socket) = socket {
                location.socket.clone_from(socket);
            }
            true
        }
        StoreKind::Auto => match auto(&location, uri, settings) {
            Auto::Local => false,
            Auto::Daemon => true,
            Auto::Elsewhere(elsewhere) => {
                location = elsewhere;
                false
            }
        },
    };
    let local = LocalStore::new(location.clone()).map_err(OpenError::Start)?;
    let daemon = Daemon::new(location.socket.clone(), location.store_dir.clone());
    let probed = local.probe();
    if matches!(probed, Ok(()) | Err(StoreError::Busy))
        && !local.has_files()
        && !(uses_daemon && daemon.probe().is_ok())
    {
        return Err(OpenError::NoFiles {
            directory: location.real_dir,
        });
    }
    match probed {
        // If somebody holds it at this moment, every question will try again.
        Ok(()) | Err(StoreError::Busy) => Ok(Box::new(DaemonStore::new(local, daemon))),
        Err(error) if local.leaves_to_daemon(error) && daemon.probe().is_ok() => {
            Ok(Box::new(DaemonStore::new(local, daemon)))
        }
        Err(error) => Err(explain(&location, error)),
    }
}

enum Auto {
    Local,
    Daemon,
    Elsewhere(Location),
}

/// # Source
///
/// Nix 2.8.0, `src/libstore/store-api.cc`, `openFromNonUri`: local if the state directory can be
/// read and written; else the daemon if its socket exists; else local. Since 2.10 a user other than
/// root without a state directory has a store in his own data directory.
fn auto(location: &Location, uri: &StoreUri, settings: &Settings) -> Auto {
    let access = Access::READ_OK | Access::WRITE_OK;
    if rustix::fs::access(&location.state_dir, access).is_ok() {
        return Auto::Local;
    }
    if location.socket.exists() {
        return Auto::Daemon;
    }
    let root = settings
        .data_home
        .as_ref()
        .map(|data| data.join("nix/root"));
    match root {
        Some(root)
            if !location.state_dir.exists()
                && !rustix::process::geteuid().is_root()
                && uri.parameters == Parameters::default()
                && root.exists() =>
        {
            let parameters = Parameters {
                root: Some(root),
                ..Parameters::default()
            };
            Auto::Elsewhere(Location::new(&parameters, settings))
        }
        _ => Auto::Local,
    }
}

fn explain(location: &Location, error: StoreError) -> OpenError {
    let database = location.database();
    let socket = location.socket.clone();
    let StoreError::Unavailable(reason) = error else {
        return OpenError::Database {
            database,
            source: error,
        };
    };
    match reason {
        Unavailable::DatabaseMissing => OpenError::Missing { database, socket },
        Unavailable::PermissionDenied => OpenError::PermissionDenied { database, socket },
        Unavailable::WalIndexMissing => OpenError::WalIndexMissing { database, socket },
        Unavailable::HotJournal => OpenError::HotJournal { database, socket },
        Unavailable::Form(what) => OpenError::Schema {
            database,
            what,
            found: read_schema(&location.schema())
                .map_or_else(|_error| "not known".to_owned(), |schema| schema.to_string()),
            socket,
        },
        _ => OpenError::Database {
            database,
            source: error,
        },
    }
}
