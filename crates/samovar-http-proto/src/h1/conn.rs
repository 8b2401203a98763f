//! State machine of the server side of an HTTP/1.1 connection.
//!
//! # Theory of operation
//!
//! A connection serves one request at a time. The next head is parsed after the previous response
//! is complete, so responses are sent in the order of the requests.
//!
//! ```text
//!          head, no body                          answered, kept
//!   Head ───────────────▶ Busy ───────────────────────────────▶ Head
//!    │ head with a body    ▲ │ answered, not kept
//!    ▼                     │ ▼
//!   Body ─────────────────▶┘ Closed ◀──── refused, from any state
//!    │   body complete
//!    │ answered before its end
//!    ├──▶ Discard ──▶ Head     (a short body of known length: read and dropped)
//!    └──▶ Closed               (anything else)
//! ```
//!
//! * The caller passes received bytes to [`Conn::advance`] in order. It passes unconsumed bytes
//!   again, with later bytes appended.
//! * A [`Refusal`] is final. The caller answers it with `Connection: close` and closes.
//! * [`Conn::may_keep`] returns whether the connection may stay open. The caller checks it *before*
//!   it writes the response head, which contains the `Connection` field.

use super::Refusal;
use super::chunk::{ChunkDecoder, ChunkEvent};
use super::head::{self, Framing, HeadIndex, HeadLimits};

/// The HTTP/2 connection preface (RFC 9113, section 3.4). It looks like an HTTP/1 request line with
/// an unsupported version. So the parser compares the input with the preface only after that error,
/// which costs nothing for other requests.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Maximum length of the rest of a request body that is read and discarded after an early response,
/// in bytes. If the rest is longer, closing the connection is cheaper.
pub const DISCARD_LEN_MAX: u64 = 64 * 1024;

/// Outcome of [`Conn::advance`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The input is incomplete: read more.
    NeedMore,
    /// The consumed bytes are a request head, which the index describes.
    Head,
    /// The consumed bytes are body data.
    Data,
    /// The consumed bytes are framing of the body, such as a chunk size: call again.
    Framing,
    /// End of the body; the request is complete. Not reported for a request without a body.
    BodyEnd,
    /// No input is processed until the response to the current request is complete.
    Paused,
    /// The request is malformed or exceeds a limit; no more input is read.
    Refused(Refusal),
    /// The input starts with the HTTP/2 preface; nothing was consumed. The caller switches to
    /// HTTP/2 or refuses the version.
    Http2,
    /// The connection accepts no more requests.
    Closed,
}

#[derive(Debug, Clone, Default)]
enum State {
    #[default]
    Head,
    Body(Body),
    Discard {
        left: u64,
    },
    Busy,
    Closed,
}

#[derive(Debug, Clone)]
enum Body {
    Length {
        left: u64,
    },
    Chunked {
        decoder: ChunkDecoder,
        seen_len: u64,
    },
}

/// Phase of a connection, which selects the applicable time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Between requests.
    Head,
    /// The peer is sending a body.
    Body,
    /// A response is being computed or sent.
    Busy,
    /// The connection accepts no more requests.
    Closed,
}

/// Protocol state of one connection.
#[derive(Debug, Clone, Default)]
pub struct Conn {
    state: State,
    keep_alive: bool,
    expect_continue: bool,
}

impl Conn {
    /// Processes the start of `input`; returns the number of consumed bytes and their meaning.
    ///
    /// `body_len_max` is the maximum body length of the current request, in bytes. It is checked
    /// whenever body bytes arrive, so the caller may choose it after reading the head.
    pub fn advance(
        &mut self,
        input: &[u8],
        limits: &HeadLimits,
        body_len_max: u64,
        index: &mut HeadIndex,
    ) -> (usize, Step) {
        let outcome = match &mut self.state {
            State::Head => self.head(input, limits, index),
            State::Body(body) => body.advance(input, body_len_max),
            State::Discard { left } => {
                let taken = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                *left = left.saturating_sub(taken as u64);
                if *left > 0 {
                    return (taken, Step::NeedMore);
                }
                self.state = State::Head;
                return (taken, Step::Framing);
            }
            State::Busy => Ok((0, Step::Paused)),
            State::Closed => Ok((0, Step::Closed)),
        };
        match outcome {
            Ok((taken, Step::BodyEnd)) => {
                self.state = State::Busy;
                (taken, Step::BodyEnd)
            }
            Ok(outcome) => outcome,
            Err(refusal) => {
                self.state = State::Closed;
                self.keep_alive = false;
                (0, Step::Refused(refusal))
            }
        }
    }

    fn head(
        &mut self,
        input: &[u8],
        limits: &HeadLimits,
        index: &mut HeadIndex,
    ) -> Result<(usize, Step), Refusal> {
        if input.is_empty() {
            return Ok((0, Step::NeedMore));
        }
        let parsed = match head::parse(input, limits, index) {
            Err(Refusal::HttpVersion) if input.starts_with(PREFACE) => {
                return Ok((0, Step::Http2));
            }
            Err(Refusal::HttpVersion) if PREFACE.starts_with(input) => None,
            parsed => parsed?,
        };
        let Some(head_len) = parsed else {
            return Ok((0, Step::NeedMore));
        };
        self.keep_alive = index.keep_alive;
        self.expect_continue = index.expect_continue;
        self.state = match index.framing {
            Framing::None => State::Busy,
            Framing::Length(left) => State::Body(Body::Length { left }),
            Framing::Chunked => State::Body(Body::Chunked {
                decoder: ChunkDecoder::default(),
                seen_len: 0,
            }),
        };
        Ok((head_len, Step::Head))
    }

    /// Returns whether the current request has unread body bytes.
    pub fn has_body(&self) -> bool {
        matches!(self.state, State::Body(_))
    }

    /// Returns whether the rest of a body is being discarded after an early response.
    pub fn is_discarding(&self) -> bool {
        matches!(self.state, State::Discard { .. })
    }

    /// Returns the number of body bytes that follow without framing between them; 0 if the next
    /// bytes are framing, such as a chunk size.
    pub fn data_len(&self) -> u64 {
        match &self.state {
            State::Body(Body::Length { left }) => *left,
            State::Body(Body::Chunked { decoder, .. }) => decoder.data_len(),
            State::Head | State::Discard { .. } | State::Busy | State::Closed => 0,
        }
    }

    /// Returns whether the peer waits for `100 Continue`; `false` from the second call on.
    pub fn take_expect_continue(&mut self) -> bool {
        std::mem::take(&mut self.expect_continue)
    }

    /// Returns whether a response sent now may leave the connection open.
    pub fn may_keep(&self) -> bool {
        self.keep_alive
            && match &self.state {
                State::Busy => true,
                // A peer that waits for `100 Continue` may or may not send the body after a final
                // response (RFC 9110, 10.1.1), so the start of the next request is unknown.
                State::Body(Body::Length { left }) => {
                    *left <= DISCARD_LEN_MAX && !self.expect_continue
                }
                State::Body(Body::Chunked { .. })
                | State::Head
                | State::Discard { .. }
                | State::Closed => false,
            }
    }

    /// Ends the current request after its response was written. `keep`: whether the response head
    /// kept the connection open.
    pub fn answered(&mut self, keep: bool) {
        self.state = match &self.state {
            _ if !keep || !self.may_keep() => State::Closed,
            State::Body(Body::Length { left }) => State::Discard { left: *left },
            State::Busy | State::Body(_) | State::Head | State::Discard { .. } | State::Closed => {
                State::Head
            }
        };
    }

    /// Refuses further requests; the current one still gets its response.
    pub fn close_after(&mut self) {
        self.keep_alive = false;
        if matches!(self.state, State::Head | State::Discard { .. }) {
            self.state = State::Closed;
        }
    }

    /// Returns the phase.
    pub fn phase(&self) -> Phase {
        match self.state {
            State::Head => Phase::Head,
            State::Body(_) | State::Discard { .. } => Phase::Body,
            State::Busy => Phase::Busy,
            State::Closed => Phase::Closed,
        }
    }
}

impl Body {
    fn advance(&mut self, input: &[u8], len_max: u64) -> Result<(usize, Step), Refusal> {
        match self {
            Self::Length { left } => {
                if *left > len_max {
                    return Err(Refusal::BodyTooLarge);
                }
                if *left == 0 {
                    return Ok((0, Step::BodyEnd));
                }
                let taken = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                *left = left.saturating_sub(taken as u64);
                Ok((
                    taken,
                    if taken == 0 {
                        Step::NeedMore
                    } else {
                        Step::Data
                    },
                ))
            }
            Self::Chunked { decoder, seen_len } => {
                let (taken, event) = decoder.step(input)?;
                let step = match event {
                    ChunkEvent::Incomplete => Step::NeedMore,
                    ChunkEvent::Framing => Step::Framing,
                    ChunkEvent::End => Step::BodyEnd,
                    ChunkEvent::Data => {
                        *seen_len = seen_len.saturating_add(taken as u64);
                        if *seen_len > len_max {
                            return Err(Refusal::BodyTooLarge);
                        }
                        Step::Data
                    }
                };
                Ok((taken, step))
            }
        }
    }
}

#[cfg(test)]
mod tests;
