//! Helpers for testing any server against the requirements of the RFCs.
//!
//! [`send`] writes bytes unchanged and returns everything that was received. Nothing here depends
//! on the server under test; see README.md for how to select one.

#![forbid(unsafe_code)]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use testkit::http1::{Decoder, Event};

/// Maximum time to wait for a server that sends nothing. Only failing tests wait this long.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A response, as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Status line and header lines, including the empty line.
    pub head: Vec<u8>,
    /// Content, without the framing of chunks.
    pub body: Vec<u8>,
}

impl Answer {
    /// Returns the value, in lower case, of the first field with this name, given in lower case.
    pub fn header(&self, name: &str) -> Option<String> {
        let head = String::from_utf8_lossy(&self.head).to_lowercase();
        head.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            (field == name).then(|| value.trim().to_owned())
        })
    }
}

/// The way in which a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The server closed the connection.
    Closed,
    /// The server reset the connection, possibly after sending responses.
    Reset,
    /// The server left the connection open and sent nothing further.
    Open,
    /// The received bytes are not HTTP, or incomplete.
    Broken,
}

/// Everything that was received on a connection.
#[derive(Debug)]
pub struct Outcome {
    /// Responses in order, including interim ones.
    pub answers: Vec<Answer>,
    /// The way in which the connection ended after these responses.
    pub end: End,
}

impl Outcome {
    /// Returns the status codes in order.
    pub fn statuses(&self) -> Vec<u16> {
        self.answers.iter().map(|answer| answer.status).collect()
    }

    /// Returns whether the server sent a single refusal and then ended the connection.
    pub fn is_refused(&self) -> bool {
        let [answer] = &self.answers[..] else {
            return false;
        };
        (400..=599).contains(&answer.status) && matches!(self.end, End::Closed | End::Reset)
    }
}

/// Sends bytes on a new connection and reads until it ends. With `half_close`, shuts down the
/// sending direction afterwards. With `is_head`, expects responses without content.
pub fn send(addr: SocketAddr, bytes: &[u8], half_close: bool, is_head: bool) -> Outcome {
    let (received, end) = exchange(addr, bytes, half_close).unwrap_or((Vec::new(), End::Reset));
    let (answers, is_whole) = decode(&received, is_head);
    let end = if is_whole { end } else { End::Broken };
    Outcome { answers, end }
}

fn exchange(addr: SocketAddr, bytes: &[u8], half_close: bool) -> std::io::Result<(Vec<u8>, End)> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    // The server may refuse, close and reset before it has read everything.
    let is_written = stream.write_all(bytes).is_ok();
    if half_close && is_written {
        drop(stream.shutdown(std::net::Shutdown::Write));
    }
    let (mut received, mut piece) = (Vec::new(), [0; 65536]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Ok((received, End::Closed)),
            Ok(len) => received.extend_from_slice(piece.get(..len).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Ok((received, End::Open));
            }
            Err(_) => return Ok((received, End::Reset)),
        }
    }
}

/// Decodes all responses; returns also whether the last one is complete.
fn decode(mut bytes: &[u8], is_head: bool) -> (Vec<Answer>, bool) {
    let (mut decoder, mut answers, mut body) = (Decoder::default(), Vec::new(), Vec::new());
    decoder.set_to_head(is_head);
    loop {
        let is_over = match decoder.next(&mut bytes) {
            Ok(Some(Event::Head)) => continue,
            Ok(Some(Event::Content(content))) => {
                body.extend_from_slice(content);
                continue;
            }
            Ok(Some(Event::End)) => None,
            Ok(None) => Some(decoder.finish()),
            Err(malformed) => Some(Err(malformed)),
        };
        if matches!(is_over, None | Some(Ok(true))) {
            answers.push(Answer {
                status: decoder.head().status,
                head: decoder.head().bytes.clone(),
                body: std::mem::take(&mut body),
            });
        }
        if let Some(end) = is_over {
            return (answers, end.is_ok());
        }
    }
}
