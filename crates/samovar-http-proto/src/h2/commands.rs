//! What the caller of a session can do with its streams.

use bytes::Bytes;

use super::error_code::ErrorCode;
use super::head;
use super::session::{Event, Session, State, Stream};
use crate::http::Status;

/// Bodies up to this length go to `h2` at once, whatever the peer's windows.
const DIRECT_LEN_MAX: usize = 4 * 1024;

/// A response head in the words of HTTP/2.
#[derive(Debug)]
pub struct ResponseHead(::http::Response<()>);

impl ResponseHead {
    /// Reads a head as it is rendered for HTTP/1.1, field lines that end in CRLF; a status line
    /// and an empty line may be there too. Fields that belong to a connection are left out.
    pub fn read(status: Status, text: &[u8]) -> Self {
        Self(head::response(status.code(), text))
    }
}

impl<T: Default> Session<T> {
    /// What the caller keeps with a stream.
    pub fn data(&mut self, stream: u32) -> Option<&mut T> {
        Some(&mut self.streams.find(stream)?.data)
    }

    /// Streams, with what the caller keeps with each.
    pub fn streams(&self) -> impl Iterator<Item = (u32, &T)> {
        self.streams.iter().map(|(id, entry)| (id, &entry.data))
    }

    /// Streams under way.
    pub fn stream_count(&self) -> usize {
        self.streams.count()
    }

    /// Bytes of an answer's body that have been output so far.
    pub fn sent_len(&self, stream: u32) -> u64 {
        self.streams.peek(stream).map_or(0, |entry| entry.sent_len)
    }

    /// Lets a request's body come, or holds it back. It is held back at first.
    pub fn read(&mut self, stream: u32, is_reading: bool) {
        if let Some(entry) = self.streams.find(stream) {
            entry.is_reading = is_reading;
            if is_reading {
                self.look_for_data();
            }
        }
    }

    /// `len` bytes of a request's body are done with: the peer may send as many more.
    pub fn release(&mut self, stream: u32, len: usize) {
        if let Some(body) = self
            .streams
            .find(stream)
            .and_then(|entry| entry.body.as_mut())
        {
            // It can only be more than was handed out, which it is not.
            drop(body.flow_control().release_capacity(len));
        }
    }

    /// Sends an interim response with this status, 100 to 199, before the final one.
    pub fn inform(&mut self, stream: u32, status: u16, fields: &[u8]) {
        if let Some(entry) = self.streams.find(stream) {
            let head = head::response(status, fields);
            if entry.respond.send_informational(head).is_err() {
                self.news.reset = true;
            }
        }
    }

    /// Sends the head of the answer. With `is_end` it is all of it; otherwise
    /// [`send`](Self::send) is to follow.
    pub fn respond(&mut self, stream: u32, head: ResponseHead, is_end: bool) {
        let Some(entry) = self.streams.find(stream) else {
            return;
        };
        match entry.respond.send_response(head.0, is_end) {
            Ok(send) => entry.send = Some(send),
            Err(_) => self.news.reset = true,
        }
    }

    /// Sends the next piece of the answer's body; with `is_last`, the last. One piece at a time:
    /// the next is due when [`Event::Drained`] says so.
    pub fn send(&mut self, stream: u32, bytes: Bytes, is_last: bool) {
        let Some(entry) = self.streams.find(stream) else {
            return;
        };
        let was_pending = entry.is_pending();
        let is_direct = is_last && !was_pending && bytes.len() <= DIRECT_LEN_MAX;
        entry.is_last = is_last;
        if let (true, Some(send)) = (is_direct, &mut entry.send) {
            if send.send_data(bytes, true).is_err() {
                self.news.reset = true;
            }
            return;
        }
        if let Some(send) = &mut entry.send {
            send.reserve_capacity(bytes.len());
        }
        entry.pending = bytes;
        if !was_pending {
            self.pending_count += 1;
        }
        self.push(stream);
    }

    /// Ends the answer behind what was sent with trailers, given as field lines.
    pub fn send_trailers(&mut self, stream: u32, fields: &[u8]) {
        let Some(entry) = self.streams.find(stream) else {
            return;
        };
        let was_pending = entry.is_pending();
        entry.is_last = true;
        entry.trailers = Some(head::read_fields(fields));
        if !was_pending {
            self.pending_count += 1;
        }
        self.push(stream);
    }

    /// Gives a stream up; returns what was kept with it.
    pub fn reset(&mut self, stream: u32, code: ErrorCode) -> Option<T> {
        self.streams.find(stream)?.respond.send_reset(code.into());
        self.forget(stream)
    }

    /// Takes no new streams, finishes those under way, then closes. The peer is told twice, once at
    /// once and once when it has heard that, so that no request of it is lost (RFC 9113, 6.8).
    pub fn go_away(&mut self) {
        match &mut self.state {
            State::Open(connection) => connection.graceful_shutdown(),
            State::Handshake(_) => self.close(),
            State::Closed => {}
        }
    }

    /// Ends the connection and all its streams.
    pub fn abort(&mut self, code: ErrorCode) {
        match &mut self.state {
            State::Open(connection) => {
                connection.abrupt_shutdown(code.into());
                self.news.reset = true;
                self.must_write = true;
            }
            State::Handshake(_) => self.close(),
            State::Closed => {}
        }
    }

    /// Hands over what the peer's windows allow; `false` if that is nothing.
    pub(super) fn push_all(&mut self) -> bool {
        let mut has_pushed = false;
        let mut place = 0;
        while self.pending_count > 0 && place < self.streams.place_count() {
            if let Some((stream, entry)) = self.streams.at(place)
                && entry.is_pending()
            {
                has_pushed |= self.push(stream);
            }
            place += 1;
        }
        has_pushed
    }

    fn push(&mut self, stream: u32) -> bool {
        let Some(entry) = self.streams.find(stream) else {
            return false;
        };
        let has_pushed = entry.push().unwrap_or_else(|_error| {
            // It was reset, and the next look at it tells so.
            self.news.reset = true;
            entry.drop_pending();
            true
        });
        if !entry.is_pending() {
            self.pending_count -= 1;
            if !entry.is_last {
                self.events.push_back(Event::Drained { stream });
            }
        }
        has_pushed
    }
}

impl<T> Stream<T> {
    /// Something of its answer is not with `h2`.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty() || self.trailers.is_some()
    }

    fn drop_pending(&mut self) {
        self.pending = Bytes::new();
        self.trailers = None;
    }

    fn push(&mut self) -> Result<bool, ::h2::Error> {
        let Some(send) = &mut self.send else {
            return Ok(false);
        };
        let len = send.capacity().min(self.pending.len());
        if len > 0 {
            let piece = self.pending.split_to(len);
            let is_end = self.is_last && self.pending.is_empty() && self.trailers.is_none();
            send.send_data(piece, is_end)?;
        }
        if self.pending.is_empty()
            && let Some(trailers) = self.trailers.take()
        {
            send.send_trailers(trailers)?;
            return Ok(true);
        }
        Ok(len > 0)
    }
}
