//! Compression of responses, negotiated with the client.
//!
//! | server of | default | to change it |
//! |---|---|---|
//! | a [`Router`](crate::Router) | on | [`Router::compression`](crate::Router::compression) |
//! | any other [`Service`](crate::Service) | off | [`Service::compresses`](crate::Service::compresses), or [`Builder::compression`](crate::Builder::compression), which includes event streams |
//!
//! # Secrets
//!
//! If a response contains both a secret and text chosen by an attacker, its compressed length
//! reveals the secret to those who see the encrypted traffic (BREACH). Such responses are for
//! example pages with a form, whose hidden token is the secret, if the page repeats a parameter of
//! the URL. Only the application knows them. Exclude them:
//!
//! ```
//! use samovar_http::{Request, Response, Route, Router, http::Status};
//!
//! fn form(request: &mut Request) -> Response {
//!     let name = request.query().get("name").unwrap_or_default().to_owned();
//!     Response::text(Status::OK, format!("to: {name}, token: ..."))
//! }
//!
//! let router = Router::new()
//!     .get("/", |_| "Hello\n")
//!     // All responses of one route:
//!     .route(Route::get("/transfer", form).uncompressed())
//!     // One response:
//!     .get("/search", |request: &mut Request| form(request).uncompressed());
//! // Everything:
//! let router = router.compression(false);
//! ```
//!
//! # Conditions
//!
//! A response is sent uncompressed if one of these conditions holds:
//!
//! | | reason |
//! |---|---|
//! | the client accepts none of the codings | RFC 9110, 12.5.3 |
//! | shorter than 860 bytes | it fits into one Ethernet packet with its head (1460 bytes), so compression does not make it arrive sooner |
//! | its `Content-Type` is missing or not listed in `media_type.rs` | images, archives and fonts are compressed already |
//! | it has a `Content-Encoding` | it is encoded already |
//! | status 206, or a `Content-Range` | ranges refer to the plain bytes |
//! | `Cache-Control: no-transform` | RFC 9111, 5.2.2.6 |
//! | it has a digest of its content | the digest would become wrong (RFC 9530) |
//! | 64 bodies are being compressed while they are sent | memory: each takes 1.4 MiB (zstd), 1.1 MiB (br) or 0.2 MiB (gzip) |
//! | its `Content-Type` is `text/event-stream`, unless `Builder::compression` was called | memory: the compressor of an event stream stays for as long as the page is open |
//! | it comes from a handler on the I/O thread: [`Service::inline`](crate::Service::inline), [`Route::inline`](crate::Route::inline), [`Route::inline_body`](crate::Route::inline_body) over HTTP/1 | compression would delay the other connections; the application can prepare a compressed form |
//!
//! The server prefers zstd to br to gzip; the weights sent by the client take precedence.
//!
//! # Effects on other fields and methods
//!
//! * **`Vary`**: the server sends `Vary: Accept-Encoding` whenever another client could receive
//!   another coding, even if this response is plain.
//! * **`ETag`**: a strong tag of a compressed response becomes weak, because it names the handler's
//!   bytes (RFC 9110, 8.8.3). So the client sends `If-None-Match: W/"v1"` for the tag `"v1"`:
//!   handlers must compare without the `W/`. The tag of a 304 becomes weak in the same way.
//! * **`Range`**: ranges are of the plain bytes. A compressed response has no `Accept-Ranges`, and
//!   its weak tag never matches `If-Range` (RFC 9110, 13.1.5), so no client joins a part of the
//!   compressed bytes with a part of the plain ones. A handler's 206 is sent as it is.
//! * **HEAD** has the fields of GET, including `Content-Encoding`. To know them, the server
//!   compresses the body of the response, if it is in memory, and discards it.
//! * **`Content-Length`** is missing if the body is longer than 64 KiB or not in memory.
//! * **Server-sent events**, if they are compressed, reach the client without delay: see below.
//!
//! # Cost
//!
//! CPU time of a router's server per request, for 2 KiB of JSON from a worker, by 16 connections of
//! `wrk`; medians of five runs on one of two busy cores of a Xeon:
//!
//! | compression | client accepts | µs per request | body, bytes |
//! |---|---|---:|---:|
//! | off | | 7.6 | 2050 |
//! | on | nothing (`Vary` is added) | 8.6 | 2050 |
//! | on | gzip | 26.2 | 510 |
//! | on | br | 27.5 | 475 |
//! | on | zstd | 26.1 | 498 |
//! | on | any, for a body of 6 bytes | 7.2 | 6 |
//!
//! # Implementation
//!
//! Bodies in memory of up to 64 KiB are compressed at once and have a `Content-Length`. Other
//! bodies are compressed while the client reads them. When a source has no data at present
//! ([`Progress::Wait`](crate::Progress::Wait)), the compressor is flushed, so that events reach the
//! client without delay. Compression runs on workers.

mod encoder;
mod media_type;
mod negotiate;
mod source;

pub(crate) use negotiate::{Compression, coding, concerns};
