//! Request bodies that a handler reads as they arrive.

use std::any::Any;
use std::fmt;
use std::io;
use std::time::Duration;

use crate::http::Status;
use crate::proto::Refusal;

/// Access of a request to the connection or stream that carries it, while a handler has the
/// request.
pub(crate) trait RequestLink: fmt::Debug + Send {
    /// Reads bytes of a streamed body; waits for the client.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Sends an interim response with these field lines.
    fn inform(&mut self, status: Status, fields: &[u8]) -> io::Result<()>;

    /// Waits for something other than the client: see
    /// [`BodyReader::wait`](crate::BodyReader::wait).
    fn wait(&self, is_ready: &mut dyn FnMut(Duration) -> bool) -> io::Result<()>;

    /// Returns whether the handler may have to wait for the rest of the body.
    fn is_streamed(&self) -> bool;

    /// Converts the link to `Any`, so that the worker can downcast it and take the connection out
    /// of the request.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// Reason why a request body could not be read to its end. The [`io::Error`] that a
/// [`BodyReader`](crate::BodyReader) returns contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The client violated the protocol or exceeded a limit.
    #[error("{0}")]
    Refused(Refusal),
    /// The client disconnected before the end of the body.
    #[error("request body is incomplete")]
    Incomplete,
    /// No more uploads could wait for their clients, and this one was the slowest of the address
    /// that had most of them; see [`Limits::waiting_handlers_max`](crate::Limits).
    #[error("too many slow uploads from this address")]
    GaveWay,
    /// The server is stopping.
    #[error("server is stopping")]
    Stopped,
}

impl BodyError {
    /// Returns the status of the response to the client.
    pub fn status(self) -> Status {
        match self {
            Self::Refused(refusal) => refusal.status(),
            Self::Incomplete => Status::BAD_REQUEST,
            Self::GaveWay | Self::Stopped => Status::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the `BodyError` inside an error of a [`BodyReader`](crate::BodyReader), even if
    /// other code has passed that error on; `None` for any other error.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl From<BodyError> for io::Error {
    fn from(error: BodyError) -> Self {
        let kind = match error {
            BodyError::Refused(Refusal::BodyTooLarge) => io::ErrorKind::FileTooLarge,
            BodyError::Refused(Refusal::Timeout) | BodyError::GaveWay => io::ErrorKind::TimedOut,
            BodyError::Refused(_) => io::ErrorKind::InvalidData,
            BodyError::Incomplete => io::ErrorKind::UnexpectedEof,
            BodyError::Stopped => io::ErrorKind::ConnectionAborted,
        };
        Self::new(kind, error)
    }
}
