//! What a handler may return.

use std::borrow::Cow;

use crate::error::Error;
use crate::http::Status;
use crate::response::{Body, Response};

/// What a handler may return in place of a [`Response`].
///
/// | value | response |
/// |---|---|
/// | `&'static str`, `String` | 200, `text/plain; charset=utf-8` |
/// | `&'static [u8]`, `Vec<u8>` | 200, `application/octet-stream` |
/// | `()` | 204 |
/// | [`Status`] | that status; from 400 on with its reason phrase as text |
/// | `(Status, value)` | that status, and what `value` makes besides |
/// | `Option` | the value's, or the [`Error`] 404 |
/// | `Result<_, Error>` | the value's, or what [`Router::on_error`](crate::Router::on_error) makes |
pub trait IntoResponse {
    /// The response.
    ///
    /// # Errors
    ///
    /// If there is none. The router's error handler answers.
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

impl IntoResponse for Cow<'static, str> {
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

/// The answer to an error where no handler makes another one.
pub(crate) fn of_error(error: &Error) -> Response {
    Response::text(error.status(), format!("{}\n", error.message()))
}
