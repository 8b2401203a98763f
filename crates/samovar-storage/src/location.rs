//! [`Location`]: where a storage keeps its data.

use std::fmt;
use std::path::{Path, PathBuf};

use samovar_bucket::Settings;

use crate::postgres::PostgresSettings;

/// Where a storage keeps its data.
#[derive(Debug, Clone)]
pub struct Location {
    directory: PathBuf,
    bucket: Option<BucketLocation>,
    database: Option<PostgresSettings>,
}

/// The bucket with the objects of a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketLocation {
    /// The bucket, and how it is reached.
    pub settings: Settings,
    /// Maximum total length of the files in the disk cache, in bytes.
    pub cache_len_max: u64,
    /// Length of a file above which clients download it from the bucket directly, in bytes. `None`:
    /// they download all files through the server.
    pub redirect_over: Option<u64>,
    /// Whether small files that arrive together share an object. Otherwise the bucket is a plain
    /// binary cache: each file has its own object, and the narinfos are in the bucket, too.
    pub packs: bool,
}

impl Location {
    /// Returns the location of a storage whose objects and database are in a directory.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            bucket: None,
            database: None,
        }
    }

    /// Sets the bucket that has the objects instead of the directory. The directory then has
    /// temporary files and copies of objects.
    #[must_use]
    pub fn with_bucket(mut self, bucket: Option<BucketLocation>) -> Self {
        self.bucket = bucket;
        self
    }

    /// Returns whether the directory has everything.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.bucket.is_none() && self.database.is_none()
    }

    /// Returns the bucket with the objects. `None`: they are in the directory.
    #[must_use]
    pub fn bucket(&self) -> Option<&BucketLocation> {
        self.bucket.as_ref()
    }

    /// Sets the PostgreSQL database that has the metadata instead of a file in the directory.
    #[must_use]
    pub fn with_database(mut self, database: Option<PostgresSettings>) -> Self {
        self.database = database;
        self
    }

    /// Returns the PostgreSQL database with the metadata. `None`: they are in a file in the
    /// directory.
    #[must_use]
    pub const fn database(&self) -> Option<&PostgresSettings> {
        self.database.as_ref()
    }

    /// Returns the local directory of the storage.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl fmt::Display for Location {
    /// Names the places of the data, without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            directory,
            bucket,
            database,
        } = self;
        match (bucket, database) {
            (Some(bucket), Some(database)) => write!(f, "{bucket} and {database}"),
            (Some(bucket), None) => write!(f, "{bucket} and {directory:?}"),
            (None, Some(database)) => write!(f, "{directory:?} and {database}"),
            (None, None) => write!(f, "{directory:?}"),
        }
    }
}

impl fmt::Display for BucketLocation {
    /// Writes `s3://BUCKET/PREFIX at ENDPOINT`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            bucket,
            prefix,
            region,
            endpoint,
            ..
        } = &self.settings;
        let below = prefix
            .strip_suffix('/')
            .map_or(String::new(), |it| format!("/{it}"));
        let endpoint = endpoint.as_deref().unwrap_or(region);
        write!(f, "s3://{bucket}{below} at {endpoint}")
    }
}

impl From<&Path> for Location {
    fn from(directory: &Path) -> Self {
        Self::new(directory)
    }
}

impl From<&PathBuf> for Location {
    fn from(directory: &PathBuf) -> Self {
        Self::new(directory)
    }
}

impl From<&Self> for Location {
    fn from(location: &Self) -> Self {
        location.clone()
    }
}
