//! Paths kept from being collected.

use std::os::fd::{AsFd, BorrowedFd};

use samovar_nix::{StoreDir, StorePath};

use super::connection::Connection;
use crate::error::StoreError;

/// Keeps paths, and all that they need, from being collected as long as it lives.
///
/// A path may be invalid by the time the daemon keeps it: look after the answer. While garbage is
/// being collected an answer may take as long as the collector deletes one path; daemons of Nix 2.3
/// answer when the collector is done. So asking and answering are apart, and whoever waits can do
/// so by [`AsFd`].
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

    /// Asks for some paths, and waits for nothing. Some hundred questions without an answer are as
    /// many as the socket takes.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`]: the connection can no longer be used.
    pub fn ask<'a>(
        &mut self,
        paths: impl Iterator<Item = &'a StorePath>,
    ) -> Result<(), StoreError> {
        self.connection.ask_for_temp_roots(&self.store_dir, paths)
    }

    /// Waits for the answer to the first question that has none: whether that path is kept.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`]: the connection can no longer be used.
    pub fn answer(&mut self) -> Result<bool, StoreError> {
        match self.connection.temp_root_answer() {
            Ok(()) => Ok(true),
            Err(StoreError::Refused) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether an answer has begun to arrive. If not, the socket tells when one does.
    #[must_use]
    pub fn has_answer(&self) -> bool {
        self.connection.has_buffered()
    }

    /// Whether the path is valid, in the eyes of this daemon. For when there is no question without
    /// an answer.
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
