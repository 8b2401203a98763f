//! A NAR sent by the daemon.
//!
//! A daemon starts to send a NAR before it has read the files. If one is missing, it sends an error
//! message in the middle of the bytes, or closes the connection. So the bytes are counted, parsed
//! and hashed, and the last ones are returned only if the hash matches the registration.

use samovar_nix::nar::{Decoder, Event};
use samovar_nix::{NarHash, PathInfo, StorePath};
use sha2::{Digest, Sha256};

use super::connection::Connection;
use super::pool::Daemon;
use crate::error::{Irregularity, StoreError};
use crate::tree::{Step, TreeError};

const BUFFER_LEN: usize = 64 * 1024;

/// A NAR that can be requested from the daemon.
#[derive(Debug)]
pub(crate) struct RemoteNar {
    daemon: Daemon,
    path: StorePath,
    nar_hash: NarHash,
    nar_size: u64,
}

impl RemoteNar {
    pub(crate) fn new(daemon: Daemon, info: PathInfo) -> Self {
        Self {
            daemon,
            path: info.path,
            nar_hash: info.nar_hash,
            nar_size: info.nar_size,
        }
    }

    /// Requests the NAR.
    pub(crate) fn open(&self) -> Result<RemoteNarReader, TreeError> {
        let connection = self.daemon.begin_nar(&self.path);
        let connection = connection.map_err(TreeError::Daemon)?;
        Ok(RemoteNarReader {
            connection: Some(connection),
            daemon: self.daemon.clone(),
            // The daemon's NARs have no depth limit here; clients enforce theirs.
            decoder: Decoder::with_depth_max(usize::MAX),
            hasher: Sha256::new(),
            nar_hash: self.nar_hash,
            left: self.nar_size,
        })
    }
}

fn step<'event>(event: &Event<'event>) -> Option<Step<'event>> {
    Some(match *event {
        Event::File {
            executable, size, ..
        } => Step::File {
            executable,
            size,
            file: None,
        },
        Event::Contents(_) | Event::FileEnd => return None,
        Event::Symlink { target } => Step::Symlink { target },
        Event::DirectoryBegin => Step::BeginDirectory,
        Event::Entry { name } => Step::Entry { name },
        Event::EntryEnd => Step::EndEntry,
        Event::DirectoryEnd => Step::EndDirectory,
    })
}

/// The NAR of a daemon, as bytes or as a sequence of steps.
#[derive(Debug)]
pub(crate) struct RemoteNarReader {
    /// `None` at the end.
    connection: Option<Connection>,
    daemon: Daemon,
    decoder: Decoder,
    hasher: Sha256,
    nar_hash: NarHash,
    left: u64,
}

impl RemoteNarReader {
    /// Fills the buffer with the next bytes and returns their number: 0 at the end.
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, TreeError> {
        self.fill_with(buffer, |_event| Ok(()))
    }

    /// Reads a piece of the NAR and passes its steps to `take`; `false` at the end.
    pub(crate) fn next_piece<E: From<TreeError>>(
        &mut self,
        mut take: impl FnMut(&Step<'_>) -> Result<(), E>,
    ) -> Result<bool, E> {
        let len = self.fill_with(&mut vec![0; BUFFER_LEN], |event| match step(event) {
            Some(step) => take(&step),
            None => Ok(()),
        })?;
        Ok(len > 0)
    }

    /// Fills the buffer, and passes the events in these bytes to `take`.
    fn fill_with<E: From<TreeError>>(
        &mut self,
        buffer: &mut [u8],
        mut take: impl FnMut(&Event<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let wanted = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let Some(connection) = self.connection.as_mut().filter(|_| wanted > 0) else {
            return Ok(0);
        };
        let buffer = &mut buffer[..wanted];
        let len = connection.nar_bytes(buffer).map_err(TreeError::Daemon)?;
        let read = &buffer[..len];
        self.hasher.update(read);
        let mut input = read;
        while let Some(event) = self
            .decoder
            .decode(&mut input)
            .map_err(|_error| ill_formed())?
        {
            take(&event)?;
        }
        self.left -= len as u64;
        if self.left == 0 {
            self.end()?;
        }
        Ok(len)
    }

    pub(crate) fn skip(&mut self, mut len: u64) -> Result<(), TreeError> {
        let mut buffer = vec![0; BUFFER_LEN];
        while len > 0 {
            let wanted = usize::try_from(len).unwrap_or(usize::MAX).min(buffer.len());
            match self.fill(&mut buffer[..wanted])? {
                0 => {
                    let error = StoreError::Protocol(Irregularity::EndedEarly);
                    return Err(TreeError::Daemon(error));
                }
                skipped => len -= skipped as u64,
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), TreeError> {
        let is_whole = self.decoder.is_done();
        let hash: [u8; 32] = std::mem::take(&mut self.hasher).finalize().into();
        let Some(mut connection) = self.connection.take() else {
            return Ok(());
        };
        if !is_whole || hash != *self.nar_hash.as_bytes() {
            return Err(ill_formed());
        }
        connection.nar_ended();
        self.daemon.put_back(connection);
        Ok(())
    }
}

/// Returns the error for bytes that are not the registered NAR.
fn ill_formed() -> TreeError {
    TreeError::Daemon(StoreError::Protocol(Irregularity::Value))
}
