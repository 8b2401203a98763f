//! Compression of responses, negotiated with the client.
//!
//! Off unless a server is given a [`Compression`]: the length of a compressed response that
//! contains both a secret and text chosen by an attacker reveals the secret (BREACH), and only the
//! application knows which responses do. [`Response::uncompressed`](crate::Response::uncompressed)
//! turns it off for a single response.
//!
//! ```no_run
//! use samovar_http::compress::Compression;
//! use samovar_http::{Listener, Router, Server};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder(Router::new().get("/", |_| "Hello\n"))
//!     .listen(Listener::tcp("[::]:8080".parse()?, 1024)?)
//!     .compression(Compression::default())
//!     .start()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Conditions
//!
//! A response is not compressed if one of these holds:
//!
//! | | reason |
//! |---|---|
//! | the client accepts none of the codings | RFC 9110, 12.5.3 |
//! | shorter than [`Compression::len_min`] | it fits into one packet with its head anyway |
//! | its `Content-Type` is missing or not listed in `media_type.rs` | images, archives and fonts are compressed already |
//! | it has a `Content-Encoding` | it is encoded already |
//! | status 206, or a `Content-Range` | ranges refer to the plain bytes |
//! | `Cache-Control: no-transform` | RFC 9111, 5.2.2.6 |
//! | it has a digest of its content | the digest would become wrong (RFC 9530) |
//! | it has trailers | they may describe the plain bytes |
//! | too many bodies are being compressed | memory; see [`Compression::streams_max`] |
//! | it comes from [`Service::inline`](crate::Service::inline) | the application can prepare a compressed form |
//!
//! `Vary: Accept-Encoding` is sent whenever another client could get another coding, including with
//! the plain form. A strong `ETag` becomes weak and `Accept-Ranges` is removed, because the bytes
//! differ from those they refer to (RFC 9110, 8.8.3).
//!
//! # Implementation
//!
//! Bodies in memory up to 64 KiB are compressed at once and have a `Content-Length`. Others are
//! compressed as the client reads them. The compressor is flushed when a source has no data for now
//! ([`Progress::Wait`](crate::Progress::Wait)), so that events arrive when they happen. Compression
//! runs on workers.

mod encoder;
mod media_type;
mod negotiate;
mod source;

pub(crate) use negotiate::{Negotiator, negotiate};

use crate::http::accept_encoding::Coding;

/// Compression settings of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compression {
    /// Enabled codings in order of preference; the client's weights take precedence. Default:
    /// [`Coding::ALL`].
    pub codings: Vec<Coding>,
    /// Minimum length of a compressed body, in bytes, where the length is known. Default: 860. An
    /// Ethernet packet carries 1460 bytes, of which a head takes up to 600; a response that fits
    /// into one packet does not arrive sooner if it is shorter.
    pub len_min: u64,
    /// Limit of bodies that are compressed concurrently while they are sent; further ones are sent
    /// plain. Each takes 1.4 MiB (zstd), 1.1 MiB (br) or 0.2 MiB (gzip) while its client reads.
    /// Default: 64.
    pub streams_max: usize,
}

impl Default for Compression {
    fn default() -> Self {
        Self {
            codings: Coding::ALL.to_vec(),
            len_min: 860,
            streams_max: 64,
        }
    }
}
