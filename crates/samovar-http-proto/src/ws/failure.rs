//! Protocol errors of a WebSocket peer.

use super::CloseCode;

/// Reason for failing a WebSocket connection (RFC 6455, 7.1.7). Later input is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A frame has a reserved bit set. Only extensions define these bits, and no extension is
    /// supported.
    #[error("reserved bit is set")]
    ReservedBits,
    /// A frame has a reserved opcode.
    #[error("reserved opcode")]
    OpCode,
    /// The client has sent a frame without masking it.
    #[error("frame is not masked")]
    Unmasked,
    /// A control frame has a payload of more than 125 bytes.
    #[error("control frame is too long")]
    ControlLen,
    /// A control frame is fragmented.
    #[error("control frame is fragmented")]
    ControlFragmented,
    /// A frame's payload length is not encoded in the fewest possible bytes.
    #[error("length is not written in its shortest form")]
    LengthForm,
    /// A frame's payload length is 2^63 bytes or more.
    #[error("length has its highest bit set")]
    LengthOverflow,
    /// A continuation frame has arrived outside of a fragmented message.
    #[error("continuation without a message")]
    UnexpectedContinuation,
    /// A new message has begun before the previous one was complete.
    #[error("message inside a fragmented message")]
    ExpectedContinuation,
    /// A message is longer than the limit.
    #[error("message is too long")]
    MessageTooLong,
    /// A text message or a close reason is not UTF-8.
    #[error("text is not UTF-8")]
    Utf8,
    /// A close frame has a payload of one byte; a close code takes two.
    #[error("close frame of one byte")]
    ClosePayload,
    /// A close frame has a code that must not be sent.
    #[error("close code may not be sent")]
    CloseCode,
}

impl Failure {
    /// Returns the close code to send to the peer.
    pub fn close_code(self) -> CloseCode {
        match self {
            Self::ReservedBits
            | Self::OpCode
            | Self::Unmasked
            | Self::ControlLen
            | Self::ControlFragmented
            | Self::LengthForm
            | Self::LengthOverflow
            | Self::UnexpectedContinuation
            | Self::ExpectedContinuation
            | Self::ClosePayload
            | Self::CloseCode => CloseCode::PROTOCOL_ERROR,
            Self::MessageTooLong => CloseCode::TOO_BIG,
            Self::Utf8 => CloseCode::INVALID_DATA,
        }
    }
}
