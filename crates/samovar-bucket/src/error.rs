//! Why a request to a bucket failed.

use std::fmt;
use std::io;

use crate::settings::SettingsError;
use crate::source::CredentialError;

/// Why a request to a bucket failed: who erred, and what to do. Never contains a secret.
#[derive(Debug)]
pub struct BucketError {
    /// What was to be done, such as `GET nar/x` or `open`.
    request: String,
    /// The bucket, and the host of its engine with its port if that is not the usual one.
    place: String,
    fault: Fault,
}

/// What went wrong with a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The settings cannot be used.
    #[error("its settings are wrong")]
    Settings(#[source] SettingsError),
    /// The trusted certificates cannot be read.
    #[error("the trusted certificates in {file} cannot be used: name a PEM file of certificates")]
    CaFile {
        /// Path of the file.
        file: String,
        /// Why, if it could not be read.
        #[source]
        source: Option<io::Error>,
    },
    /// The key of the caller cannot be one of an object.
    #[error("the key is empty, too long, or has a segment that URLs cannot express")]
    Key,
    /// The range of the caller has no byte, or begins after the end of the object.
    #[error("the object has no byte in this range")]
    Range,
    /// There are no credentials, or they cannot be renewed.
    #[error("there are no usable credentials")]
    Credentials(#[source] CredentialError),
    /// The engine refused the credentials.
    #[error("access was denied ({code}): allow this to the credentials, or give others")]
    Denied {
        /// Code of the engine, or the status.
        code: String,
    },
    /// There is no such bucket.
    #[error("there is no such bucket: create it, or correct its name or endpoint")]
    NoBucket,
    /// The bucket is in another region.
    #[error("the bucket is in region {region}: set region={region} in the URL of the bucket")]
    Region {
        /// Name of the right region.
        region: String,
    },
    /// The engine redirected the request, without naming a region.
    #[error("the bucket is at another endpoint: set region and endpoint in the URL of the bucket")]
    Redirect,
    /// There is no such object. Absence is not an error in the interface of [`crate::Bucket`].
    #[error("there is no such object")]
    NoObject,
    /// There is no such multipart upload.
    #[error("the engine has forgotten this multipart upload")]
    NoUpload,
    /// There is an object under this key already, and it is another one.
    #[error("there is another object under this key already")]
    Exists,
    /// The engine refused the request.
    #[error("the engine refused it with status {status} ({code}: {message})")]
    Refused {
        /// Status of the answer.
        status: u16,
        /// Code of the engine; empty if it gave none.
        code: String,
        /// Message of the engine.
        message: String,
    },
    /// The engine has failed, or has no time.
    #[error("the engine is not available: status {status} ({code})")]
    Unavailable {
        /// Status of the answer.
        status: u16,
        /// Code of the engine; empty if it gave none.
        code: String,
    },
    /// The engine was not reached, or the connection was lost.
    #[error("the engine cannot be reached")]
    Unreachable(#[source] io::Error),
    /// The engine's certificate is not trusted.
    #[error(
        "the certificate of the engine is not trusted: name its authority's PEM file as CA file"
    )]
    Certificate(#[source] io::Error),
    /// The answer makes no sense.
    #[error("the answer of the engine cannot be used: {what}")]
    Answer {
        /// What is wrong.
        what: &'static str,
    },
    /// The object changed while it was read or written, or its bytes are not those that were sent.
    #[error("the object has other contents than expected: {what}")]
    Damaged {
        /// What is wrong.
        what: &'static str,
    },
    /// Too many requests to the bucket are in flight.
    #[error("too many requests to the bucket are in flight")]
    Busy,
    /// The file of the caller cannot be read.
    #[error("the file to be uploaded cannot be read")]
    File(#[source] io::Error),
}

impl BucketError {
    pub(crate) fn new(request: impl Into<String>, place: impl Into<String>, fault: Fault) -> Self {
        Self {
            request: request.into(),
            place: place.into(),
            fault,
        }
    }

    /// Returns what went wrong.
    #[must_use]
    pub fn fault(&self) -> &Fault {
        &self.fault
    }

    /// Returns the error with its causes, in one line for logs and status pages.
    #[must_use]
    pub fn with_causes(&self) -> String {
        let mut line = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            line.push_str(": ");
            line.push_str(&error.to_string());
            cause = error.source();
        }
        line
    }

    /// Returns whether the same request may succeed later, without a change of settings or rights.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match &self.fault {
            Fault::Unavailable { .. }
            | Fault::Unreachable(_)
            | Fault::Answer { .. }
            | Fault::NoUpload
            | Fault::Busy => true,
            Fault::Credentials(error) => error.is_transient(),
            Fault::Damaged { .. }
            | Fault::Settings(_)
            | Fault::CaFile { .. }
            | Fault::Key
            | Fault::Range
            | Fault::Denied { .. }
            | Fault::NoBucket
            | Fault::Region { .. }
            | Fault::Redirect
            | Fault::NoObject
            | Fault::Exists
            | Fault::Refused { .. }
            | Fault::Certificate(_)
            | Fault::File(_) => false,
        }
    }

    /// Returns whether the engine refused the credentials, or there are none: the operator must
    /// act.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        match &self.fault {
            Fault::Denied { .. } => true,
            Fault::Credentials(error) => !error.is_transient(),
            _ => false,
        }
    }

    /// Returns whether another object has the key, which [`crate::PutOptions::if_absent`] asks for.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        matches!(self.fault, Fault::Exists)
    }

    /// Returns whether there is no such object. Only reads of a [`crate::Download`] have this
    /// error.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self.fault, Fault::NoObject)
    }
}

impl fmt::Display for BucketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} in bucket {}: {}",
            self.request, self.place, self.fault
        )
    }
}

impl std::error::Error for BucketError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.fault.source()
    }
}

impl From<BucketError> for io::Error {
    fn from(error: BucketError) -> Self {
        let kind = match error.fault() {
            Fault::NoObject => io::ErrorKind::NotFound,
            Fault::Denied { .. } => io::ErrorKind::PermissionDenied,
            Fault::Damaged { .. } => io::ErrorKind::InvalidData,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
