//! What goes wrong while a store answers.

use std::fmt;
use std::io;

/// The store erred: it cannot say whether the path is there, or cannot hand out what it has.
///
/// Absence is never an error: it is `Ok(None)`. A server answers any of these with a 5xx status
/// and may be asked again; nothing here is the fault of the client. The type holds neither paths
/// nor texts of the operating system, so that printing it to a peer gives nothing away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process holds the database, and went on holding it for the whole busy timeout.
    #[error("the database is locked by another process")]
    Busy,
    /// The store cannot be asked at the moment.
    #[error("the store cannot be asked: {0}")]
    Unavailable(Unavailable),
    /// The database or a row of it makes no sense.
    #[error("the database is damaged: {0}")]
    Corrupt(Corruption),
    /// The daemon said something that the worker protocol does not allow. The connection is gone.
    #[error("the daemon broke the worker protocol: {0}")]
    Protocol(Irregularity),
    /// The daemon understood the question and answered with an error of its own.
    #[error("the daemon refused the request")]
    Refused,
    /// The operating system refused an operation.
    #[error("{operation} failed: {kind}")]
    Io {
        /// What was tried.
        operation: Operation,
        /// How it failed.
        kind: io::ErrorKind,
    },
}

impl StoreError {
    /// An operating system error during `operation`.
    #[must_use]
    pub fn io(operation: Operation, error: &io::Error) -> Self {
        Self::Io {
            operation,
            kind: error.kind(),
        }
    }

    /// Whether this is about one row of the database, and all others may be well.
    #[must_use]
    pub fn is_about_one_path(self) -> bool {
        use Corruption as Row;
        matches!(
            self,
            Self::Corrupt(
                Row::StorePath | Row::NarHash | Row::NarSize | Row::Realisation | Row::Value
            )
        )
    }

    /// What an operator can do about it, where there is anything.
    #[must_use]
    pub fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::Unavailable(reason) => match reason {
                Unavailable::DatabaseMissing => "put it back, or set NIX_STATE_DIR to where it is",
                Unavailable::PermissionDenied => {
                    "let this user read the database, what lies beside it and its directory, or \
                     start nix-daemon"
                }
                Unavailable::WalIndexMissing => {
                    "start nix-daemon, or let this user write to the database's directory"
                }
                Unavailable::HotJournal => "any Nix command of the store's owner undoes it",
                Unavailable::ForeignWal => "remove db.sqlite-wal and db.sqlite-shm",
                Unavailable::Form(_) => "upgrade Samovar, or start nix-daemon",
                Unavailable::FilesMissing => "mount the store's file system",
                Unavailable::DaemonUnreachable | Unavailable::DaemonTimeout => "start nix-daemon",
                Unavailable::BeingReplaced | Unavailable::Stalled => return None,
            },
            Self::Corrupt(Corruption::Malformed) => "restore it from a backup",
            _ => return None,
        })
    }
}

/// Why a store cannot be asked at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// There is no database where it should be.
    #[error("the database does not exist")]
    DatabaseMissing,
    /// The database, or its directory, is not readable for this user.
    #[error("the database is not readable for this user")]
    PermissionDenied,
    /// The database is in WAL mode without its index, which this user may not create.
    #[error("the database's WAL index is missing and may not be created")]
    WalIndexMissing,
    /// A change of the database broke off, and this user may not undo what was written of it.
    #[error("a change of the database broke off and has to be undone")]
    HotJournal,
    /// The WAL is that of a database whose place this one has taken: read together, they are
    /// neither.
    #[error("the database was replaced, and the WAL of the one before lies beside it still")]
    ForeignWal,
    /// Something that is read of the database is not there, or means something else.
    #[error("the database is not of a form that is understood: {0}")]
    Form(&'static str),
    /// The database was replaced while it was being opened, or is being replaced right now.
    #[error("the database is being replaced")]
    BeingReplaced,
    /// The directory of the store is empty or cannot be read: its file system is not mounted.
    #[error("the store's directory is empty or cannot be read")]
    FilesMissing,
    /// A question has had no answer for seconds: the disk does not answer.
    #[error("the database's disk does not answer")]
    Stalled,
    /// Nobody answers at the daemon's socket.
    #[error("the daemon cannot be reached")]
    DaemonUnreachable,
    /// The daemon did not answer in time.
    #[error("the daemon did not answer in time")]
    DaemonTimeout,
}

/// What is wrong with the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Corruption {
    /// SQLite says that the file is malformed, truncated or no database.
    #[error("SQLite finds it malformed")]
    Malformed,
    /// A statement, or a value, does not fit: the tables are being changed.
    #[error("a table or column is not what it was")]
    Schema,
    /// A store path in a row has another form.
    #[error("a row holds an ill-formed store path")]
    StorePath,
    /// A NAR hash in a row has another form.
    #[error("a row holds an ill-formed NAR hash")]
    NarHash,
    /// A NAR size in a row is negative or no number.
    #[error("a row holds an ill-formed NAR size")]
    NarSize,
    /// Something that is text in all rows is none in this one.
    #[error("a row holds a value of another type")]
    Value,
    /// A realisation in a row has another form.
    #[error("a row holds an ill-formed realisation")]
    Realisation,
}

/// How a daemon broke the worker protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Irregularity {
    /// The first bytes are not the protocol's magic number.
    #[error("the magic number is wrong")]
    Magic,
    /// The protocol version is one this program does not speak.
    #[error("the protocol version is not supported")]
    Version,
    /// A string, list or message stream is longer than its limit.
    #[error("something is longer than its limit")]
    TooLong,
    /// Padding of a string is not zero.
    #[error("padding is not zero")]
    Padding,
    /// A string that must be UTF-8 is not.
    #[error("text is not UTF-8")]
    Text,
    /// A message has a code that is not known.
    #[error("an unknown message arrived")]
    Message,
    /// A value is out of its range or has another form.
    #[error("a value is ill-formed")]
    Value,
    /// The connection ended in the middle of an answer.
    #[error("the connection ended early")]
    EndedEarly,
}

/// An operation that the operating system can refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Reading the database.
    ReadDatabase,
    /// Reading the freshness token.
    ReadToken,
    /// Opening a store path.
    OpenPath,
    /// Opening or reading a build log.
    ReadLog,
    /// Speaking with the daemon.
    TalkToDaemon,
    /// Starting a thread.
    StartThread,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadDatabase => "reading the database",
            Self::ReadToken => "reading the freshness token",
            Self::OpenPath => "opening a store path",
            Self::ReadLog => "reading a build log",
            Self::TalkToDaemon => "speaking with the daemon",
            Self::StartThread => "starting a thread",
        })
    }
}
