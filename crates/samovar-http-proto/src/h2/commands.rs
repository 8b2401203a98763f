//! Methods of a session for its streams.

use bytes::Bytes;

use super::ErrorCode;
use super::head;
use super::session::{Event, Session, State, Stream};
use crate::http::Status;

/// Maximum length of a piece that is passed to `h2` regardless of the peer's windows, in bytes.
const DIRECT_LEN_MAX: usize = 4 * 1024;

/// A response head for HTTP/2.
#[derive(Debug)]
pub struct ResponseHead(::http::Response<()>);

impl ResponseHead {
    /// Parses field lines as rendered for HTTP/1.1, ending in CRLF; a status line and an empty line
    /// are ignored. Connection-specific fields are omitted.
    pub fn read(status: Status, text: &[u8]) -> Self {
        Self(head::response(status.code(), text))
    }
}

impl<T: Default> Session<T> {
    /// Returns the data that the caller has attached to a stream; `None` if the stream has ended.
    pub fn data(&mut self, stream: u32) -> Option<&mut T> {
        Some(&mut self.streams.find(stream)?.data)
    }

    /// Iterates over the open streams and the data attached to each.
    pub fn streams(&self) -> impl Iterator<Item = (u32, &T)> {
        self.streams.iter().map(|(id, entry)| (id, &entry.data))
    }

    /// Returns the number of open streams.
    pub fn stream_count(&self) -> usize {
        self.streams.count()
    }

    /// Returns the number of response body bytes written to the output so far; 0 if the stream has
    /// ended.
    pub fn sent_len(&self, stream: u32) -> u64 {
        self.streams.peek(stream).map_or(0, |entry| entry.sent_len)
    }

    /// Starts or pauses the events of a request body. A new stream is paused.
    pub fn read(&mut self, stream: u32, is_reading: bool) {
        if let Some(entry) = self.streams.find(stream) {
            entry.is_reading = is_reading;
            if is_reading {
                self.mark_data_changed();
            }
        }
    }

    /// Returns `len` bytes of flow-control window to the peer, after the caller has processed as
    /// many bytes of the request body.
    pub fn release(&mut self, stream: u32, len: usize) {
        if let Some(body) = self
            .streams
            .find(stream)
            .and_then(|entry| entry.body.as_mut())
        {
            // Fails only if more is released than was received, which the caller does not do.
            drop(body.flow_control().release_capacity(len));
        }
    }

    /// Sends an interim response before the final one. `fields`: field lines as rendered for
    /// HTTP/1.1. `100 Continue` asks the client for the request body (RFC 9110, 10.1.1).
    pub fn inform(&mut self, stream: u32, status: Status, fields: &[u8]) {
        if let Some(entry) = self.streams.find(stream) {
            let head = head::response(status.code(), fields);
            if entry.respond.send_informational(head).is_err() {
                self.changes.reset = true;
            }
        }
    }

    /// Sends the response head. With `is_end` the response has no body; otherwise
    /// [`send`](Self::send) must follow.
    pub fn respond(&mut self, stream: u32, head: ResponseHead, is_end: bool) {
        let Some(entry) = self.streams.find(stream) else {
            return;
        };
        match entry.respond.send_response(head.0, is_end) {
            Ok(send) => entry.send = Some(send),
            Err(_) => self.changes.reset = true,
        }
    }

    /// Sends the next piece of the response body; `is_last` marks the last piece. Wait for
    /// [`Event::Drained`] before sending another.
    pub fn send(&mut self, stream: u32, bytes: Bytes, is_last: bool) {
        let Some(entry) = self.streams.find(stream) else {
            return;
        };
        let was_pending = entry.is_pending();
        let is_direct = is_last && !was_pending && bytes.len() <= DIRECT_LEN_MAX;
        entry.is_last = is_last;
        if let (true, Some(send)) = (is_direct, &mut entry.send) {
            if send.send_data(bytes, true).is_err() {
                self.changes.reset = true;
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

    /// Resets a stream; returns the data attached to it, or `None` if the stream had already ended.
    pub fn reset(&mut self, stream: u32, code: ErrorCode) -> Option<T> {
        self.streams.find(stream)?.respond.send_reset(code);
        self.forget(stream)
    }

    /// Shuts down gracefully: accepts no new streams, finishes the open ones, then closes. Sends
    /// two GOAWAY frames, the second after the peer has seen the first, so that no request is lost
    /// (RFC 9113, 6.8).
    pub fn go_away(&mut self) {
        match &mut self.state {
            State::Open(connection) => connection.graceful_shutdown(),
            State::Handshake(_) => self.close(),
            State::Closed => {}
        }
    }

    /// Ends the connection and all streams, with a GOAWAY that has this code. A peer whose preface
    /// is incomplete gets none.
    pub fn abort(&mut self, code: ErrorCode) {
        self.open();
        match &mut self.state {
            State::Open(connection) => {
                connection.abrupt_shutdown(code);
                self.changes.reset = true;
                self.must_write = true;
            }
            State::Handshake(_) => self.close(),
            State::Closed => {}
        }
    }

    /// Passes as many pending bytes to `h2` as the peer's windows allow; returns `false` if it
    /// could pass none.
    pub(super) fn push_all(&mut self) -> bool {
        let mut has_pushed = false;
        let mut slot = 0;
        while self.pending_count > 0 && slot < self.streams.slot_count() {
            if let Some((stream, entry)) = self.streams.at(slot)
                && entry.is_pending()
            {
                has_pushed |= self.push(stream);
            }
            slot += 1;
        }
        has_pushed
    }

    fn push(&mut self, stream: u32) -> bool {
        let Some(entry) = self.streams.find(stream) else {
            return false;
        };
        let has_pushed = entry.push().unwrap_or_else(|_error| {
            // The stream was reset; the next poll reports that.
            self.changes.reset = true;
            entry.pending = Bytes::new();
            true
        });
        if !entry.is_pending() {
            self.pending_count -= 1;
            if !entry.is_last {
                self.events.push_back(Event::Drained(stream));
            }
        }
        has_pushed
    }
}

impl<T> Stream<T> {
    /// Returns whether a stream has response bytes that were not passed to `h2` yet.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    fn push(&mut self) -> Result<bool, ::h2::Error> {
        let Some(send) = &mut self.send else {
            return Ok(false);
        };
        let len = send.capacity().min(self.pending.len());
        if len > 0 {
            let piece = self.pending.split_to(len);
            let is_end = self.is_last && self.pending.is_empty();
            send.send_data(piece, is_end)?;
        }
        Ok(len > 0)
    }
}
