//! One connection to the server.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::fleet::Ask;
use crate::response::{Complete, Response};

/// What a connection is doing.
#[derive(Debug, Default)]
pub(crate) enum State {
    #[default]
    Closed,
    /// Since then.
    Opening(TcpStream, Duration),
    Free(TcpStream),
    Busy(TcpStream, Ask, Duration),
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// Nothing yet.
    Nothing,
    Answered(Complete),
    Malformed,
    /// Unasked, the server said that it has no place for this connection.
    TurnedAway,
    /// The server closed it.
    Closed,
}

/// A connection that is opened again and again.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) state: State,
    /// What is left of a request to write.
    pub(crate) request: Vec<u8>,
    pub(crate) response: Response,
}

impl Connection {
    /// Writes what there is room for. True if something is left.
    pub(crate) fn write(&mut self) -> std::io::Result<bool> {
        let State::Busy(stream, ..) = &mut self.state else {
            return Ok(false);
        };
        while !self.request.is_empty() {
            match stream.write(&self.request) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => drop(self.request.drain(..len)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Reads what is there, with `piece` to read into.
    pub(crate) fn read(&mut self, piece: &mut [u8]) -> Event {
        let (stream, keeps_body) = match &mut self.state {
            State::Busy(stream, ask, _) => (stream, Some(ask.wants_body)),
            State::Free(stream) => (stream, None),
            State::Closed | State::Opening(..) => return Event::Nothing,
        };
        loop {
            let len = match stream.read(piece) {
                Ok(0) => return Event::Closed,
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Event::Nothing,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Event::Closed,
            };
            let bytes = piece.get(..len).unwrap_or_default();
            let Some(keeps_body) = keeps_body else {
                return unasked(bytes);
            };
            match self.response.feed(bytes, keeps_body) {
                Ok(Some(complete)) => return Event::Answered(complete),
                Err(_) => return Event::Malformed,
                // There would be more only if the buffer was too small for it.
                Ok(None) if len < piece.len() => return Event::Nothing,
                Ok(None) => {}
            }
        }
    }
}

/// What it means that a server says something of its own accord.
fn unasked(bytes: &[u8]) -> Event {
    match bytes.get(..12) {
        Some(b"HTTP/1.1 503") => Event::TurnedAway,
        // It has waited long enough for a request.
        Some(b"HTTP/1.1 408") => Event::Closed,
        _ => Event::Malformed,
    }
}
