//! Answers in the same words from several places.

use samovar_http::http::Status;
use samovar_http::{Body, Response};

/// nix-serve's words.
pub(crate) const NO_PATH: &str = "No such path.\n";
pub(crate) const NOT_FOUND: &str = "File not found.\n";
pub(crate) const WRONG_HASH: &str = "Incorrect NAR hash. Maybe the path has been recreated.\n";
pub(crate) const NOT_ALLOWED: &str = "This cache can only be read: GET and HEAD are understood.\n";
pub(crate) const DAMAGED: &str =
    "The files of this path are damaged here. It is served again once they are repaired.\n";
pub(crate) const ONLY_POST: &str = "This URL understands POST alone.\n";
pub(crate) const BUSY: &str = "Too many such answers are under way. Try again.\n";
pub(crate) const UNAVAILABLE: &str = "The store cannot be read at the moment. Try again.\n";

pub(crate) const TEXT: (&str, &str) = ("Content-Type", "text/plain");

pub(crate) const RETRY_AFTER: (&str, &str) = ("Retry-After", "1");

pub(crate) fn no_path() -> Response {
    Response::text(Status::NOT_FOUND, NO_PATH)
}

/// 404, so that clients ask the next cache, or build.
pub(crate) fn damaged() -> Response {
    Response::text(Status::NOT_FOUND, DAMAGED)
}

/// 404 is said only when the database said so, or the files were found wrong: clients remember a
/// miss for an hour.
pub(crate) fn unavailable() -> Response {
    Response::text(Status::SERVICE_UNAVAILABLE, UNAVAILABLE).header(RETRY_AFTER.0, RETRY_AFTER.1)
}

pub(crate) fn not_allowed() -> Response {
    Response::text(Status::METHOD_NOT_ALLOWED, NOT_ALLOWED).header("Allow", "GET, HEAD")
}

pub(crate) fn only_post() -> Response {
    Response::text(Status::METHOD_NOT_ALLOWED, ONLY_POST).header("Allow", "POST")
}

pub(crate) fn busy() -> Response {
    Response::text(Status::SERVICE_UNAVAILABLE, BUSY).header(RETRY_AFTER.0, RETRY_AFTER.1)
}

pub(crate) fn json_response(body: Body) -> Response {
    Response::new(Status::OK, body).header("Content-Type", "application/json")
}

pub(crate) fn wrong_hash() -> Response {
    Response::text(Status::NOT_FOUND, WRONG_HASH)
}
