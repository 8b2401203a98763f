//! Connections read together before the first one is answered.
//!
//! If a service finds its data current for one request, the data is current for all requests that
//! were read before; such a batch is a [`Turn`](crate::Turn). So readable connections are read one
//! after the other into one buffer and then answered in one turn, and a service that must check
//! whether its data is current checks once for all of them.

use std::io;

use super::conn::Conn;
use super::link::Link;
use super::stage::Stage;
use crate::proto::conn::Phase;

/// Capacity of the buffer, in bytes.
const BUFFER_LEN: usize = 64 * 1024;
/// Connections read before they are answered. More would gain next to nothing, and the first of
/// them waits for the last.
const ARRIVALS_MAX: usize = 32;
/// The least capacity for one more read, in bytes; with less, what was read is answered first.
const CAPACITY_LEN_MIN: usize = 16 * 1024;

/// Bytes that were read and are not answered yet.
#[derive(Debug)]
pub(super) struct Gathered {
    /// Empty while its requests are answered.
    buffer: Box<[u8]>,
    /// Invariant: at most the length of the buffer.
    filled: usize,
    arrivals: Vec<Arrival>,
}

/// A connection and the end of its bytes in the buffer. They begin where the previous ones end.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) conn: Box<Conn>,
    pub(super) end: usize,
}

impl Default for Gathered {
    fn default() -> Self {
        Self {
            buffer: vec![0; BUFFER_LEN].into_boxed_slice(),
            filled: 0,
            arrivals: Vec::new(),
        }
    }
}

impl Gathered {
    pub(super) fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Whether there is no capacity for another read.
    pub(super) fn is_full(&self) -> bool {
        self.arrivals.len() >= ARRIVALS_MAX || BUFFER_LEN - self.filled < CAPACITY_LEN_MIN
    }

    /// Reads from a connection and stores it; returns it if there was nothing to read.
    pub(super) fn read(
        &mut self,
        mut conn: Box<Conn>,
    ) -> Result<(), (Box<Conn>, io::Result<Option<usize>>)> {
        match conn.read(&mut self.buffer[self.filled..]) {
            Ok(Some(len)) if len > 0 => {
                self.filled += len;
                let end = self.filled;
                self.arrivals.push(Arrival { conn, end });
                Ok(())
            }
            outcome => Err((conn, outcome)),
        }
    }

    /// Takes the buffer and the arrivals; [`reuse`](Self::reuse) puts them back.
    pub(super) fn take(&mut self) -> (Box<[u8]>, Vec<Arrival>) {
        (
            std::mem::take(&mut self.buffer),
            std::mem::take(&mut self.arrivals),
        )
    }

    pub(super) fn reuse(&mut self, buffer: Box<[u8]>, arrivals: Vec<Arrival>) {
        *self = Self {
            buffer,
            filled: 0,
            arrivals,
        };
    }
}

/// Whether a connection waits for a request, with nothing to send.
pub(super) fn is_between_requests(link: &Link) -> bool {
    match link {
        Link::Http1(conn) => {
            conn.transport.plain().is_some()
                && conn.proto.phase() == Phase::Head
                && conn.input.is_empty()
                && conn.upgrade.is_none()
                && conn.stage() == Stage::Receiving
                && !conn.is_sending()
        }
        _ => false,
    }
}
