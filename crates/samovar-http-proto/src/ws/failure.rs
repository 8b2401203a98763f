//! Protocol errors of a WebSocket peer.

use super::CloseCode;

/// Reason for failing a WebSocket connection (RFC 6455, 7.1.7). Later input is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A reserved bit is set. Only extensions define them, and none is supported.
    #[error("reserved bit is set")]
    ReservedBits,
    /// A reserved opcode.
    #[error("reserved opcode")]
    OpCode,
    /// An unmasked frame from a client.
    #[error("frame is not masked")]
    Unmasked,
    /// A control frame of more than 125 bytes.
    #[error("control frame is too long")]
    ControlLen,
    /// A fragmented control frame.
    #[error("control frame is fragmented")]
    ControlFragmented,
    /// A payload length that is not encoded in the fewest possible bytes.
    #[error("length is not written in its shortest form")]
    LengthForm,
    /// A payload length of 2^63 or more.
    #[error("length has its highest bit set")]
    LengthOverflow,
    /// A continuation frame outside of a fragmented message.
    #[error("continuation without a message")]
    UnexpectedContinuation,
    /// A new message before the previous one was complete.
    #[error("message inside a fragmented message")]
    ExpectedContinuation,
    /// A message longer than the limit.
    #[error("message is too long")]
    MessageTooLong,
    /// Text or a close reason that is not UTF-8.
    #[error("text is not UTF-8")]
    Utf8,
    /// A close frame with a payload of one byte.
    #[error("close frame of one byte")]
    ClosePayload,
    /// A close code that must not be sent.
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
