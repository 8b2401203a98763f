//! Errors of the storage for uploads.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use samovar_text::counted;

/// Length of a day, in seconds.
const DAY: i64 = 86_400;

/// How the operator replaces a lost or damaged database.
const NEW_DATABASE: &str = "restore the database from a copy, or make a new one with samovar \
     import --rebuild and the options of the server, which reads the narinfos beside the files and \
     the newest daily backup in .samovar/backup";

/// An error of the storage. Its cause is on the server, not on the client's side.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// An operation on a file of the storage directory failed.
    #[error("{action} {path}: {error}")]
    File {
        /// The failed operation, such as "cannot write".
        action: &'static str,
        /// Path of the file, relative to the storage directory.
        path: String,
        /// Cause of the failure.
        error: io::Error,
    },
    /// A request to the bucket failed. Contains the request, the bucket and the cause.
    #[error("{0}")]
    Bucket(String),
    /// The token of an upload was revoked or has expired since the upload began.
    #[error("the token of the upload is not valid any more")]
    TokenInvalid,
    /// The database returned an error. Contains its message.
    #[error("database: {0}")]
    Database(String),
    /// Other writers of the database, in this process or in another, did not end in time.
    #[error("database is busy: another process writes to it for a long time")]
    Busy,
    /// The server of the database cannot be reached, or does not take part in transactions now.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The connection to the database was lost during a commit, and it cannot be learnt whether the
    /// transaction was committed. Contains the reason.
    #[error("it is unknown whether the database has committed a transaction: {0}")]
    Unknown(String),
    /// The disk has completed no operation of this kind for this time.
    #[error("the disk has completed no {} for {} s: see the log of the kernel", .0, .1.as_secs())]
    DiskHangs(&'static str, Duration),
    /// The database was written by a newer version of Samovar.
    #[error(
        "database has schema {found}, this version reads up to {supported}: run a newer Samovar"
    )]
    SchemaTooNew {
        /// Version of the schema in the database.
        found: i64,
        /// Newest schema version that this program reads.
        supported: i64,
    },
    /// The database contains a value that its schema does not allow, or SQLite cannot read it.
    #[error(
        "database is damaged: {0}; stop all servers of the storage, move .samovar/db.sqlite and \
         the files .samovar/db.sqlite-* out of the directory (with database.url: rename the schema \
         in PostgreSQL), and {NEW_DATABASE}"
    )]
    Damaged(String),
    /// The collector doubts that its run is right, and has changed nothing.
    #[error("{0}")]
    Doubtful(Doubt),
    /// This storage directory, or its database, is no longer the one that was opened.
    #[error(
        "the storage directory {0:?}, or a part of it such as its database, was moved or \
         unmounted: put it back; if it was replaced, restart the server"
    )]
    Gone(PathBuf),
    /// The bucket has no identifier of a storage, or that of another one.
    #[error(
        "the bucket is not that of the database: its .samovar/store-id is missing, or is that of \
         another storage; correct bucket.url or database.url; if the database of this bucket is \
         lost, restore it from a copy, or make a new one with samovar import --rebuild"
    )]
    OtherBucket,
    /// The bucket has no storage, and the database lists files. Contains the bucket.
    #[error(
        "the bucket {0} is empty (it has no .samovar/store-id), but the database lists files that \
         must be there; correct bucket.url, or, to move the storage to this bucket, run samovar \
         storage copy with a new database; if the files are lost, confirm that by creating an \
         empty object nar/lost in the bucket, and run samovar fsck --repair, which records this"
    )]
    EmptyBucket(String),
    /// The directory of NAR files lacks the files that the database lists. It is empty, or another
    /// directory than before.
    #[error(
        "nar/ in the storage directory does not have the files that the database lists: mount its \
         disk, or restore the files; if they are lost, confirm that by creating an empty file \
         nar/lost"
    )]
    NoFiles,
    /// The directory is the local one of a storage in a bucket, which was not named.
    #[error(
        "the directory belongs to a storage in {0}: name the configuration of its server with \
         --config, without --storage"
    )]
    Elsewhere(String),
    /// The directory has the objects of a storage, and a bucket was named.
    #[error(
        "the directory has a storage of its own, whose files are not in the bucket: name an empty \
         directory, and copy the storage with samovar storage copy"
    )]
    OwnObjects,
    /// A storage is to be copied into itself.
    #[error("both are the same storage")]
    SameStorage,
    /// A server uses the storage, which must be used alone.
    #[error("a server uses the storage{}: stop it first", process(*.0))]
    InUse(Option<u32>),
    /// The directory is a storage, but its database is missing or empty.
    #[error("the database .samovar/db.sqlite of this storage is missing; {NEW_DATABASE}")]
    DatabaseMissing,
    /// A rebuild of the database began and did not end.
    #[error(
        "a rebuild of the database is running or was interrupted: repeat samovar import --rebuild \
         with the options of the server, which continues it"
    )]
    Rebuilding,
    /// There are backups, but none of them can be read. Contains the reason for each.
    #[error(
        "no daily backup can be read ({0}): restore one from a copy; or move .samovar/backup away, \
         which loses all tokens and pins, and the paths of all caches whose narinfos are not \
         beside the files"
    )]
    NoBackup(String),
    /// The backup of this day has data that the database lacks. It was kept under this key.
    #[error(
        "the backup of today has tokens, pins or paths that the database does not have; it was \
         kept as {0}. If the database has lost them, restore it from this backup"
    )]
    BackupKept(String),
    /// The directory is a binary cache that is not a storage.
    #[error(
        "the directory is a binary cache without a database; to make it a storage, run samovar \
         import with the options of the server; if it was a storage and has lost its database, run \
         samovar import --rebuild instead"
    )]
    NotImported,
    /// This path, which is named as a storage, is not a directory.
    #[error("{0:?} is not a directory; name another path with --storage")]
    NotADirectory(PathBuf),
    /// The directory of the database cannot be created.
    #[error(
        "cannot create .samovar: {error}; create {root:?} on a writable disk, and give it to the \
         user of the server with chown -R"
    )]
    CannotCreate {
        /// The storage directory.
        root: PathBuf,
        /// Cause of the failure.
        error: io::Error,
    },
    /// A file or directory of the storage belongs to another user, and this one may not use it.
    #[error(
        "{path:?} belongs to the user {owner}, but this program runs as user {user}; run it as the \
         user of the server; if that is user {user}, give it all files of the storage with chown -R"
    )]
    Owner {
        /// The file or directory.
        path: PathBuf,
        /// User ID of its owner.
        owner: u32,
        /// User ID of this process.
        user: u32,
    },
    /// An object with this key was deleted while an object with the same key was uploaded.
    #[error("{0} was deleted while it was uploaded again: repeat the upload")]
    KeyInUse(String),
    /// The storage directory and the database belong to different storages.
    #[error(
        "storage directory and database do not belong together: .samovar/store-id is {directory}, \
         the database has {database}; restore both from the same copy, or, if the database of this \
         directory is lost, move .samovar/db.sqlite* away and run samovar import --rebuild"
    )]
    StoreId {
        /// The identifier in the storage directory.
        directory: String,
        /// The identifier in the database.
        database: String,
    },
    /// The database must be rebuilt, but it already has paths.
    #[error(
        "the database has paths: to import what it lacks, leave out --rebuild; to make it again, \
         move .samovar/db.sqlite, .samovar/db.sqlite-wal and .samovar/db.sqlite-shm away, or, with \
         database.url, rename the schema in PostgreSQL"
    )]
    NotEmpty,
    /// The store directory of the storage's paths differs from the one that the server serves.
    #[error("storage has paths of the store directory {stored}, the server serves {served}")]
    StoreDir {
        /// The store directory of the storage's paths.
        stored: String,
        /// The store directory that the server serves.
        served: String,
    },
}

impl StorageError {
    pub(crate) fn file(action: &'static str, path: impl Into<String>, error: io::Error) -> Self {
        Self::File {
            action,
            path: path.into(),
            error,
        }
    }

    /// Returns an equal error, for another upload in the same commit.
    pub(crate) fn copy(&self) -> Self {
        match self {
            Self::File {
                action,
                path,
                error,
            } => {
                let error = io::Error::new(error.kind(), error.to_string());
                Self::file(action, path, error)
            }
            Self::Damaged(reason) => Self::Damaged(reason.clone()),
            Self::Database(reason) => Self::Database(reason.clone()),
            Self::Busy => Self::Busy,
            Self::Unavailable(reason) => Self::Unavailable(reason.clone()),
            Self::Bucket(reason) => Self::Bucket(reason.clone()),
            Self::DiskHangs(kind, time) => Self::DiskHangs(kind, *time),
            other => Self::Database(other.to_string()),
        }
    }

    /// Returns whether another attempt may succeed because the database is then free, or available.
    pub(crate) const fn is_passing(&self) -> bool {
        matches!(self, Self::Busy | Self::Unavailable(_))
    }

    /// Returns whether the error means that the disk or a quota is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::File { error, .. } if is_full(error))
    }
}

/// Returns whether an error means that the disk or a quota is full.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

fn process(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

/// The reason to doubt a run. `Display` prints it with what the operator can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// The clock has advanced by this number of seconds more than the time that has passed.
    Jump(i64),
    /// The last run ended this number of seconds ago.
    Pause(i64),
    /// So many paths, the first number, would be condemned of those that were kept.
    Many(usize, usize),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jump(seconds) => write!(
                f,
                "the clock has jumped forward by {} while the server ran; correct the clock",
                counted(seconds / 3600, "hour")
            )?,
            Self::Pause(seconds) => write!(
                f,
                "by the clock, the last run of the collector was {} ago; check the clock",
                counted(seconds / DAY, "day")
            )?,
            Self::Many(dead, kept) => write!(
                f,
                "{dead} of {} that were kept would be deleted; check samovar gc --dry-run",
                counted(*kept, "path")
            )?,
        }
        let wait = match self {
            Self::Jump(_) => "wait for a day, or ",
            _ => "",
        };
        write!(
            f,
            ", and if it is right, {wait}run samovar gc --force with the configuration of the \
             server; until then, nothing is deleted"
        )
    }
}
