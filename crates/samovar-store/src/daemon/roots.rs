//! [`TempRoots`]: temporary GC roots.

use std::os::fd::{AsFd, BorrowedFd};

use samovar_nix::{StoreDir, StorePath};

use super::connection::Connection;
use crate::error::StoreError;

/// Protects paths and their closures from garbage collection until dropped.
///
/// A path may be collected before the daemon protects it: call [`is_valid`](Self::is_valid) after
/// its response. During a collection a response may take as long as deleting one path; daemons of
/// Nix 2.3 respond only after the collection. So requests and responses are separate, and callers
/// can poll for a response by [`AsFd`].
///
/// # Source
///
/// Nix 2.8.0, `src/libstore/gc.cc`, `LocalStore::addTempRoot` and `collectGarbage`.
#[derive(Debug)]
pub struct TempRoots {
    connection: Connection,
    store_dir: StoreDir,
}

impl TempRoots {
    pub(super) fn new(connection: Connection, store_dir: StoreDir) -> Self {
        Self {
            connection,
            store_dir,
        }
    }

    /// Requests roots without waiting. The socket's buffer holds a few hundred unanswered requests.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`]: the connection is no longer usable.
    pub fn ask<'a>(
        &mut self,
        paths: impl Iterator<Item = &'a StorePath>,
    ) -> Result<(), StoreError> {
        self.connection.request_temp_roots(&self.store_dir, paths)
    }

    /// Waits for the next response and returns whether that path is protected.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`]: the connection is no longer usable.
    pub fn answer(&mut self) -> Result<bool, StoreError> {
        match self.connection.temp_root_answer() {
            Ok(()) => Ok(true),
            Err(StoreError::Refused) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a part of a response is buffered. If not, poll the socket.
    #[must_use]
    pub fn has_answer(&self) -> bool {
        self.connection.has_buffered()
    }

    /// Returns whether the path is valid according to this daemon. Call it only without unanswered
    /// requests.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    pub fn is_valid(&mut self, path: &StorePath) -> Result<bool, StoreError> {
        self.connection.is_valid(&self.store_dir, path)
    }
}

impl AsFd for TempRoots {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.socket()
    }
}
