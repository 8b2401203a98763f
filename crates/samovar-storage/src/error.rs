//! Errors of storage.

use std::io;

use crate::verify;

/// An error of the storage. Its cause is on the server, not at the client.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A file of the storage directory.
    #[error("{action} {path}: {error}")]
    File {
        /// What failed, as a verb: "cannot write".
        action: &'static str,
        /// The file, relative to the storage directory.
        path: String,
        /// The cause.
        error: io::Error,
    },
    /// The database.
    #[error("database: {0}")]
    Database(String),
    /// The database was written by a newer version of Samovar.
    #[error(
        "database has schema {found}, this version reads up to {supported}: run a newer Samovar"
    )]
    SchemaTooNew {
        /// The schema in the database.
        found: i64,
        /// The newest schema that this version reads.
        supported: i64,
    },
    /// A value in the database that its schema does not allow.
    #[error("database is damaged: {0}")]
    Damaged(String),
    /// The directory belongs to another database.
    #[error(
        "storage directory and database do not belong together: .samovar/store-id is {directory}, \
         the database has {database}"
    )]
    StoreId {
        /// The identifier in the directory.
        directory: String,
        /// The identifier in the database.
        database: String,
    },
    /// The storage holds paths of another store directory.
    #[error("storage has paths of the store directory {stored}, the server serves {served}")]
    StoreDir {
        /// The store directory of the storage.
        stored: String,
        /// The store directory of the server.
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

    /// Whether the disk or a quota is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(
            self,
            Self::File { error, .. } if matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            )
        )
    }
}

/// Why an upload was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// The body could not be received; the error of the reader that was passed in.
    #[error("receiving the body: {0}")]
    Source(io::Error),
    /// The file is refused.
    #[error(transparent)]
    File(Box<verify::Refusal>),
    /// The narinfo is refused.
    #[error(transparent)]
    Narinfo(Box<crate::publish::Refusal>),
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl From<crate::publish::Refusal> for PutError {
    fn from(refusal: crate::publish::Refusal) -> Self {
        Self::Narinfo(Box::new(refusal))
    }
}
