//! What most web applications need in their first hundred lines, for
//! [`samovar_http`]: files, JSON, typed parameters, cookies, multipart forms, server-sent events,
//! CORS and request IDs.
//!
//! ```no_run
//! use samovar_http::{Error, Request, Response, Router};
//! use samovar_web::{Cookie, Files, Json, RequestExt, ResponseExt};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Tea {
//!     name: String,
//!     minutes: u32,
//! }
//!
//! fn brew(request: &mut Request) -> Result<Json<Tea>, Error> {
//!     let tea: Tea = request.json()?;
//!     let factor: u32 = request.query_or("factor", 1)?;
//!     let minutes = tea.minutes * factor;
//!     Ok(Json(Tea { minutes, ..tea }))
//! }
//!
//! fn enter(request: &mut Request) -> Response {
//!     let greeting = match request.cookie("visited") {
//!         Some(_) => "Welcome back\n",
//!         None => "Welcome\n",
//!     };
//!     Response::text(samovar_http::http::Status::OK, greeting)
//!         .cookie(Cookie::new("visited", "yes"))
//! }
//!
//! fn main() -> std::io::Result<()> {
//!     let files = Files::new("public")?;
//!     Router::new()
//!         .post("/brew", brew)
//!         .get("/enter", enter)
//!         .get("/static/{*path}", files.handler())
//!         .serve("127.0.0.1:8080")
//! }
//! ```
//!
//! # Parts
//!
//! | for | use |
//! |---|---|
//! | files | [`Files`] for a directory, [`file()`] for one file: media type, `ETag`, ranges, `sendfile` |
//! | JSON | [`RequestExt::json`], [`Json`], [`json()`] |
//! | parameters | [`RequestExt::param_as`], [`query_as`](RequestExt::query_as), [`query_opt`](RequestExt::query_opt), [`query_or`](RequestExt::query_or) |
//! | cookies | [`RequestExt::cookie`], [`Cookie`], [`ResponseExt::cookie`] |
//! | forms with files | [`RequestExt::multipart`], [`multipart`] |
//! | server-sent events | [`events`], [`Event`] |
//! | conditional requests | [`Validators`] |
//! | middleware | [`Cors`], [`RequestIds`] |
//!
//! Forms without files are part of the engine: [`Request::form`](samovar_http::Request::form).
//!
//! # Scope
//!
//! Everything here is built on the public interface of the engine. The crate has no rate limits, no
//! trusted proxies, no templates and no sessions.

#![forbid(unsafe_code)]

mod conditional;
mod cookie;
mod cors;
mod files;
mod json;
pub mod multipart;
mod params;
mod request;
mod request_id;
mod response;
mod sse;

pub use conditional::{Precondition, Validators};
pub use cookie::{Cookie, SameSite};
pub use cors::Cors;
pub use files::{Files, file};
pub use json::{Json, json};
pub use request::RequestExt;
pub use request_id::{RequestId, RequestIds};
pub use response::ResponseExt;
pub use sse::{Event, events};

/// Compiles the examples of the README together with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
