//! TLS records on a non-blocking socket.
//!
//! # Theory of operation
//!
//! rustls runs without buffers of its own. Ciphertext is read into a buffer of the *thread* and
//! decrypted there; plaintext is encrypted into another buffer of the thread and sent from it. A
//! connection stores only leftovers: an incomplete record, and records that the socket did not
//! accept. Their memory is freed as soon as they are empty.
//!
//! | buffer | content | limit |
//! |---|---|---|
//! | `incoming` | ciphertext of an incomplete record or handshake message | [`INCOMING_LEN_MAX`] |
//! | `plain` | plaintext that did not fit into the caller's buffer | plaintext of one read |
//! | `outgoing` | records that the socket has not accepted | [`SEND_LEN`] and its framing, and the handshake |
//!
//! More plaintext is accepted only while `outgoing` is empty, so a peer that does not read costs
//! the memory of one piece.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError};

use super::trust::Trust;
use crate::sys;

/// Maximum length of plaintext that is encrypted and sent at once, in bytes: four records. A larger
/// piece would be evicted from the processor's caches between encryption and the kernel's copy;
/// smaller ones need more system calls.
pub(crate) const SEND_LEN: usize = 64 * 1024;
/// Maximum length of ciphertext that is read at once, in bytes.
const READ_LEN: usize = 64 * 1024;
/// Maximum length of a TLS 1.2 record, in bytes (RFC 5246, 6.2.3).
const RECORD_LEN_MAX: usize = 5 + 16 * 1024 + 2048;
/// Maximum length of stored ciphertext of an incomplete message, in bytes. rustls refuses handshake
/// messages of more than 65539 bytes.
const INCOMING_LEN_MAX: usize = 96 * 1024;
/// Maximum overhead of encryption for [`SEND_LEN`] bytes, in bytes: header, nonce and tag of each
/// record, and a key update.
const SEAL_OVERHEAD: usize = 512;
/// Maximum length of unsent records that TLS itself sends in reply (tickets, key updates), in
/// bytes. A peer exceeds this limit only if it causes replies without reading them.
const OUTGOING_LEN_MAX: usize = SEND_LEN + INCOMING_LEN_MAX;
/// Maximum length of consecutive ciphertext that yields no plaintext, in bytes. Without this limit
/// a peer could keep a thread busy with empty records.
const VAIN_LEN_MAX: usize = 256 * 1024;
/// First byte of a handshake record (RFC 8446, 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// Response to a client that sends plain HTTP to a TLS port.
const IN_CLEAR: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain\r\n\
    Content-Length: 29\r\n\
    Connection: close\r\n\
    \r\n\
    This port speaks HTTPS only.\n";

thread_local! {
    /// Buffers of a thread for reading, decryption and encryption. Pages that were never used take
    /// no memory.
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        input: vec![0; INCOMING_LEN_MAX + READ_LEN],
        output: vec![0; SEND_LEN + SEAL_OVERHEAD],
    });
}

struct Scratch {
    input: Vec<u8>,
    output: Vec<u8>,
}

/// Progress of a TLS handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handshake {
    Done,
    WantsRead,
    WantsWrite,
    /// Failed, and the alert was sent. No more data can be sent, and further input must be
    /// discarded.
    Over,
}

/// A TLS connection and its socket.
pub(crate) struct Stream {
    socket: OwnedFd,
    state: State,
    incoming: Vec<u8>,
    plain: VecDeque<u8>,
    outgoing: Vec<u8>,
    outgoing_at: usize,
    /// Whether `incoming` may contain complete records whose plaintext did not fit into the
    /// caller's buffer.
    has_records: bool,
    /// Whether the peer's `close_notify` was received.
    is_ended: bool,
    /// Whether to shut down the socket's writing side once `outgoing` was sent.
    is_shutting: bool,
    trust: Arc<Trust>,
    /// The generation of the authorities in `trust` that the handshake uses.
    generation: u64,
}

/// State of rustls. It takes most of a connection's memory, so it is created once the peer has sent
/// data.
enum State {
    Fresh(Arc<ServerConfig>),
    Open(Box<UnbufferedServerConnection>),
    Over,
}

impl Stream {
    pub(crate) fn new(socket: OwnedFd, config: Arc<ServerConfig>) -> Self {
        Self {
            socket,
            state: State::Fresh(config),
            incoming: Vec::new(),
            plain: VecDeque::new(),
            outgoing: Vec::new(),
            outgoing_at: 0,
            has_records: false,
            is_ended: false,
            is_shutting: false,
            trust: Arc::default(),
            generation: 0,
        }
    }

    /// Continues the handshake as far as the socket allows. Call it on a worker: it may compute for
    /// up to a millisecond. After `Done`, plaintext may be available without another event from
    /// epoll.
    ///
    /// # Errors
    ///
    /// Errors of the socket, `InvalidData` for errors of the peer, and `UnexpectedEof`. The
    /// handshake is then [`Over`](Handshake::Over).
    pub(crate) fn handshake(&mut self) -> io::Result<Handshake> {
        let handshake = self.advance_handshake();
        if handshake.is_err() {
            self.state = State::Over;
            // The alert was sent as far as possible.
            drop(sys::shutdown_write(&self.socket));
        }
        handshake
    }

    fn advance_handshake(&mut self) -> io::Result<Handshake> {
        loop {
            let is_flushed = self.flush()?;
            if let State::Open(tls) = &self.state
                && !tls.is_handshaking()
            {
                return Ok(if is_flushed {
                    Handshake::Done
                } else {
                    Handshake::WantsWrite
                });
            }
            if !is_flushed {
                return Ok(Handshake::WantsWrite);
            }
            match self.read_records(None)? {
                Read::Nothing => return Ok(Handshake::WantsRead),
                Read::End => return Err(truncated()),
                Read::InClear => return self.respond_in_plain_http(),
                Read::Some(_) => {}
            }
        }
    }

    /// Returns the negotiated application protocol (RFC 7301); `None` if there is none.
    pub(crate) fn alpn(&self) -> Option<&[u8]> {
        match &self.state {
            State::Open(tls) => tls.alpn_protocol(),
            State::Fresh(_) | State::Over => None,
        }
    }

    /// Returns the verified certificate chain of the peer as DER, the peer's own certificate first.
    pub(crate) fn peer_certificates(&self) -> Vec<Box<[u8]>> {
        let State::Open(tls) = &self.state else {
            return Vec::new();
        };
        let chain = tls.peer_certificates().unwrap_or_default();
        chain.iter().map(|der| Box::from(der.as_ref())).collect()
    }

    /// Reads plaintext; returns `None` if none is available, and `Some(0)` after the peer's
    /// `close_notify`. Unlike with a plain socket, a short read does not mean that no more data is
    /// available; only `None` does.
    ///
    /// # Errors
    ///
    /// As [`handshake`](Self::handshake); `UnexpectedEof` if the connection ends without
    /// `close_notify`, which may be a truncation attack (RFC 8446, 6.1).
    pub(crate) fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if matches!(self.state, State::Over) {
            return sys::recv(&self.socket, buffer);
        }
        if buffer.is_empty() {
            return Ok(Some(0));
        }
        let mut vain_len = 0;
        loop {
            if !self.plain.is_empty() {
                let len = self.plain.read(buffer)?;
                if self.plain.is_empty() {
                    self.plain = VecDeque::new();
                }
                return Ok(Some(len));
            }
            if self.is_ended {
                return Ok(Some(0));
            }
            let mut filled = 0;
            let read = self.read_records(Some((&mut *buffer, &mut filled)))?;
            // Send replies of rustls itself (tickets, key updates). If the socket does not accept
            // them now, they are sent before the next data.
            self.flush()?;
            if filled > 0 {
                return Ok(Some(filled));
            }
            match read {
                Read::Some(len) => vain_len += len,
                Read::Nothing => return Ok(None),
                Read::End if self.is_ended => return Ok(Some(0)),
                Read::End | Read::InClear => return Err(truncated()),
            }
            if vain_len > VAIN_LEN_MAX {
                return Err(limit_exceeded());
            }
        }
    }

    /// Accepts plaintext, encrypts and sends it; returns the number of bytes accepted, or `None` if
    /// the socket must become writable first. A piece of at most [`SEND_LEN`] bytes is accepted
    /// completely or not at all. `more`: the caller will send more bytes at once. Before and after
    /// the connection, the error is `NotConnected`.
    pub(crate) fn send(&mut self, bytes: &[u8], more: bool) -> io::Result<Option<usize>> {
        let mut taken = 0;
        while self.flush()? {
            let rest = bytes.get(taken..).unwrap_or_default();
            let piece = rest.get(..rest.len().min(SEND_LEN)).unwrap_or_default();
            if piece.is_empty() {
                return Ok(Some(taken));
            }
            self.seal(piece, more || piece.len() < rest.len())?;
            taken += piece.len();
        }
        Ok((taken > 0).then_some(taken))
    }

    /// Sends pending records; returns `true` if none remain.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while let Some(rest) = self.outgoing.get(self.outgoing_at..)
            && !rest.is_empty()
        {
            match sys::send(&self.socket, rest, false)? {
                Some(len) => self.outgoing_at += len,
                None => return Ok(false),
            }
        }
        self.outgoing = Vec::new();
        self.outgoing_at = 0;
        if self.is_shutting {
            self.is_shutting = false;
            sys::shutdown_write(&self.socket)?;
        }
        Ok(true)
    }

    /// Returns whether records wait to be sent.
    pub(crate) fn has_pending(&self) -> bool {
        self.outgoing_at < self.outgoing.len()
    }

    /// Sends `close_notify` and shuts down the writing side; the peer may still write. The caller
    /// must flush records that the socket does not accept now.
    pub(crate) fn shutdown_write(&mut self) -> io::Result<()> {
        if matches!(self.state, State::Over) {
            return Ok(());
        }
        let mut notice = [0; SEAL_OVERHEAD];
        let len = self.with_traffic(|traffic| traffic.queue_close_notify(&mut notice))?;
        let notice = notice.get(..len).unwrap_or_default();
        self.outgoing.extend_from_slice(notice);
        self.is_shutting = true;
        self.flush().map(drop)
    }

    // Methods for sending.

    fn seal(&mut self, piece: &[u8], more: bool) -> io::Result<()> {
        SCRATCH.with_borrow_mut(|scratch| {
            let output = &mut scratch.output;
            let len = self.with_traffic(|traffic| match traffic.encrypt(piece, output) {
                Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) => {
                    output.resize(required_size, 0);
                    traffic.encrypt(piece, output)
                }
                result => result,
            })?;
            // Records in `outgoing` are older, so they must be sent first.
            let mut sent = 0;
            if self.flush()? {
                while sent < len {
                    let rest = output.get(sent..len).unwrap_or_default();
                    match sys::send(&self.socket, rest, more)? {
                        Some(len) => sent += len,
                        None => break,
                    }
                }
            }
            let rest = output.get(sent..len).unwrap_or_default();
            self.outgoing.extend_from_slice(rest);
            Ok(())
        })
    }

    /// Runs an operation that rustls allows only in its traffic state.
    fn with_traffic(
        &mut self,
        work: impl FnOnce(&mut Traffic<'_>) -> Result<usize, EncryptError>,
    ) -> io::Result<usize> {
        let State::Open(tls) = &mut self.state else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let mut plain = Sink {
            room: None,
            left: &mut self.plain,
        };
        // Undecrypted records may remain from a read whose buffer was full; process them first.
        let taken = process(
            tls,
            &mut self.incoming,
            &mut self.outgoing,
            &mut plain,
            false,
        )
        .map_err(peer_error)?;
        self.incoming.drain(..taken.len);
        if self.incoming.is_empty() {
            self.incoming = Vec::new();
        }
        self.is_ended |= taken.is_ended;
        self.has_records = false;
        match tls.process_tls_records(&mut self.incoming).state {
            Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                work(&mut traffic).map_err(io::Error::other)
            }
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    // Methods for receiving.

    /// Decrypts stored records if any may be complete; otherwise reads from the socket once.
    fn read_records(&mut self, room: Room<'_>) -> io::Result<Read> {
        SCRATCH.with_borrow_mut(|scratch| {
            let input = &mut scratch.input;
            let kept = self.incoming.len();
            if let Some(start) = input.get_mut(..kept) {
                start.copy_from_slice(&self.incoming);
            }
            // Read no more ciphertext than the caller's buffer can hold as plaintext, but at least
            // one record.
            let want = room.as_ref().map_or(READ_LEN, |(buffer, _)| buffer.len());
            let want = want.clamp(RECORD_LEN_MAX, READ_LEN);
            let Some(space) = input.get_mut(kept..kept + want) else {
                return Err(limit_exceeded());
            };
            let len = if self.has_records {
                0
            } else {
                match sys::recv(&self.socket, space)? {
                    None => return Ok(Read::Nothing),
                    Some(0) => return Ok(Read::End),
                    Some(len) => len,
                }
            };
            if let State::Fresh(config) = &self.state {
                if space.first() != Some(&HANDSHAKE_RECORD) {
                    return match space.first() {
                        Some(first) if first.is_ascii_uppercase() => Ok(Read::InClear),
                        _ => Err(peer_error(rustls::Error::InappropriateMessage {
                            expect_types: vec![rustls::ContentType::Handshake],
                            got_type: space.first().copied().unwrap_or(0).into(),
                        })),
                    };
                }
                let tls = UnbufferedServerConnection::new(Arc::clone(config));
                self.state = State::Open(Box::new(tls.map_err(io::Error::other)?));
            }
            let State::Open(tls) = &mut self.state else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            let input = input.get_mut(..kept + len).unwrap_or_default();
            let mut plain = Sink {
                room,
                left: &mut self.plain,
            };
            let processed = process(tls, input, &mut self.outgoing, &mut plain, true);
            let taken = match processed {
                Ok(taken) => taken,
                Err(error) => {
                    // Send the alert that names the error, as far as possible without waiting for
                    // the peer.
                    drop(self.flush());
                    return Err(peer_error(error));
                }
            };
            self.is_ended |= taken.is_ended;
            self.has_records = !taken.is_dry;
            let rest = input.get(taken.len..).unwrap_or_default();
            if rest.len() > INCOMING_LEN_MAX || self.outgoing.len() > OUTGOING_LEN_MAX {
                return Err(limit_exceeded());
            }
            self.incoming = if self.is_ended {
                Vec::new()
            } else {
                rest.to_vec()
            };
            Ok(Read::Some(taken.len))
        })
    }

    /// Responds to plain HTTP on the TLS port with a readable error.
    fn respond_in_plain_http(&mut self) -> io::Result<Handshake> {
        self.state = State::Over;
        // Best effort: the buffer of a new socket has space for this response.
        sys::send(&self.socket, IN_CLEAR, false)?;
        sys::shutdown_write(&self.socket)?;
        Ok(Handshake::Over)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("socket", &self.socket)
            .field("is_ended", &self.is_ended)
            .finish_non_exhaustive()
    }
}

type Traffic<'a> = rustls::unbuffered::WriteTraffic<'a, rustls::server::ServerConnectionData>;

/// Result of a read.
enum Read {
    /// Number of ciphertext bytes processed.
    Some(usize),
    Nothing,
    End,
    InClear,
}

/// The caller's buffer for plaintext, and the length of its filled part; `None` if the caller wants
/// no plaintext.
type Room<'a> = Option<(&'a mut [u8], &'a mut usize)>;

/// Destination of plaintext: the caller's buffer first, then `plain`.
struct Sink<'a, 'b> {
    room: Room<'b>,
    left: &'a mut VecDeque<u8>,
}

impl Sink<'_, '_> {
    fn put(&mut self, mut bytes: &[u8]) {
        if let Some((buffer, filled)) = &mut self.room
            && self.left.is_empty()
        {
            let room = buffer.get_mut(**filled..).unwrap_or_default();
            let (now, later) = bytes.split_at(bytes.len().min(room.len()));
            if let Some(room) = room.get_mut(..now.len()) {
                room.copy_from_slice(now);
            }
            **filled += now.len();
            bytes = later;
        }
        self.left.extend(bytes);
    }

    fn is_full(&self) -> bool {
        !self.left.is_empty()
    }
}

struct Taken {
    /// Number of input bytes processed.
    len: usize,
    is_ended: bool,
    /// Whether rustls needs more input.
    is_dry: bool,
}

/// Passes `input` to rustls until it needs more input, the plaintext buffers are full, or an error
/// occurs.
fn process(
    tls: &mut UnbufferedServerConnection,
    input: &mut [u8],
    outgoing: &mut Vec<u8>,
    plain: &mut Sink<'_, '_>,
    stops_when_full: bool,
) -> Result<Taken, rustls::Error> {
    let mut taken = Taken {
        len: 0,
        is_ended: false,
        is_dry: false,
    };
    loop {
        let status = tls.process_tls_records(input.get_mut(taken.len..).unwrap_or_default());
        let mut discard = status.discard;
        match status.state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    plain.put(record.payload);
                }
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                append(outgoing, |room| data.encode(room));
            }
            // The record was already appended to `outgoing`, which is sent in order, so nothing is
            // left to do.
            Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
            Ok(ConnectionState::PeerClosed) => taken.is_ended = true,
            Ok(_) => taken.is_dry = true,
            Err(error) => {
                // Take the alert, the last record to be sent, out of rustls, which reads no more
                // input until the alert has been taken.
                while tls.wants_write()
                    && let status =
                        tls.process_tls_records(input.get_mut(taken.len..).unwrap_or_default())
                    && let Ok(ConnectionState::EncodeTlsData(mut data)) = status.state
                {
                    append(outgoing, |room| data.encode(room));
                }
                return Err(error);
            }
        }
        taken.len += discard;
        if taken.is_dry || (stops_when_full && plain.is_full()) {
            return Ok(taken);
        }
    }
}

/// Lets rustls append a record to `outgoing`.
fn append(outgoing: &mut Vec<u8>, mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>) {
    let start = outgoing.len();
    if let Err(EncodeError::InsufficientSize(needed)) = encode(&mut []) {
        outgoing.resize(start + needed.required_size, 0);
        let written = encode(outgoing.get_mut(start..).unwrap_or_default());
        outgoing.truncate(start + written.unwrap_or(0));
    }
}

fn peer_error(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn truncated() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "connection ended without close_notify",
    )
}

fn limit_exceeded() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "peer sent too much TLS data without content, or did not read the replies to it",
    )
}

mod lasting;
#[cfg(test)]
mod tests;
