//! [`Location`]: where a storage keeps its data.

use std::path::{Path, PathBuf};

/// Where a storage keeps its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    directory: PathBuf,
}

impl Location {
    /// Returns the location of a storage whose objects and database are in a directory.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    /// Returns the local directory of the storage.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
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
