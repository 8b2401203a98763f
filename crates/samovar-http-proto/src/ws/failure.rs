//! What a peer can do wrong on a WebSocket.

use super::CloseCode;

/// Why a connection is failed (RFC 6455, 7.1.7). All are final: nothing after it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A reserved bit without an extension that gives it a meaning there.
    #[error("reserved bit is set")]
    ReservedBits,
    /// An opcode without a meaning.
    #[error("reserved opcode")]
    OpCode,
    /// A frame from a client without a mask.
    #[error("frame is not masked")]
    Unmasked,
    /// A control frame of more than 125 bytes.
    #[error("control frame is too long")]
    ControlLen,
    /// A control frame that is to be continued.
    #[error("control frame is fragmented")]
    ControlFragmented,
    /// A length written with more bytes than it needs.
    #[error("length is not written in its shortest form")]
    LengthForm,
    /// A length of 2^63 or more.
    #[error("length has its highest bit set")]
    LengthOverflow,
    /// A continuation of nothing.
    #[error("continuation without a message")]
    UnexpectedContinuation,
    /// A new message before the last one has ended.
    #[error("message inside a fragmented message")]
    ExpectedContinuation,
    /// A frame past the limit.
    #[error("frame is too long")]
    FrameTooLong,
    /// A message past the limit, counted after decompression.
    #[error("message is too long")]
    MessageTooLong,
    /// Text, or the reason of a close, that is not UTF-8.
    #[error("text is not UTF-8")]
    Utf8,
    /// Compressed data that is not DEFLATE.
    #[error("compressed data is damaged")]
    Deflate,
    /// A close frame with half a code.
    #[error("close frame of one byte")]
    ClosePayload,
    /// A code that may not be sent.
    #[error("close code may not be sent")]
    CloseCode,
}

impl Failure {
    /// The code the peer is told.
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
            Self::FrameTooLong | Self::MessageTooLong => CloseCode::TOO_BIG,
            Self::Utf8 | Self::Deflate => CloseCode::INVALID_DATA,
        }
    }
}
