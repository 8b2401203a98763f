//! A connection to the server, and its state.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::fleet::Ask;
use crate::response::{Complete, Response};

/// State of a connection.
#[derive(Debug, Default)]
pub(crate) enum State {
    #[default]
    Closed,
    /// The TCP connection is being established, since this time.
    Opening(TcpStream, Duration),
    Free(TcpStream),
    Busy(TcpStream, Ask, Duration),
}

/// Result of reading from a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The response is not complete yet.
    Nothing,
    Answered(Complete),
    Malformed,
    /// The server has sent 503 before any request, because it has reached its connection limit.
    TurnedAway,
    /// The server has closed the connection.
    Closed,
}

/// A connection that is reopened whenever it is lost.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) state: State,
    /// Rest of the request that is not written yet.
    pub(crate) request: Vec<u8>,
    pub(crate) response: Response,
}

impl Connection {
    /// Writes as much of the request as the socket accepts. Returns whether some of it is left.
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

    /// Reads the available bytes into `piece` and decodes them.
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
                // A read shorter than the buffer has emptied the socket.
                Ok(None) if len < piece.len() => return Event::Nothing,
                Ok(None) => {}
            }
        }
    }
}

/// Interprets bytes that arrive without a request.
fn unasked(bytes: &[u8]) -> Event {
    match bytes.get(..12) {
        Some(b"HTTP/1.1 503") => Event::TurnedAway,
        // The server closes idle connections with 408.
        Some(b"HTTP/1.1 408") => Event::Closed,
        _ => Event::Malformed,
    }
}
