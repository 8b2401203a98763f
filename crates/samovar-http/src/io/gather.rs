//! Reads several connections into one buffer before the thread responds to the first.
//!
//! All requests read together form one [`Turn`](crate::Turn), for which a service needs to check
//! only once that its data is current.

use std::io;

use super::link::Link;
use crate::conn::{Conn, Stage};
use crate::proto::conn::Phase;

/// Capacity of the buffer, in bytes.
const BUFFER_LEN: usize = 64 * 1024;
/// Maximum number of connections that are read before the thread responds. More would gain almost
/// nothing, and the first would wait for the last.
const ARRIVALS_MAX: usize = 32;
/// Minimum free capacity for another read, in bytes. With less, the thread first responds to the
/// requests already read.
const CAPACITY_LEN_MIN: usize = 16 * 1024;

/// Bytes of requests that were read but have no response yet.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// The buffer that all gathered connections share; empty before the first read, and while their
    /// requests are processed.
    buffer: Box<[u8]>,
    /// Number of filled bytes. Invariant: at most the length of the buffer.
    filled: usize,
    arrivals: Vec<Arrival>,
}

/// A connection that was read, and the end of its bytes in the buffer. Its bytes start where those
/// of the previous arrival end.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) conn: Box<Conn>,
    pub(super) end: usize,
}

impl Gathered {
    pub(super) fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Returns whether no further connection may be read before the thread responds.
    pub(super) fn is_full(&self) -> bool {
        self.arrivals.len() >= ARRIVALS_MAX || BUFFER_LEN - self.filled < CAPACITY_LEN_MIN
    }

    /// Reads from a connection and stores the connection with its bytes. Returns the connection if
    /// no bytes were read.
    pub(super) fn read(
        &mut self,
        mut conn: Box<Conn>,
    ) -> Result<(), (Box<Conn>, io::Result<Option<usize>>)> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER_LEN].into_boxed_slice();
        }
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

    /// Takes the buffer and the arrivals; [`reuse`](Self::reuse) returns the memory.
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

/// Returns whether a connection waits for a request and has nothing to send.
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
