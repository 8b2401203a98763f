//! Reading from many connections before the first is answered.
//!
//! What a service finds out for one request holds for every other that was read before it did so;
//! that is a [`Turn`](crate::Turn). So connections that have something to read are read one after
//! the other, close together into one buffer, and then answered, all in one turn. A service that
//! has to look whether what it knows is still the truth looks once for all of them.

use super::conn::Conn;
use super::link::Link;
use super::slab::Key;
use super::sys::Edges;
use super::thread::IoThread;
use crate::proto::conn::Phase;
use crate::service::Service;

/// Room for what is read, in bytes.
const BUFFER_LEN: usize = 64 * 1024;
/// Connections read before they are answered. More would gain next to nothing, and the first of
/// them waits for the last.
const ARRIVALS_MAX: usize = 32;
/// The least room for one more read, in bytes; with less, what was read is answered first.
const ROOM_LEN_MIN: usize = 16 * 1024;

/// What was read and is not answered yet.
#[derive(Debug)]
pub(super) struct Gathered {
    buffer: Box<[u8]>,
    filled: usize,
    arrivals: Vec<Arrival>,
}

/// A connection and the end of its bytes in the buffer. They begin where those before it end.
#[derive(Debug)]
struct Arrival {
    conn: Box<Conn>,
    end: usize,
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

impl<S: Service> IoThread<S> {
    /// Reads from a connection that waits for a request. `false`: it is none, and its event is to
    /// be dealt with otherwise.
    pub(super) fn gather(&mut self, key: Key, edges: Edges) -> bool {
        if !edges.readable || !self.slab.peek(key).is_some_and(is_between_requests) {
            return false;
        }
        if self.gathered.arrivals.len() >= ARRIVALS_MAX
            || BUFFER_LEN - self.gathered.filled < ROOM_LEN_MIN
        {
            self.answer_gathered();
        }
        let Some(Link::Http1(mut conn)) = self.slab.take(key) else {
            return false;
        };
        conn.note(edges);
        let gathered = &mut self.gathered;
        let room = gathered.buffer.get_mut(gathered.filled..);
        match conn.read(room.unwrap_or_default()) {
            Ok(Some(len)) if len > 0 => {
                gathered.filled += len;
                let end = gathered.filled;
                gathered.arrivals.push(Arrival { conn, end });
            }
            outcome => {
                let next = self.on_nothing(&mut conn, outcome);
                self.settle(conn, next);
            }
        }
        true
    }

    /// Answers what was gathered.
    pub(super) fn answer_gathered(&mut self) {
        if self.gathered.arrivals.is_empty() {
            return;
        }
        self.turn += 1;
        let buffer = std::mem::take(&mut self.gathered.buffer);
        let mut arrivals = std::mem::take(&mut self.gathered.arrivals);
        let mut start = 0;
        for Arrival { mut conn, end } in arrivals.drain(..) {
            let bytes = buffer.get(start..end).unwrap_or_default();
            self.guarded(Some(conn.key), |thread| {
                let next = thread.serve_read(&mut conn, bytes);
                thread.settle(conn, next);
            });
            start = end;
        }
        self.gathered = Gathered {
            buffer,
            filled: 0,
            arrivals,
        };
    }
}

fn is_between_requests(link: &Link) -> bool {
    match link {
        Link::Http1(conn) => {
            conn.transport.plain().is_some()
                && conn.proto.phase() == Phase::Head
                && conn.input.is_empty()
                && conn.upgrade.is_none()
                && !(conn.is_lingering || conn.is_sending())
        }
        Link::Ws(_) => false,
        #[cfg(feature = "http2")]
        Link::H2(_) => false,
    }
}
