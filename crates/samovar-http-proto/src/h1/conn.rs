//! The states of a server's side of an HTTP/1.1 connection.
//!
//! # Theory of operation
//!
//! A connection serves one request after the other; answers leave in the order of the requests
//! because the next head is not looked at before the answer to the last one is complete.
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
//! * Bytes are shown to [`Conn::advance`] in order; what it does not consume is shown again with
//!   more behind it.
//! * A [`Refusal`] is final. The caller answers it, says `Connection: close` and closes.
//! * Whether an answer may leave the connection open is asked of [`Conn::may_keep`] *before* the
//!   answer is written, because the answer has to say so.

use super::Refusal;
use super::chunk::{ChunkDecoder, ChunkEvent};
use super::head::{self, Framing, HeadIndex, HeadLimits};

/// What an HTTP/2 client sends first (RFC 9113, section 3.4). As a request it is of a version that
/// is refused, so looking for it costs other requests nothing.
#[cfg(feature = "http2")]
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A body the application does not want is read to its end and dropped if at most this many bytes
/// are missing; beyond, closing the connection is cheaper for both.
pub const DISCARD_LEN_MAX: u64 = 64 * 1024;

/// What the bytes shown to [`Conn::advance`] amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing complete: read more.
    NeedMore,
    /// A request head; its fields are in the index, its bytes are the consumed ones.
    Head,
    /// The consumed bytes are body data.
    Data,
    /// Bytes that mean nothing to the application were consumed: call again.
    Framing,
    /// The body has ended, the request is complete. A request without a body has no such event.
    BodyEnd,
    /// An answer is due before any more is looked at.
    Paused,
    /// The peer broke the rules; nothing more will be read.
    Refused(Refusal),
    /// The input begins with what an HTTP/2 client sends first; nothing was consumed. The caller
    /// goes on in that protocol, or refuses the version.
    #[cfg(feature = "http2")]
    Http2,
    /// The connection takes no more requests.
    Closed,
}

#[derive(Debug, Clone)]
enum State {
    Head,
    Body(Body),
    Discard { left: u64 },
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

/// Which clock runs: what the peer owes us, or we it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Between requests.
    Head,
    /// The peer is sending a body.
    Body,
    /// An answer is being made or sent.
    Busy,
    /// Nothing is expected any more.
    Closed,
}

/// The protocol state of one connection.
#[derive(Debug, Clone)]
pub struct Conn {
    state: State,
    keep_alive: bool,
    expect_continue: bool,
}

impl Default for Conn {
    fn default() -> Self {
        Self {
            state: State::Head,
            keep_alive: false,
            expect_continue: false,
        }
    }
}

impl Conn {
    /// Looks at the start of `input`; returns how many bytes were consumed and what they were.
    ///
    /// `body_len_max` bounds the body of the current request, in bytes; it is looked at whenever a
    /// body is under way, so it may depend on the head.
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
            #[cfg(feature = "http2")]
            Err(Refusal::HttpVersion) if input.starts_with(PREFACE) => {
                return Ok((0, Step::Http2));
            }
            #[cfg(feature = "http2")]
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

    /// Whether the request just delivered has a body that was not read yet.
    pub fn has_body(&self) -> bool {
        matches!(self.state, State::Body(_))
    }

    /// Whether the rest of a body is dropped that was answered before its end.
    pub fn is_discarding(&self) -> bool {
        matches!(self.state, State::Discard { .. })
    }

    /// Bytes that are next and are body data, as far as that is known: 0 if framing comes first.
    pub fn data_len(&self) -> u64 {
        match &self.state {
            State::Body(Body::Length { left }) => *left,
            State::Body(Body::Chunked { decoder, .. }) => decoder.data_len(),
            State::Head | State::Discard { .. } | State::Busy | State::Closed => 0,
        }
    }

    /// Whether the peer waits for `100 Continue`; says so once.
    pub fn take_expect_continue(&mut self) -> bool {
        std::mem::take(&mut self.expect_continue)
    }

    /// Whether an answer given now may leave the connection open.
    pub fn may_keep(&self) -> bool {
        self.keep_alive
            && match &self.state {
                State::Busy => true,
                // A peer that waits for `100 Continue` may or may not send the body after a final
                // answer (RFC 9110, 10.1.1), so where the next request starts cannot be known.
                State::Body(Body::Length { left }) => {
                    *left <= DISCARD_LEN_MAX && !self.expect_continue
                }
                State::Body(Body::Chunked { .. })
                | State::Head
                | State::Discard { .. }
                | State::Closed => false,
            }
    }

    /// The answer to the current request is written. `keep` is what it told the peer.
    pub fn answered(&mut self, keep: bool) {
        self.state = match &self.state {
            _ if !keep || !self.may_keep() => State::Closed,
            State::Body(Body::Length { left }) => State::Discard { left: *left },
            State::Busy | State::Body(_) | State::Head | State::Discard { .. } | State::Closed => {
                State::Head
            }
        };
    }

    /// Takes no more requests; the current one is still to be answered.
    pub fn close_after(&mut self) {
        self.keep_alive = false;
        if matches!(self.state, State::Head | State::Discard { .. }) {
            self.state = State::Closed;
        }
    }

    /// Which clock runs.
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
