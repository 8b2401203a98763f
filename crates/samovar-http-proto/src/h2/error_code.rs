//! Why a stream or a connection ends (RFC 9113, section 7).

use ::h2::Reason;

/// An error code that this side has a use for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// Nothing is wrong: the rest of a request is not needed.
    NoError,
    /// The server failed.
    InternalError,
    /// The peer did not do its part of the start of a connection in time.
    SettingsTimeout,
    /// The stream was not looked at: the same request is safe to send again.
    RefusedStream,
    /// The stream is not needed any more.
    Cancel,
    /// The peer asks for too much.
    EnhanceYourCalm,
}

impl From<ErrorCode> for Reason {
    fn from(code: ErrorCode) -> Self {
        match code {
            ErrorCode::NoError => Self::NO_ERROR,
            ErrorCode::InternalError => Self::INTERNAL_ERROR,
            ErrorCode::SettingsTimeout => Self::SETTINGS_TIMEOUT,
            ErrorCode::RefusedStream => Self::REFUSED_STREAM,
            ErrorCode::Cancel => Self::CANCEL,
            ErrorCode::EnhanceYourCalm => Self::ENHANCE_YOUR_CALM,
        }
    }
}
