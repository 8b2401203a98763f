//! Errors of a store.

use std::io;

use samovar_nix::PathInfo;

/// The result of one look-up in a batch: `Ok(None)` if the path is absent.
pub type LookupResult = Result<Option<PathInfo>, StoreError>;

/// A store failure: the store cannot tell whether the path exists, or cannot return its data.
///
/// Absence is never an error: it is `Ok(None)`. A server that gets one of these errors sends a 5xx
/// status; a retry may succeed. The type holds neither paths nor messages of the operating system,
/// so it can be shown to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process held the database's lock for the whole busy timeout.
    #[error("the database is locked by another process")]
    Busy,
    /// The store is unavailable at the moment.
    #[error("the store is unavailable: {0}")]
    Unavailable(Unavailable),
    /// The database or one of its rows is malformed.
    #[error("the database is damaged: {0}")]
    Corrupt(Corruption),
    /// The daemon violated the worker protocol. The connection is closed.
    #[error("the daemon cannot be used: {0}")]
    Protocol(Irregularity),
    /// The daemon reported an error for the request.
    #[error("the daemon refused the request")]
    Refused,
    /// The operating system refused an operation.
    #[error("{operation} failed: {kind}")]
    Io {
        /// The operation that failed, such as "reading a build log".
        operation: &'static str,
        /// The kind of failure.
        kind: io::ErrorKind,
    },
}

impl StoreError {
    /// Creates an error from a failure of the operating system during `operation`.
    #[must_use]
    pub fn io(operation: &'static str, error: &io::Error) -> Self {
        Self::Io {
            operation,
            kind: error.kind(),
        }
    }

    /// Returns whether the error concerns one row of the database only, or realisations only.
    #[must_use]
    pub fn is_about_one_path(self) -> bool {
        use Corruption as Row;
        matches!(
            self,
            Self::Corrupt(
                Row::StorePath
                    | Row::NarHash
                    | Row::NarSize
                    | Row::Realisation
                    | Row::RealisationTable
                    | Row::Value
            )
        )
    }

    /// Returns the remedy for the operator; `None` if there is none.
    #[must_use]
    pub fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::Unavailable(reason) => match reason {
                Unavailable::DatabaseMissing => "restore it, or correct --store or NIX_STATE_DIR",
                Unavailable::PermissionDenied => {
                    "let this user read the database, its -wal and -shm files and its directory, \
                     or start nix-daemon"
                }
                Unavailable::WalIndexMissing => {
                    "start nix-daemon, or let this user write to the database's directory"
                }
                Unavailable::HotJournal => "any Nix command of the store's owner rolls it back",
                Unavailable::ForeignWal => "remove db.sqlite-wal and db.sqlite-shm",
                Unavailable::Form(_) => "upgrade Samovar, or start nix-daemon",
                Unavailable::FilesMissing => "mount the store's file system",
                Unavailable::DaemonUnreachable | Unavailable::DaemonTimeout => "start nix-daemon",
                Unavailable::BeingReplaced | Unavailable::Stalled => return None,
            },
            Self::Corrupt(Corruption::Malformed) => "restore it from a backup",
            Self::Corrupt(Corruption::RealisationTable)
            | Self::Protocol(Irregularity::Version { .. }) => "upgrade Samovar",
            _ => return None,
        })
    }
}

/// Reason why a store is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The database file does not exist.
    #[error("the database does not exist")]
    DatabaseMissing,
    /// This user may not read the database or its directory.
    #[error("the database is not readable for this user")]
    PermissionDenied,
    /// The database is in WAL mode without a WAL index (`-shm`), and this user may not create one.
    #[error("the database's WAL index is missing and may not be created")]
    WalIndexMissing,
    /// A transaction was interrupted, and this user may not roll it back.
    #[error("an interrupted transaction has to be rolled back")]
    HotJournal,
    /// The WAL belongs to a replaced database file: reading the two together would mix databases.
    #[error("the database was replaced, and the WAL of the old one is still beside it")]
    ForeignWal,
    /// A table or column that is needed is missing or has changed its meaning.
    #[error("the database's schema is not supported: {0}")]
    Form(&'static str),
    /// The database was replaced while it was being opened, or is being replaced now.
    #[error("the database is being replaced")]
    BeingReplaced,
    /// The store directory is empty or unreadable: its file system is not mounted.
    #[error("the store's directory is empty or cannot be read")]
    FilesMissing,
    /// A read has not returned for seconds.
    #[error("the database's disk does not answer")]
    Stalled,
    /// No daemon accepts connections at its socket.
    #[error("the daemon cannot be reached")]
    DaemonUnreachable,
    /// The daemon did not respond in time.
    #[error("the daemon did not answer in time")]
    DaemonTimeout,
}

/// The malformed part of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Corruption {
    /// SQLite reports the file as malformed, truncated or not a database.
    #[error("SQLite reports it as malformed")]
    Malformed,
    /// A statement or a value does not match the schema: the tables are being changed.
    #[error("a table or column has changed")]
    Schema,
    /// A row holds an ill-formed store path.
    #[error("a row holds an ill-formed store path")]
    StorePath,
    /// A row holds an ill-formed NAR hash.
    #[error("a row holds an ill-formed NAR hash")]
    NarHash,
    /// A row holds a negative or non-numeric NAR size.
    #[error("a row holds an ill-formed NAR size")]
    NarSize,
    /// A row holds a value of another type than the column has.
    #[error("a row holds a value of another type")]
    Value,
    /// A row holds an ill-formed realisation.
    #[error("a row holds an ill-formed realisation")]
    Realisation,
    /// A table of realisations lacks a column that is needed. Paths are not affected.
    #[error("a table of realisations lacks a column that Nix 2.8 to 2.36 have")]
    RealisationTable,
}

/// A violation of the worker protocol by the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Irregularity {
    /// The first bytes differ from the protocol's magic number.
    #[error("the magic number is wrong")]
    Magic,
    /// The protocol version is not supported.
    #[error(
        "it speaks version {major}.{minor} of the worker protocol, but 1.20 to 1.38 are supported"
    )]
    Version {
        /// The daemon's major version.
        major: u64,
        /// The daemon's minor version.
        minor: u64,
    },
    /// A string, list or message stream exceeds its limit.
    #[error("a string, list or message stream exceeds its limit")]
    TooLong,
    /// A string is padded with bytes other than zero.
    #[error("padding is not zero")]
    Padding,
    /// A string is not UTF-8.
    #[error("text is not UTF-8")]
    Text,
    /// A message has an unknown code.
    #[error("the type of a message is unknown")]
    Message,
    /// A value is out of range or ill-formed.
    #[error("a value is ill-formed")]
    Value,
    /// The connection ended inside a response.
    #[error("the connection ended early")]
    EndedEarly,
}
