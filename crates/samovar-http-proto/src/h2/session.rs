//! An HTTP/2 connection and its streams.
//!
//! # Theory of operation
//!
//! ```text
//!   bytes ─ receive ─▶ │ frames counted │ pipe │ h2 │ ─ poll ─▶ events
//!   bytes ◀─ output ── │ frames counted │ pipe │ h2 │ ◀─ inform, respond, send, reset
//! ```
//!
//! * Pass received bytes to [`Session::receive`], call [`Session::poll`] until it returns `None`,
//!   then send the bytes of [`Session::take_output`]. Commands may be called between these steps,
//!   and take effect with the next `poll`.
//! * A stream exists from [`Event::Request`] to [`Event::Sent`] or [`Event::Reset`], or until it is
//!   [`reset`](Session::reset). Its number is never reused. Commands for a stream that has ended do
//!   nothing, so callers need not track what the peer does meanwhile.
//! * A request body produces events only while [`read`](Session::read) is on, and the peer may send
//!   more only after received bytes were [`released`](Session::release).
//! * The session buffers one piece of each response body. [`Event::Drained`] requests the next when
//!   `h2` has taken the whole piece; `h2` takes as much as the peer's windows and its own small
//!   buffer allow. So a stream uses the memory of one piece and that buffer, however slow the peer.
//! * Once [`Session::is_closed`] returns `true`, no output follows what is buffered.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use ::h2::server::{Builder, Connection, Handshake, SendResponse};
use ::h2::{RecvStream, SendStream};
use ::http::Request;
use bytes::Bytes;

use super::abuse::{Abuse, Budget};
use super::frames::{self, Scanner};
use super::head::{self, HeadError};
use super::pipe::Pipe;
use super::table::Table;
use super::{ErrorCode, PREFACE};
use crate::h1::Refusal;
use crate::h1::head::{HeadIndex, HeadLimits};

/// An event of a connection. Streams are identified by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new request. [`Session::head`] returns its head until the next call of `poll`. With
    /// `is_end` the request has no body, and no [`End`](Self::End) follows.
    Request {
        /// Number of the request's stream.
        stream: u32,
        /// Whether the request is complete, because it has no body.
        is_end: bool,
    },
    /// A refused request, reported without its head. The caller may respond, and must not wait for
    /// a body.
    Refused {
        /// Number of the request's stream.
        stream: u32,
        /// Whether the method is HEAD, so that the response has no body.
        is_head: bool,
        /// The reason, which determines the status of the response.
        refusal: Refusal,
    },
    /// Bytes of a request body; never empty.
    Data(u32, Bytes),
    /// End of a request body; the request is complete.
    End(u32),
    /// `h2` has taken all bytes of the latest [`Session::send`]; the caller can send the next
    /// piece.
    Drained(u32),
    /// The last frame of a response is in the output. The next call of `poll` removes the stream.
    Sent(u32),
    /// The stream ended without a complete response. The next call of `poll` removes it.
    Reset(u32),
}

/// `SETTINGS_MAX_FRAME_SIZE`, in bytes: the minimum of RFC 9113, 4.2. Larger frames would delay
/// other streams.
const FRAME_LEN_MAX: u32 = 16 * 1024;
/// Flow-control window of a request body, in bytes: the maximum that the client may send before the
/// handler reads. Enough for 5 MB/s at a round-trip time of 50 ms.
const STREAM_WINDOW_LEN: u32 = 256 * 1024;
/// Flow-control window of a connection, in bytes.
const CONNECTION_WINDOW_LEN: u32 = 1024 * 1024;
/// `SETTINGS_HEADER_TABLE_SIZE`, in bytes: the default of RFC 9113, 6.5.2.
const HEADER_TABLE_LEN: u32 = 4096;
/// Limit of response bytes that `h2` buffers for a stream.
const SEND_BUFFER_LEN: usize = 32 * 1024;
/// Number of reset streams that `h2` remembers for a second. Frames still in flight for these
/// streams are not errors.
const RESET_STREAMS_KEPT: usize = 50;
/// Maximum number of streams that the peer may open and reset within one read.
const UNSEEN_RESETS_MAX: usize = 100;
/// Limit within `h2` of resets that the peer provokes during a connection's lifetime. The rate
/// limit in `abuse` takes effect first.
const LOCAL_RESETS_MAX: usize = 10_000;

pub(super) enum State {
    Handshake(Box<Handshake<Pipe, Bytes>>),
    Open(Box<Connection<Pipe, Bytes>>),
    Closed,
}

pub(super) struct Stream<T> {
    pub(super) respond: SendResponse<Bytes>,
    /// The rest of the request body; `None` once the request is complete.
    pub(super) body: Option<RecvStream>,
    pub(super) is_reading: bool,
    /// The sending side of the response body; `None` until the final head is sent.
    pub(super) send: Option<SendStream<Bytes>>,
    /// Part of the response body that was not passed to `h2` yet.
    pub(super) pending: Bytes,
    /// Whether the response ends with `pending`.
    pub(super) is_last: bool,
    /// Number of response body bytes written to the output so far.
    pub(super) sent_len: u64,
    pub(super) data: T,
}

/// Possible changes since the streams were last polled.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Changes {
    /// Whether request bodies may have grown or ended.
    pub(super) data: bool,
    /// Whether streams may have been reset.
    pub(super) reset: bool,
}

/// Server side of an HTTP/2 connection. `T` is the data that the caller attaches to each stream.
pub struct Session<T> {
    pub(super) state: State,
    pipe: Pipe,
    head_limits: HeadLimits,
    pub(super) streams: Table<Stream<T>>,
    /// Number of streams that have a response piece to send.
    pub(super) pending_count: usize,
    incoming: Scanner,
    outgoing: Scanner,
    budget: Budget,
    pub(super) changes: Changes,
    /// Whether `h2` must write more output before [`poll`](Self::poll) may return `None`.
    pub(super) must_write: bool,
    /// Slot of `streams` at which the next poll of the streams continues.
    cursor: usize,
    pub(super) events: VecDeque<Event>,
    /// Number of the stream whose end the last `poll` reported; the next `poll` removes it. `None`
    /// if it reported no end.
    done: Option<u32>,
    text: Vec<u8>,
    index: HeadIndex,
    abuse: Option<Abuse>,
}

impl<T: Default> Session<T> {
    /// Creates a session that expects the client's preface. `streams_max` is the maximum number of
    /// concurrent streams; further ones are refused with `REFUSED_STREAM`.
    pub fn new(streams_max: u32, head_limits: &HeadLimits, now: Instant) -> Self {
        let pipe = Pipe::default();
        let header_list_len = u32::try_from(head_limits.head_len_max).unwrap_or(u32::MAX);
        let handshake = Builder::new()
            .max_concurrent_streams(streams_max)
            .initial_window_size(STREAM_WINDOW_LEN)
            .initial_connection_window_size(CONNECTION_WINDOW_LEN)
            .max_frame_size(FRAME_LEN_MAX)
            .max_header_list_size(header_list_len)
            .header_table_size(HEADER_TABLE_LEN)
            .max_send_buffer_size(SEND_BUFFER_LEN)
            .max_concurrent_reset_streams(RESET_STREAMS_KEPT)
            .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
            .max_local_error_reset_streams(Some(LOCAL_RESETS_MAX))
            .handshake(pipe.clone());
        Self {
            state: State::Handshake(Box::new(handshake)),
            pipe,
            head_limits: *head_limits,
            streams: Table::default(),
            pending_count: 0,
            incoming: Scanner::new(PREFACE.len()),
            outgoing: Scanner::new(0),
            budget: Budget::new(now),
            changes: Changes::default(),
            must_write: false,
            cursor: 0,
            events: VecDeque::new(),
            done: None,
            text: Vec::new(),
            index: HeadIndex::default(),
            abuse: None,
        }
    }

    // Methods for the bytes of the connection.

    /// Processes bytes from the peer.
    pub fn receive(&mut self, bytes: &[u8], now: Instant) {
        if self.is_closed() || self.abuse.is_some() {
            return;
        }
        self.budget.pass(now);
        let Self {
            incoming,
            budget,
            changes,
            ..
        } = self;
        let mut result = Ok(());
        // A HEADERS frame may contain trailers, so it does not always start a request.
        let mut notice = |kind| {
            changes.data |= matches!(kind, frames::DATA | frames::HEADERS | frames::CONTINUATION);
            changes.reset |= kind == frames::RST_STREAM;
        };
        if let Some(frame) = incoming.unfinished() {
            notice(frame.kind);
        }
        incoming.scan(bytes, |frame| {
            result = result.and_then(|()| budget.received(frame));
            notice(frame.kind);
        });
        self.cursor = 0;
        self.pipe.lock().put(bytes);
        self.end_if_abused(result);
    }

    /// Returns whether the caller should read more input: `false` while the peer does not read the
    /// output.
    pub fn wants_input(&self) -> bool {
        !self.is_closed() && self.pipe.lock().input_len() == 0
    }

    /// Appends the output for the peer to `out`.
    pub fn take_output(&mut self, out: &mut Vec<u8>) {
        self.pipe.lock().take_output(out);
    }

    /// Returns whether the connection has ended. Then only the output that is already buffered
    /// remains to be sent.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Returns whether the input ends within a unit that peers send in one piece: the preface, a
    /// frame header or a header block.
    pub fn is_mid_block(&self) -> bool {
        matches!(self.state, State::Handshake(_)) || self.incoming.is_mid_block()
    }

    /// Returns the number of frames received, including an incomplete one.
    pub fn frame_count(&self) -> u64 {
        self.incoming.frame_count()
    }

    /// Returns the kind of abuse for which the connection was ended, if any.
    pub fn abused(&self) -> Option<Abuse> {
        self.abuse
    }

    fn end_if_abused(&mut self, result: Result<(), Abuse>) {
        if let (Err(abuse), None) = (result, self.abuse) {
            self.abuse = Some(abuse);
            self.abort(ErrorCode::ENHANCE_YOUR_CALM);
        }
    }

    // Methods for events.

    /// Returns the next event, or `None` if there is none and all output is complete.
    pub fn poll(&mut self) -> Option<Event> {
        if let Some(stream) = self.done.take() {
            self.forget(stream);
        }
        loop {
            self.must_write = false;
            let accepted = self.accept();
            self.watch_output();
            let event = match accepted {
                Some((request, respond)) => self.admit(request, respond),
                None => self.events.pop_front().or_else(|| self.poll_streams()),
            };
            match event {
                Some(event) => {
                    if let Event::Sent(stream) | Event::Reset(stream) = event {
                        self.done = Some(stream);
                    }
                    return Some(event);
                }
                None if self.has_changes() || self.push_all() => {}
                None => return None,
            }
        }
    }

    fn has_changes(&self) -> bool {
        self.must_write || self.changes != Changes::default() || !self.events.is_empty()
    }

    /// Returns the head of the request that [`poll`](Self::poll) has just reported, as HTTP/1.1
    /// text and parsed.
    pub fn head(&self) -> (&[u8], &HeadIndex) {
        (&self.text, &self.index)
    }

    /// Ends the handshake if the preface has arrived but was not polled yet. A client may send the
    /// preface together with the frames for which its connection ends.
    pub(super) fn open(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        if let State::Handshake(handshake) = &mut self.state
            && let Poll::Ready(Ok(connection)) = Pin::new(&mut **handshake).poll(&mut context)
        {
            self.state = State::Open(Box::new(connection));
        }
    }

    /// Lets `h2` read and write; returns the next new request, if any.
    fn accept(&mut self) -> Option<(Request<RecvStream>, SendResponse<Bytes>)> {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let error = match &mut self.state {
                State::Handshake(handshake) => {
                    match Pin::new(&mut **handshake).poll(&mut context) {
                        Poll::Pending => return None,
                        Poll::Ready(Ok(connection)) => {
                            self.state = State::Open(Box::new(connection));
                            continue;
                        }
                        Poll::Ready(Err(error)) => Some(error),
                    }
                }
                State::Open(connection) => match connection.poll_accept(&mut context) {
                    Poll::Pending => return None,
                    Poll::Ready(Some(Ok((request, respond)))) => return Some((request, respond)),
                    Poll::Ready(Some(Err(error))) => Some(error),
                    Poll::Ready(None) => None,
                },
                State::Closed => return None,
            };
            if let Some(error) = error.filter(::h2::Error::is_library) {
                self.abuse.get_or_insert(match error.reason() {
                    Some(ErrorCode::ENHANCE_YOUR_CALM) => Abuse::Excess,
                    _ => Abuse::Protocol,
                });
            }
            self.close();
            return None;
        }
    }

    /// Ends all streams.
    pub(super) fn close(&mut self) {
        self.state = State::Closed;
        self.changes.reset = true;
        self.cursor = 0;
    }

    /// Counts the frames that `h2` has written since the last call.
    fn watch_output(&mut self) {
        let Self {
            pipe,
            outgoing,
            budget,
            changes,
            streams,
            events,
            ..
        } = self;
        let mut buffers = pipe.lock();
        if buffers.seen_len == buffers.output.len() {
            return;
        }
        let new = buffers.output.get(buffers.seen_len..).unwrap_or_default();
        let mut result = Ok(());
        outgoing.scan(new, |frame| {
            result = result.and_then(|()| budget.sent(frame));
            changes.reset |= frame.kind == frames::RST_STREAM;
            let is_data = frame.kind == frames::DATA;
            if !is_data && !frame.ends_stream() {
                return;
            }
            if let Some(stream) = streams.find(frame.stream) {
                stream.sent_len += if is_data { u64::from(frame.len) } else { 0 };
                if frame.ends_stream() {
                    events.push_back(Event::Sent(frame.stream));
                }
            }
        });
        buffers.seen_len = buffers.output.len();
        drop(buffers);
        self.end_if_abused(result);
    }

    /// Opens a stream for a request. If the request is malformed, resets the stream and returns
    /// `None`.
    fn admit(
        &mut self,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) -> Option<Event> {
        let stream = respond.stream_id().as_u32();
        let is_end = request.body().is_end_stream();
        let read = head::request(
            &request,
            is_end,
            &self.head_limits,
            &mut self.text,
            &mut self.index,
        );
        let event = match read {
            Ok(()) => Event::Request { stream, is_end },
            Err(HeadError::Refused(refusal)) => Event::Refused {
                stream,
                is_head: request.method() == ::http::Method::HEAD,
                refusal,
            },
            Err(HeadError::Malformed) => {
                respond.send_reset(ErrorCode::PROTOCOL_ERROR);
                self.changes.reset = true;
                return None;
            }
        };
        let entry = Stream {
            respond,
            body: (!is_end).then(|| request.into_body()),
            is_reading: false,
            send: None,
            pending: Bytes::new(),
            is_last: false,
            sent_len: 0,
            data: T::default(),
        };
        self.streams.insert(stream, entry);
        Some(event)
    }

    /// Polls the streams until one has an event; returns `None` if none has.
    fn poll_streams(&mut self) -> Option<Event> {
        if self.changes == Changes::default() {
            return None;
        }
        let is_closed = self.is_closed();
        while self.cursor < self.streams.slot_count() {
            if let Some((stream, entry)) = self.streams.at(self.cursor) {
                if self.changes.reset && (is_closed || entry.is_reset()) {
                    self.cursor += 1;
                    return Some(Event::Reset(stream));
                }
                if self.changes.data
                    && let Some(event) = entry.poll_body(stream)
                {
                    return Some(event);
                }
            }
            self.cursor += 1;
        }
        self.cursor = 0;
        self.changes = Changes::default();
        None
    }

    /// Makes the next poll check all request bodies.
    pub(super) fn mark_data_changed(&mut self) {
        self.changes.data = true;
        self.cursor = 0;
    }

    pub(super) fn forget(&mut self, stream: u32) -> Option<T> {
        let entry = self.streams.remove(stream)?;
        self.pending_count -= usize::from(entry.is_pending());
        Some(entry.data)
    }
}

impl<T> Stream<T> {
    fn is_reset(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        match &mut self.send {
            Some(send) => send.poll_reset(&mut context).is_ready(),
            None => self.respond.poll_reset(&mut context).is_ready(),
        }
    }

    fn poll_body(&mut self, stream: u32) -> Option<Event> {
        let mut context = Context::from_waker(Waker::noop());
        let body = self.body.as_mut().filter(|_| self.is_reading)?;
        loop {
            return match body.poll_data(&mut context) {
                Poll::Pending => None,
                // The frame has only padding, or it is empty and ends the stream: continue with the
                // next frame.
                Poll::Ready(Some(Ok(bytes))) if bytes.is_empty() => continue,
                Poll::Ready(Some(Ok(bytes))) => Some(Event::Data(stream, bytes)),
                Poll::Ready(Some(Err(_))) => Some(Event::Reset(stream)),
                Poll::Ready(None) => {
                    // Trailers of requests are discarded, as with HTTP/1.1.
                    let trailers = body.poll_trailers(&mut context);
                    self.body = None;
                    Some(match trailers {
                        Poll::Ready(Err(_)) => Event::Reset(stream),
                        _ => Event::End(stream),
                    })
                }
            };
        }
    }
}

impl<T> std::fmt::Debug for Session<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("stream_count", &self.streams.count())
            .field("abuse", &self.abuse)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an instant to count from")]
mod tests;
