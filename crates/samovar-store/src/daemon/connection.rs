//! A connection to a daemon: handshake and operations.
//!
//! # Versions
//!
//! The client announces 1.38 and uses the lower of both versions, from 1.20 (Nix 2.0) on. Lix
//! rejects clients below 1.35, Nix 2.32 and later those below 1.18.
//!
//! # Source
//!
//! Nix 2.8.0, `src/libstore/remote-store.cc` and `daemon.cc`; Nix 2.36,
//! `src/libstore/worker-protocol-connection.cc`.

use std::io::{BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use samovar_nix::{
    Algorithm, ContentAddress, Hash, HashPart, NarHash, PathInfo, Signature, StoreDir, StorePath,
};

use super::message::read_messages;
use super::socket;
use super::wire::{Answer, Request, io_error};
use crate::error::{Irregularity, StoreError};
use crate::realisation::{RealisationId, derivation_document};

const CLIENT_MAGIC: u64 = 0x6e69_7863;
const SERVER_MAGIC: u64 = 0x6478_696f;
const MAJOR: u64 = 0x100;
const MINOR_MAX: u64 = 38;
const MINOR_MIN: u64 = 20;

/// Name of the protocol feature for realisations that are identified by derivation and output.
const FEATURE_BUILD_TRACE: &str = "realisation-with-path-not-hash";

const IS_VALID_PATH: u64 = 1;
const ADD_TEMP_ROOT: u64 = 11;
const QUERY_PATH_INFO: u64 = 26;
const QUERY_PATH_FROM_HASH_PART: u64 = 29;
const QUERY_REALISATION: u64 = 43;

/// A connection after its handshake.
#[derive(Debug)]
pub(super) struct Connection {
    stream: BufReader<UnixStream>,
    minor: u64,
    has_build_trace: bool,
    /// Whether the next byte from the peer is the first byte of a response; false after a protocol
    /// error.
    in_step: bool,
}

impl Connection {
    /// Connects and performs the handshake.
    pub(super) fn open(path: &Path, silence_max: Duration) -> Result<Self, StoreError> {
        let stream = socket::connect(path, silence_max)?;
        Self::handshake(stream)
    }

    pub(super) fn handshake(stream: UnixStream) -> Result<Self, StoreError> {
        let mut connection = Self {
            stream: BufReader::with_capacity(32 * 1024, stream),
            minor: MINOR_MAX,
            has_build_trace: false,
            in_step: true,
        };
        connection.send(
            &Request::new()
                .integer(CLIENT_MAGIC)
                .integer(MAJOR | MINOR_MAX),
        )?;
        let mut answer = Answer::new(&mut connection.stream);
        if answer.integer()? != SERVER_MAGIC {
            return Err(StoreError::Protocol(Irregularity::Magic));
        }
        let version = answer.integer()?;
        let minor = (version & 0xff).min(MINOR_MAX);
        if version & !0xff != MAJOR || minor < MINOR_MIN {
            let (major, minor) = (version >> 8, version & 0xff);
            return Err(StoreError::Protocol(Irregularity::Version { major, minor }));
        }
        connection.minor = minor;
        connection.finish_handshake()?;
        Ok(connection)
    }

    fn finish_handshake(&mut self) -> Result<(), StoreError> {
        let mut request = Request::new();
        if self.minor >= 38 {
            request = request.strings(&[FEATURE_BUILD_TRACE]);
        }
        // Two obsolete fields: CPU affinity and reserved space.
        self.send(&request.integer(0).integer(0))?;
        let mut answer = Answer::new(&mut self.stream);
        if self.minor >= 38 {
            let features = answer.strings()?;
            self.has_build_trace = features.iter().any(|name| name == FEATURE_BUILD_TRACE);
        }
        if self.minor >= 33 {
            answer.bytes()?; // the daemon's Nix version
        }
        if self.minor >= 35 {
            answer.integer()?; // whether the daemon trusts this user
        }
        read_messages(&mut answer, self.minor)
    }

    /// Returns whether the connection can be used for another operation.
    pub(super) fn is_in_step(&self) -> bool {
        // Bytes that arrived without a request would be parsed as the next response.
        self.in_step && self.stream.buffer().is_empty()
    }

    pub(super) fn is_valid(
        &mut self,
        dir: &StoreDir,
        path: &StorePath,
    ) -> Result<bool, StoreError> {
        self.query(
            &Request::new()
                .integer(IS_VALID_PATH)
                .string(&path.full(dir)),
            |answer| answer.boolean(),
        )
    }

    pub(super) fn path_from_hash_part(
        &mut self,
        dir: &StoreDir,
        hash_part: HashPart,
    ) -> Result<Option<StorePath>, StoreError> {
        let request = Request::new()
            .integer(QUERY_PATH_FROM_HASH_PART)
            .string(&hash_part.to_string());
        self.query(&request, |answer| optional_path(dir, &answer.string()?))
    }

    pub(super) fn path_info(
        &mut self,
        dir: &StoreDir,
        path: StorePath,
    ) -> Result<Option<PathInfo>, StoreError> {
        let request = Request::new()
            .integer(QUERY_PATH_INFO)
            .string(&path.full(dir));
        self.query(&request, |answer| {
            if answer.boolean()? {
                read_path_info(answer, dir, path).map(Some)
            } else {
                Ok(None)
            }
        })
    }

    pub(super) fn realisation(
        &mut self,
        dir: &StoreDir,
        id: &RealisationId,
    ) -> Result<Option<String>, StoreError> {
        let request = Request::new().integer(QUERY_REALISATION);
        match id {
            // Daemons from protocol version 1.31 on, without build traces, send the JSON document
            // itself.
            RealisationId::Hash { .. } if self.minor >= 31 && !self.has_build_trace => self
                .query(&request.string(&id.to_string()), |answer| {
                    Ok(answer.strings()?.into_iter().next())
                }),
            RealisationId::Derivation { derivation, output } if self.has_build_trace => {
                let request = request
                    .string(&derivation.full(dir))
                    .string(output.as_str());
                self.query(&request, |answer| read_build_trace(answer, dir))
            }
            _ => Ok(None),
        }
    }

    fn query<T>(
        &mut self,
        request: &Request,
        read: impl FnOnce(&mut Answer<&mut BufReader<UnixStream>>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // Until the whole response has been read, the connection is unusable.
        self.in_step = false;
        self.send(request)?;
        self.receive(read)
    }

    /// Reads one response.
    fn receive<T>(
        &mut self,
        read: impl FnOnce(&mut Answer<&mut BufReader<UnixStream>>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.in_step = false;
        let mut answer = Answer::new(&mut self.stream);
        let result = read_messages(&mut answer, self.minor).and_then(|()| read(&mut answer));
        self.in_step = matches!(result, Ok(_) | Err(StoreError::Refused));
        result
    }

    fn send(&mut self, request: &Request) -> Result<(), StoreError> {
        self.stream
            .get_mut()
            .write_all(request.as_bytes())
            .map_err(|error| io_error(&error))
    }
}

/// Protects paths and their closures from garbage collection until dropped.
///
/// A path may be garbage-collected before the daemon protects it: call [`is_valid`](Self::is_valid)
/// after its response. During a collection a response may take as long as deleting one path;
/// daemons of Nix 2.3 respond only after the collection. So requests and responses are separate,
/// and callers can poll for a response by [`AsFd`].
///
/// # Source
///
/// Nix 2.8.0, `src/libstore/gc.cc`, `LocalStore::addTempRoot` and `collectGarbage`.
#[derive(Debug)]
pub struct TempRoots {
    pub(super) connection: Connection,
    pub(super) store_dir: StoreDir,
}

impl TempRoots {
    /// Requests roots without waiting. The daemon sends one response per path, in order. The
    /// socket's buffer holds a few hundred unanswered requests.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`]: the connection is no longer usable.
    pub fn ask<'a>(
        &mut self,
        paths: impl Iterator<Item = &'a StorePath>,
    ) -> Result<(), StoreError> {
        let dir = &self.store_dir;
        let request = paths.fold(Request::new(), |request, path| {
            request.integer(ADD_TEMP_ROOT).string(&path.full(dir))
        });
        self.connection.send(&request)
    }

    /// Waits for the next response and returns whether that path is protected.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`]: the connection is no longer usable.
    pub fn answer(&mut self) -> Result<bool, StoreError> {
        match self.connection.receive(|answer| answer.integer()) {
            Ok(_) => Ok(true),
            Err(StoreError::Refused) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a part of a response is buffered. If not, poll the socket.
    #[must_use]
    pub fn has_answer(&self) -> bool {
        !self.connection.stream.buffer().is_empty()
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
        self.connection.stream.get_ref().as_fd()
    }
}

fn read_path_info<R: Read>(
    answer: &mut Answer<R>,
    dir: &StoreDir,
    path: StorePath,
) -> Result<PathInfo, StoreError> {
    let deriver = answer.string()?;
    let nar_hash = nar_hash(&answer.string()?)?;
    let mut references = Vec::new();
    for reference in answer.strings()? {
        references.push(store_path(dir, &reference)?);
    }
    references.sort_unstable();
    references.dedup();
    let registration_time = answer.integer()?;
    let nar_size = answer.integer()?;
    let ultimate = answer.boolean()?;
    let signatures = signatures(&answer.strings()?);
    let content_address = answer.string()?;
    Ok(PathInfo {
        path,
        nar_hash,
        nar_size,
        references,
        deriver: StorePath::parse(dir, &deriver).ok(),
        signatures,
        content_address: ContentAddress::parse(&content_address).ok(),
        registration_time: i64::try_from(registration_time).unwrap_or_default(),
        ultimate,
        registration: None,
    })
}

fn read_build_trace<R: Read>(
    answer: &mut Answer<R>,
    dir: &StoreDir,
) -> Result<Option<String>, StoreError> {
    if !answer.boolean()? {
        return Ok(None);
    }
    let out_path = store_path(dir, &answer.string()?)?;
    let signatures = signatures(&answer.strings()?);
    Ok(Some(derivation_document(&out_path, &signatures)))
}

/// Parses signatures; drops malformed ones.
fn signatures(texts: &[String]) -> Vec<Signature> {
    let parsed = texts.iter().filter_map(|text| Signature::parse(text).ok());
    let mut signatures: Vec<Signature> = parsed.collect();
    signatures.sort_unstable();
    signatures.dedup();
    signatures
}

/// Parses a hash. The protocol uses base-16 without a prefix; a prefix is accepted.
fn nar_hash(text: &str) -> Result<NarHash, StoreError> {
    NarHash::parse(text)
        .ok()
        .or_else(|| {
            let hash = Hash::parse_digest(Algorithm::Sha256, text).ok()?;
            NarHash::from_hash(&hash).ok()
        })
        .ok_or(StoreError::Protocol(Irregularity::Value))
}

fn optional_path(dir: &StoreDir, text: &str) -> Result<Option<StorePath>, StoreError> {
    if text.is_empty() {
        Ok(None)
    } else {
        store_path(dir, text).map(Some)
    }
}

fn store_path(dir: &StoreDir, text: &str) -> Result<StorePath, StoreError> {
    StorePath::parse(dir, text).map_err(|_error| StoreError::Protocol(Irregularity::Value))
}

#[cfg(test)]
mod tests;
