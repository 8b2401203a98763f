//! Compression of responses, negotiated with the client.
//!
//! Off by default. If a response contains both a secret and text chosen by an attacker, its
//! compressed length reveals the secret (BREACH); only the application knows its responses of that
//! kind. [`Builder::compression`](crate::Builder::compression) enables it for a server, and
//! [`Response::uncompressed`](crate::Response::uncompressed) disables it for a single response.
//!
//! ```no_run
//! use samovar_http::{Listener, Router, Server};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder(Router::new().get("/", |_| "Hello\n"))
//!     .listen(Listener::tcp("[::]:8080".parse()?, 1024)?)
//!     .compression()
//!     .start()?;
//! # Ok(())
//! # }
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
//! | it comes from [`Service::inline`](crate::Service::inline) | the application can prepare a compressed form |
//!
//! The server sends `Vary: Accept-Encoding` whenever another client could receive another coding,
//! even if this response is plain. It makes a strong `ETag` weak and removes `Accept-Ranges`,
//! because both refer to the handler's bytes (RFC 9110, 8.8.3).
//!
//! The server prefers zstd to br to gzip; the weights sent by the client take precedence.
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

pub(crate) use negotiate::{coding, negotiate, streams};
