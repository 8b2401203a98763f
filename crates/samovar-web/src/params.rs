//! Typed parameters of paths and queries.

use std::fmt::Display;
use std::str::FromStr;

use samovar_http::http::Status;
use samovar_http::{Error, Request};

/// Parses a path parameter; see [`RequestExt::param_as`](crate::RequestExt::param_as).
pub(crate) fn of_path<T: FromStr<Err: Display>>(request: &Request, name: &str) -> Result<T, Error> {
    let Some(text) = request.param(name) else {
        // A bug of the program, not of the client.
        return Err(format!("the route has no path parameter {name:?}").into());
    };
    parse("path", name, text)
}

/// Parses a query parameter; see [`RequestExt::query_opt`](crate::RequestExt::query_opt).
pub(crate) fn of_query<T: FromStr<Err: Display>>(
    request: &Request,
    name: &str,
) -> Result<Option<T>, Error> {
    let query = request.query();
    query
        .get(name)
        .map(|text| parse("query", name, text))
        .transpose()
}

/// Creates the error for a query parameter that is absent.
pub(crate) fn missing(name: &str) -> Error {
    let message = format!("the query parameter \"{name}\" is missing");
    Error::new(Status::BAD_REQUEST, message)
}

fn parse<T: FromStr<Err: Display>>(place: &str, name: &str, text: &str) -> Result<T, Error> {
    text.parse().map_err(|error| {
        let message = format!("the {place} parameter \"{name}\" is malformed: {error}");
        Error::new(Status::BAD_REQUEST, message)
    })
}
