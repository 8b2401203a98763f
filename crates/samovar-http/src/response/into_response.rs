//! Conversion of handlers' return values to responses.

use std::borrow::Cow;

use super::{Body, Response};
use crate::error::Error;
use crate::http::Status;

/// A return value of a handler, converted to a [`Response`].
///
/// | value | response |
/// |---|---|
/// | `&'static str`, `String` | 200, `text/plain; charset=utf-8` |
/// | `&'static [u8]`, `Vec<u8>` | 200, `application/octet-stream` |
/// | `()` | 204 |
/// | [`Status`] | that status; from 400 on with its reason phrase as text |
/// | `(Status, value)` | the response of `value` with that status |
/// | `Option` | the response of the value; [`Error`] 404 for `None` |
/// | `Result<_, Error>` | the same; for an `Err`, see [`Router::on_error`](crate::Router::on_error) |
///
/// A function that returns another type is no handler, and the compiler names the types above.
/// Three cases are frequent:
///
/// * An `async fn` returns a future. Remove `async`: a handler may block.
/// * `Result<_, std::io::Error>`, or another error type. Return `Result<_, Error>`: `?` converts
///   other errors.
/// * A value for JSON. Return `samovar_web::Json(value)`, or the result of
///   [`Response::json`].
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "this handler returns `{Self}`",
    note = "a handler returns a `Response`, `&'static str`, `String`, `Vec<u8>`, `()`, `Status`, \
            `(Status, _)`, `Option<_>` or `Result<_, samovar_http::Error>`",
    note = "if it is an `async fn`, remove `async`: a handler is a plain function and may block",
    note = "if its error type is another one, return `Result<_, samovar_http::Error>`: `?` \
            converts errors",
    note = "if it is a value for JSON, return `samovar_web::Json(value)` or `Response::json(…)`"
)]
pub trait IntoResponse {
    /// Converts the value.
    ///
    /// # Errors
    ///
    /// An [`Error`], from which the router's error handler creates the response.
    fn into_response(self) -> Result<Response, Error>;
}

impl IntoResponse for Response {
    fn into_response(self) -> Result<Response, Error> {
        Ok(self)
    }
}

impl IntoResponse for &'static str {
    fn into_response(self) -> Result<Response, Error> {
        Ok(Response::text(Status::OK, self))
    }
}

impl IntoResponse for String {
    fn into_response(self) -> Result<Response, Error> {
        Ok(Response::text(Status::OK, self))
    }
}

impl IntoResponse for Vec<u8> {
    fn into_response(self) -> Result<Response, Error> {
        Ok(binary(self.into()))
    }
}

impl IntoResponse for &'static [u8] {
    fn into_response(self) -> Result<Response, Error> {
        Ok(binary(self.into()))
    }
}

fn binary(bytes: Cow<'static, [u8]>) -> Response {
    Response::new(Status::OK, Body::Bytes(bytes)).header("Content-Type", "application/octet-stream")
}

impl IntoResponse for () {
    fn into_response(self) -> Result<Response, Error> {
        Ok(Response::new(Status::NO_CONTENT, Body::Empty))
    }
}

impl IntoResponse for Status {
    fn into_response(self) -> Result<Response, Error> {
        Ok(if self.code() >= 400 {
            Response::text(self, format!("{}\n", self.reason()))
        } else {
            Response::new(self, Body::Empty)
        })
    }
}

impl<R: IntoResponse> IntoResponse for (Status, R) {
    fn into_response(self) -> Result<Response, Error> {
        let mut response = self.1.into_response()?;
        response.status = self.0;
        Ok(response)
    }
}

impl<R: IntoResponse> IntoResponse for Option<R> {
    fn into_response(self) -> Result<Response, Error> {
        self.ok_or(Status::NOT_FOUND)?.into_response()
    }
}

impl<R: IntoResponse> IntoResponse for Result<R, Error> {
    fn into_response(self) -> Result<Response, Error> {
        self?.into_response()
    }
}

/// Creates the default response to an error.
pub(crate) fn of_error(error: &Error) -> Response {
    Response::text(error.status(), format!("{}\n", error.message()))
}
