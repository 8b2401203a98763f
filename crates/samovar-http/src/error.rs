//! Errors of handlers.

use std::any::Any;
use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::io;

use crate::http::Status;
use crate::proto::MultipartError;
use crate::upload::BodyError;

/// An error of a handler: a status and a message for the client, and a cause that is only logged.
///
/// `?` converts any [`std::error::Error`] to a 500 that does not reveal the cause: the client gets
/// "Internal Server Error", and the cause goes to [`Router::on_error`] and to the
/// [`Observer`](crate::Observer). It also converts `Box<dyn std::error::Error + Send + Sync>`,
/// `anyhow::Error`, and texts. Errors caused by the client keep their status, even if another error
/// wraps them as its [source](StdError::source): a request body that is too large (413), too slow
/// (408) or incomplete (400), or a malformed form. Inside of an `anyhow::Error` without context,
/// they keep it only with the Cargo feature `anyhow`.
///
/// To report a client error, a handler returns [`Error::new`], or just a [`Status`].
///
/// [`Router::on_error`]: crate::Router::on_error
///
/// # Examples
///
/// ```
/// use samovar_http::{Error, Request, http::Status};
///
/// fn note(request: &mut Request) -> Result<String, Error> {
///     let id: u64 = request.param("id").unwrap_or_default().parse()
///         .map_err(|_| Error::new(Status::BAD_REQUEST, "a note has a number"))?;
///     if id > 99 {
///         return Err(Status::NOT_FOUND.into());
///     }
///     Ok(std::fs::read_to_string(format!("notes/{id}"))?)
/// }
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    status: Status,
    message: Cow<'static, str>,
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Creates an error with a status and a message for the client.
    pub fn new(status: Status, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            status,
            message: message.into(),
            cause: None,
        }))
    }

    /// Returns the status of the response.
    pub fn status(&self) -> Status {
        self.0.status
    }

    /// Returns the message for the client.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the cause, which is meant for logs; `None` if the error has no cause.
    pub fn cause(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.0.cause.as_deref()
    }

    /// Replaces the status and the message for the client; the cause stays.
    #[must_use]
    pub fn because(mut self, status: Status, message: impl Into<Cow<'static, str>>) -> Self {
        self.0.status = status;
        self.0.message = message.into();
        self
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>> + 'static> From<E> for Error {
    /// Converts a cause to a 500. Two kinds of causes have a status of their own: a [`Status`],
    /// whose reason phrase becomes the message, and an error that the client has caused.
    fn from(cause: E) -> Self {
        let any: &dyn Any = &cause;
        if let Some(status) = any.downcast_ref::<Status>() {
            return Self::new(*status, status.reason());
        }
        // The box made of an `anyhow::Error` hides the type of the outermost error.
        #[cfg(feature = "anyhow")]
        let fault = any
            .downcast_ref::<anyhow::Error>()
            .and_then(|error| client_fault(error.as_ref()));
        #[cfg(not(feature = "anyhow"))]
        let fault = None;
        let cause = cause.into();
        let mut own = match fault.or_else(|| client_fault(&*cause)) {
            Some((status, text)) => Self::new(status, text),
            None => Self::from(Status::INTERNAL_SERVER_ERROR),
        };
        own.0.cause = Some(cause);
        own
    }
}

/// Returns the status and message of an error that the client has caused; `None` for any other
/// error.
fn client_fault(error: &(dyn StdError + 'static)) -> Option<(Status, String)> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<BodyError>() {
            return Some((error.status(), error.to_string()));
        }
        if let Some(error) = error.downcast_ref::<MultipartError>() {
            return Some((error.status(), error.to_string()));
        }
        if let Some(status) = error.downcast_ref::<Status>() {
            return Some((*status, status.reason().to_owned()));
        }
        // For an I/O error, `source` skips the error wrapped directly inside, so unwrap that error
        // first.
        next = match error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
        {
            Some(inside) => Some(inside),
            None => error.source(),
        };
    }
    None
}

impl fmt::Display for Error {
    /// Writes the status, the message and all causes: for logs, not for clients.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0.status, self.0.message)?;
        let mut next: Option<&dyn StdError> = match &self.0.cause {
            Some(cause) => Some(&**cause),
            None => None,
        };
        while let Some(cause) = next {
            write!(f, ": {cause}")?;
            next = cause.source();
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("status", &self.0.status)
            .field("message", &self.0.message)
            .field("cause", &self.0.cause)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Refusal;

    #[derive(Debug, thiserror::Error)]
    #[error("my own")]
    struct Mine(#[from] io::Error);

    #[test]
    fn an_error_hides_its_cause_from_the_client() {
        let error = Error::from(io::Error::other("/etc/secret"));
        assert_eq!(error.status(), Status::INTERNAL_SERVER_ERROR);
        assert_eq!(error.message(), "Internal Server Error");
        assert_eq!(error.to_string(), "500 Internal Server Error: /etc/secret");
        let error = error.because(Status::CONFLICT, "try again");
        assert_eq!(
            (error.status(), error.message()),
            (Status::CONFLICT, "try again")
        );
        assert!(error.cause().is_some());
    }

    #[test]
    fn a_client_error_keeps_its_status_inside_other_errors() {
        let too_large = || io::Error::from(BodyError::Refused(Refusal::BodyTooLarge));
        assert_eq!(Error::from(too_large()).status(), Status::CONTENT_TOO_LARGE);
        assert_eq!(
            Error::from(Mine(too_large())).status(),
            Status::CONTENT_TOO_LARGE
        );
        let incomplete = io::Error::from(BodyError::Incomplete);
        assert_eq!(Error::from(incomplete).status(), Status::BAD_REQUEST);
        let form = io::Error::other(MultipartError::Truncated);
        assert_eq!(Error::from(form).status(), Status::BAD_REQUEST);
        let form = Error::from(MultipartError::PartTooLong);
        assert_eq!(form.status(), Status::CONTENT_TOO_LARGE);
    }

    #[test]
    fn boxed_errors_and_texts_are_causes() {
        fn fails(what: &str) -> Result<(), Error> {
            match what {
                "box" => Err(Box::<dyn StdError + Send + Sync>::from("boxed"))?,
                "status" => Err(Box::<dyn StdError + Send + Sync>::from(Status::NOT_FOUND))?,
                "text" => Err("a text")?,
                _ => Err(format!("not {what}"))?,
            }
            Ok(())
        }
        let fails = |what| fails(what).unwrap_err().to_string();
        assert_eq!(fails("box"), "500 Internal Server Error: boxed");
        assert_eq!(fails("status"), "404 Not Found: 404");
        assert_eq!(fails("text"), "500 Internal Server Error: a text");
        assert_eq!(fails("so"), "500 Internal Server Error: not so");
    }

    #[cfg(feature = "anyhow")]
    #[test]
    fn a_client_error_keeps_its_status_inside_of_anyhow() {
        let too_large = || io::Error::from(BodyError::Refused(Refusal::BodyTooLarge));
        let plain = anyhow::Error::from(too_large());
        assert_eq!(Error::from(plain).status(), Status::CONTENT_TOO_LARGE);
        let within = anyhow::Error::from(too_large()).context("while receiving");
        assert_eq!(Error::from(within).status(), Status::CONTENT_TOO_LARGE);
        let status = anyhow::Error::from(Status::CONFLICT);
        assert_eq!(Error::from(status).status(), Status::CONFLICT);
        let own = anyhow::anyhow!("no tea").context("while serving");
        assert_eq!(
            Error::from(own).to_string(),
            "500 Internal Server Error: while serving: no tea"
        );
    }
}
