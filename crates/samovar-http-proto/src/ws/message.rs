//! Reassembly of messages from frames.
//!
//! # Theory of operation
//!
//! Input arrives in pieces of any size. A complete frame is unmasked in place, and the caller
//! borrows its payload. Otherwise the available bytes are unmasked and appended to the message. An
//! assembler stores only header fields and the current message, so between messages it stores
//! nothing.
//!
//! An error is reported as soon as the bytes received so far prove it: an excessive length when the
//! header arrives, invalid UTF-8 at the invalid byte.
//!
//! # Source
//!
//! RFC 6455, sections 5.4 to 5.6 and 8.1.

use std::borrow::Cow;

use super::frame::{self, FrameHeader, HEADER_LEN_MAX, OpCode};
use super::{CloseCode, Failure, close};

/// A complete message or control frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<'a> {
    /// A complete text message.
    Text(Cow<'a, str>),
    /// A complete binary message.
    Binary(Cow<'a, [u8]>),
    /// A ping; reply with a pong of the same payload.
    Ping(Cow<'a, [u8]>),
    /// A pong, solicited or not.
    Pong(Cow<'a, [u8]>),
    /// A close frame; later input is ignored.
    Close(Option<(CloseCode, Cow<'a, str>)>),
}

/// A message of which some frames have arrived.
#[derive(Debug, Clone, Copy)]
struct Begun {
    is_text: bool,
    /// Sum of the payload lengths of the frames so far.
    len: u64,
}

/// Assembles the messages of one client from its frames.
#[derive(Debug, Default)]
pub struct Assembler {
    /// The frame that is incomplete, and the number of its payload bytes received so far; `None`
    /// between frames.
    frame: Option<(FrameHeader, u64)>,
    begun: Option<Begun>,
    /// Payload of the current message. Invariant: empty unless `begun` is set.
    message: Vec<u8>,
    /// Length of the validated UTF-8 prefix of `message`.
    valid_len: usize,
    /// Payload of an incomplete control frame.
    control: Vec<u8>,
    /// Bytes of an incomplete header.
    header: [u8; HEADER_LEN_MAX],
    header_len: usize,
    is_closed: bool,
}

impl Assembler {
    /// Returns whether a frame or a message is incomplete.
    pub fn is_partial(&self) -> bool {
        self.header_len > 0 || self.frame.is_some() || self.begun.is_some()
    }

    /// Processes `input`, which must not be empty. Returns the number of consumed bytes, at least
    /// one, and the event that they complete, if any. Call again while bytes remain.
    ///
    /// `len_max`: maximum length of a message in bytes.
    ///
    /// # Errors
    ///
    /// Any [`Failure`]; all are final.
    pub fn step<'a>(
        &mut self,
        input: &'a mut [u8],
        len_max: usize,
    ) -> Result<(usize, Option<Event<'a>>), Failure> {
        if self.is_closed {
            // RFC 6455, 1.4: data after a close frame is discarded.
            return Ok((input.len(), None));
        }
        let Some((header, seen_len)) = self.frame.take() else {
            let (taken, header) = self.header(input)?;
            let Some(header) = header else {
                return Ok((taken, None));
            };
            self.begin(&header, len_max)?;
            let rest = input.get_mut(taken..).unwrap_or_default();
            let (payload_taken, event) = self.payload(header, 0, rest)?;
            return Ok((taken.saturating_add(payload_taken), event));
        };
        self.payload(header, seen_len, input)
    }

    /// Parses a header whose first bytes may have arrived in earlier input.
    fn header(&mut self, input: &[u8]) -> Result<(usize, Option<FrameHeader>), Failure> {
        let before_len = self.header_len;
        if before_len == 0
            && let Some(header) = frame::parse(input)?
        {
            return Ok((header.header_len, Some(header)));
        }
        let mut bytes = self.header;
        let room = bytes.get_mut(before_len..).unwrap_or_default();
        let added_len = room.len().min(input.len());
        for (to, from) in room.iter_mut().zip(input) {
            *to = *from;
        }
        let len = before_len.saturating_add(added_len);
        match frame::parse(bytes.get(..len).unwrap_or_default())? {
            Some(header) => {
                self.header_len = 0;
                Ok((header.header_len.saturating_sub(before_len), Some(header)))
            }
            None => {
                (self.header, self.header_len) = (bytes, len);
                Ok((added_len, None))
            }
        }
    }

    /// Validates a header against the state of the current message.
    fn begin(&mut self, header: &FrameHeader, len_max: usize) -> Result<(), Failure> {
        if header.op_code.is_control() {
            return Ok(());
        }
        let starts = matches!(header.op_code, OpCode::Text | OpCode::Binary);
        let begun = match (self.begun, starts) {
            (Some(_), true) => return Err(Failure::ExpectedContinuation),
            (None, false) => return Err(Failure::UnexpectedContinuation),
            (Some(begun), false) => begun,
            (None, true) => Begun {
                is_text: header.op_code == OpCode::Text,
                len: 0,
            },
        };
        let len = begun.len.saturating_add(header.payload_len);
        if len > len_max as u64 {
            return Err(Failure::MessageTooLong);
        }
        self.begun = Some(Begun { len, ..begun });
        Ok(())
    }

    /// Processes the available part of a payload.
    fn payload<'a>(
        &mut self,
        header: FrameHeader,
        seen_len: u64,
        input: &'a mut [u8],
    ) -> Result<(usize, Option<Event<'a>>), Failure> {
        let left = header.payload_len.saturating_sub(seen_len);
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
        let piece = input.get_mut(..taken).unwrap_or_default();
        frame::unmask(piece, header.mask, seen_len);
        let is_whole = taken as u64 == header.payload_len;
        let is_end = taken as u64 == left;
        if !is_end {
            self.frame = Some((header, seen_len.saturating_add(taken as u64)));
        }
        let event = if header.op_code.is_control() {
            self.control(header.op_code, piece, is_whole, is_end)?
        } else {
            let ends = is_end && header.is_final;
            self.data(piece, is_whole, ends)?
        };
        Ok((taken, event))
    }

    fn control<'a>(
        &mut self,
        op_code: OpCode,
        piece: &'a [u8],
        is_whole: bool,
        is_end: bool,
    ) -> Result<Option<Event<'a>>, Failure> {
        let payload = if is_whole {
            Cow::Borrowed(piece)
        } else {
            self.control.extend_from_slice(piece);
            if !is_end {
                return Ok(None);
            }
            Cow::Owned(std::mem::take(&mut self.control))
        };
        Ok(Some(match op_code {
            OpCode::Ping => Event::Ping(payload),
            OpCode::Pong => Event::Pong(payload),
            OpCode::Close | OpCode::Continuation | OpCode::Text | OpCode::Binary => {
                self.is_closed = true;
                let reason = close::parse(&payload)?;
                Event::Close(reason.map(|(code, reason)| (code, reason.into_owned().into())))
            }
        }))
    }

    fn data<'a>(
        &mut self,
        piece: &'a [u8],
        is_whole: bool,
        ends: bool,
    ) -> Result<Option<Event<'a>>, Failure> {
        let Some(begun) = self.begun else {
            return Err(Failure::UnexpectedContinuation);
        };
        if is_whole && ends && self.message.is_empty() {
            self.begun = None;
            return Ok(Some(if begun.is_text {
                let text = std::str::from_utf8(piece).map_err(|_invalid| Failure::Utf8)?;
                Event::Text(Cow::Borrowed(text))
            } else {
                Event::Binary(Cow::Borrowed(piece))
            }));
        }
        self.message.extend_from_slice(piece);
        if begun.is_text {
            self.check_text()?;
        }
        if !ends {
            return Ok(None);
        }
        self.begun = None;
        self.valid_len = 0;
        let message = std::mem::take(&mut self.message);
        Ok(Some(if begun.is_text {
            // A truncated character at the end of a message is also an error.
            let text = String::from_utf8(message).map_err(|_invalid| Failure::Utf8)?;
            Event::Text(Cow::Owned(text))
        } else {
            Event::Binary(Cow::Owned(message))
        }))
    }

    /// Validates the text that was added since the last call. A truncated character at its end may
    /// be completed later.
    fn check_text(&mut self) -> Result<(), Failure> {
        let new = self.message.get(self.valid_len..).unwrap_or_default();
        let valid_len = match std::str::from_utf8(new) {
            Ok(_) => new.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => return Err(Failure::Utf8),
        };
        self.valid_len = self.valid_len.saturating_add(valid_len);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
