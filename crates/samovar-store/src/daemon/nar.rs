//! A NAR sent by the daemon.
//!
//! A daemon promises the NAR before it reads the files. When one is gone, an error message stands
//! in the middle of the bytes, or the connection ends. So the bytes are counted, parsed as they
//! come, and hashed: the last ones are handed out only when all of them have the hash that the
//! store announces.

use samovar_nix::nar::{Decoder, Event};
use samovar_nix::{NarHash, PathInfo, StorePath};
use sha2::{Digest, Sha256};

use super::connection::Connection;
use super::pool::Daemon;
use crate::error::{Irregularity, StoreError};
use crate::tree::{Step, TreeError};

const BUFFER_LEN: usize = 64 * 1024;

/// A NAR that the daemon will send.
#[derive(Debug)]
pub(crate) struct RemoteNar {
    daemon: Daemon,
    path: StorePath,
    nar_hash: NarHash,
    nar_size: u64,
}

impl RemoteNar {
    pub(crate) fn new(daemon: Daemon, info: PathInfo) -> Self {
        let PathInfo {
            path,
            nar_hash,
            nar_size,
            ..
        } = info;
        Self {
            daemon,
            path,
            nar_hash,
            nar_size,
        }
    }

    pub(crate) fn nar_size(&self) -> u64 {
        self.nar_size
    }

    /// Asks for the NAR.
    pub(crate) fn open(&self) -> Result<RemoteNarReader, StoreError> {
        Ok(RemoteNarReader {
            connection: Some(self.daemon.begin_nar(&self.path)?),
            daemon: self.daemon.clone(),
            // The store holds what it holds: depth is for clients to judge.
            decoder: Decoder::with_depth_max(usize::MAX),
            hasher: Sha256::new(),
            nar_hash: self.nar_hash,
            left: self.nar_size,
        })
    }

    /// Asks for the NAR, to know what it is made of.
    pub(crate) fn steps(&self) -> Result<RemoteSteps, TreeError> {
        Ok(RemoteSteps {
            reader: self.open().map_err(TreeError::Daemon)?,
            decoder: Decoder::with_depth_max(usize::MAX),
            buffer: vec![0; BUFFER_LEN],
        })
    }
}

/// What one NAR is made of.
#[derive(Debug)]
pub(crate) struct RemoteSteps {
    reader: RemoteNarReader,
    decoder: Decoder,
    buffer: Vec<u8>,
}

impl RemoteSteps {
    /// Reads a piece of the NAR and tells `take` what is in it; `false` at the end.
    pub(crate) fn next_piece<E: From<TreeError>>(
        &mut self,
        mut take: impl FnMut(&Step<'_>) -> Result<(), E>,
    ) -> Result<bool, E> {
        let len = self.reader.fill(&mut self.buffer);
        let len = len.map_err(TreeError::Daemon)?;
        let mut input = &self.buffer[..len];
        // The reader has parsed these bytes before, so they parse.
        while let Some(event) = self
            .decoder
            .decode(&mut input)
            .map_err(|_error| TreeError::Daemon(StoreError::Protocol(Irregularity::Value)))?
        {
            if let Some(step) = step(&event) {
                take(&step)?;
            }
        }
        Ok(len > 0)
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

/// The bytes of one NAR.
#[derive(Debug)]
pub(crate) struct RemoteNarReader {
    /// Present until the end.
    connection: Option<Connection>,
    daemon: Daemon,
    decoder: Decoder,
    hasher: Sha256,
    nar_hash: NarHash,
    left: u64,
}

impl RemoteNarReader {
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, StoreError> {
        let wanted = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let Some(connection) = &mut self.connection else {
            return Ok(0);
        };
        if wanted == 0 {
            return Ok(0);
        }
        let buffer = &mut buffer[..wanted];
        let len = connection.nar_bytes(buffer)?;
        let read = &buffer[..len];
        self.hasher.update(read);
        let mut input = read;
        while let Some(_event) = self
            .decoder
            .decode(&mut input)
            .map_err(|_error| StoreError::Protocol(Irregularity::Value))?
        {}
        self.left -= len as u64;
        if self.left == 0 {
            self.end()?;
        }
        Ok(len)
    }

    pub(crate) fn skip(&mut self, mut len: u64) -> Result<(), StoreError> {
        let mut buffer = vec![0; BUFFER_LEN];
        while len > 0 {
            let wanted = usize::try_from(len).unwrap_or(usize::MAX).min(buffer.len());
            match self.fill(&mut buffer[..wanted])? {
                0 => return Err(StoreError::Protocol(Irregularity::EndedEarly)),
                skipped => len -= skipped as u64,
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), StoreError> {
        let is_whole = self.decoder.is_done();
        let hash: [u8; 32] = std::mem::take(&mut self.hasher).finalize().into();
        let Some(mut connection) = self.connection.take() else {
            return Ok(());
        };
        if !is_whole || hash != *self.nar_hash.as_bytes() {
            return Err(StoreError::Protocol(Irregularity::Value));
        }
        connection.nar_ended();
        self.daemon.put_back(connection);
        Ok(())
    }
}
