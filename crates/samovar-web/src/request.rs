//! Methods of requests.

use std::fmt::Display;
use std::str::FromStr;

use samovar_http::{BodyReader, Error, Request};
use serde::de::DeserializeOwned;

use crate::multipart::{Limits, Multipart};
use crate::{cookie, json, multipart, params};

/// Methods of a [`Request`] that this crate adds.
pub trait RequestExt {
    /// Returns the body as a value read from JSON.
    ///
    /// The `Content-Type` must be `application/json`, or a type with the suffix `+json`: browsers
    /// send those to another site only with its permission, but a plain form to any site.
    ///
    /// # Errors
    ///
    /// 415 for another `Content-Type`; 400 for malformed JSON and for a value of another form, with
    /// line and column; 413 for a body that is too long, on a streaming route more than 1 MiB.
    fn json<T: DeserializeOwned>(&mut self) -> Result<T, Error>;

    /// Returns the decoded path parameter `{name}`, parsed.
    ///
    /// # Errors
    ///
    /// 400 that names the parameter if it cannot be parsed; 500 if the route has no such parameter.
    fn param_as<T: FromStr<Err: Display>>(&self, name: &str) -> Result<T, Error>;

    /// Returns the first query parameter of this name, parsed.
    ///
    /// # Errors
    ///
    /// 400 that names the parameter if it is absent or cannot be parsed.
    fn query_as<T: FromStr<Err: Display>>(&self, name: &str) -> Result<T, Error>;

    /// Returns the first query parameter of this name, parsed; `None` if it is absent.
    ///
    /// # Errors
    ///
    /// 400 that names the parameter if it cannot be parsed.
    fn query_opt<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Option<T>, Error>;

    /// Returns the first query parameter of this name, parsed, or `default` if it is absent.
    ///
    /// # Errors
    ///
    /// 400 that names the parameter if it cannot be parsed.
    fn query_or<T: FromStr<Err: Display>>(&self, name: &str, default: T) -> Result<T, Error>;

    /// Returns the decoded value of the first cookie with this name, in all `Cookie` fields; `None`
    /// if there is none.
    ///
    /// Clients can forge cookies: use a long random value as the key of a session.
    fn cookie(&self, name: &str) -> Option<String>;

    /// Returns the parts of a form with files (`multipart/form-data`) as they arrive, with the
    /// default [`Limits`]. On a [streaming](samovar_http::Route::streaming) route, files of any
    /// size take constant memory.
    ///
    /// # Errors
    ///
    /// 415 if the `Content-Type` is not `multipart/form-data`, 400 if it has no valid boundary.
    fn multipart(&mut self) -> Result<Multipart<BodyReader<'_>>, Error> {
        self.multipart_within(Limits::default())
    }

    /// Returns the parts of a form with files, with other limits.
    ///
    /// # Errors
    ///
    /// As [`multipart`](Self::multipart).
    fn multipart_within(&mut self, limits: Limits) -> Result<Multipart<BodyReader<'_>>, Error>;
}

impl RequestExt for Request {
    fn json<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        json::read(self)
    }

    fn param_as<T: FromStr<Err: Display>>(&self, name: &str) -> Result<T, Error> {
        params::of_path(self, name)
    }

    fn query_as<T: FromStr<Err: Display>>(&self, name: &str) -> Result<T, Error> {
        params::of_query(self, name)?.ok_or_else(|| params::missing(name))
    }

    fn query_opt<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Option<T>, Error> {
        params::of_query(self, name)
    }

    fn query_or<T: FromStr<Err: Display>>(&self, name: &str, default: T) -> Result<T, Error> {
        Ok(params::of_query(self, name)?.unwrap_or(default))
    }

    fn cookie(&self, name: &str) -> Option<String> {
        cookie::of_request(self, name)
    }

    fn multipart_within(&mut self, limits: Limits) -> Result<Multipart<BodyReader<'_>>, Error> {
        multipart::of_request(self, limits)
    }
}
