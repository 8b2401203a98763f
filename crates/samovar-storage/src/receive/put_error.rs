//! Reasons why an upload is not accepted.

use std::io;

use crate::error::StorageError;
use crate::receive::Refusal;
use crate::verify::{self, BodyError, EncodingError, MemoryError, VerifyError};

/// Reason why an upload was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// The body could not be received; contains the unchanged error of its reader.
    #[error("receiving the body: {0}")]
    Source(io::Error),
    /// The NAR file is refused, for this reason.
    #[error(transparent)]
    File(Box<verify::Refusal>),
    /// The narinfo, log or realisation is refused, for this reason.
    #[error(transparent)]
    Narinfo(Box<Refusal>),
    /// The body is not valid in its `Content-Encoding`.
    #[error(transparent)]
    Encoding(EncodingError),
    /// Too many uploads are in progress.
    #[error("too many uploads are in progress; repeat this one later")]
    Busy,
    /// The storage failed.
    #[error(transparent)]
    Storage(StorageError),
}

impl From<StorageError> for PutError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::TokenInvalid => Refusal::TokenInvalid.into(),
            error => Self::Storage(error),
        }
    }
}

impl PutError {
    /// Converts an error of reading a body. The error may come from
    /// [`decoded`](crate::verify::decoded).
    #[must_use]
    pub fn of_source(error: io::Error) -> Self {
        match error.downcast::<BodyError>() {
            Ok(error) => error.into(),
            Err(error) => Self::Source(error),
        }
    }

    /// Converts the error of verifying a NAR that is being written to the object `key`.
    pub(crate) fn of_nar(error: VerifyError, key: &str) -> Self {
        match error {
            VerifyError::Source(error) => Self::Source(error),
            VerifyError::Memory(error) => error.into(),
            VerifyError::Refused(refusal) => Self::File(Box::new(refusal)),
            VerifyError::Sink(error) => StorageError::file("cannot write", key, error).into(),
        }
    }
}

impl From<MemoryError> for PutError {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Busy => Self::Busy,
            MemoryError::Stopped(error) => Self::Source(error),
        }
    }
}

impl From<BodyError> for PutError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Source(error) => Self::Source(error),
            BodyError::Memory(error) => error.into(),
            BodyError::Encoding(error) => Self::Encoding(error),
        }
    }
}

impl From<Refusal> for PutError {
    fn from(refusal: Refusal) -> Self {
        Self::Narinfo(Box::new(refusal))
    }
}
