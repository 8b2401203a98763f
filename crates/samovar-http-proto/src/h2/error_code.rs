//! Error codes of streams and connections (RFC 9113, section 7).

use ::h2::Reason;

/// An error code that the server sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// `NO_ERROR`: the rest of a request is not needed.
    NoError,
    /// `INTERNAL_ERROR`: the server failed.
    InternalError,
    /// `SETTINGS_TIMEOUT`: the peer did not complete the start of the connection in time.
    SettingsTimeout,
    /// `REFUSED_STREAM`: the request was not processed and is safe to repeat.
    RefusedStream,
    /// `CANCEL`: the stream is not needed any more.
    Cancel,
    /// `ENHANCE_YOUR_CALM`: the peer causes excessive load.
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
