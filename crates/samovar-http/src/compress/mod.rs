//! Compressed responses, where the client takes them and it is worth it.
//!
//! Off unless a server is given a [`Compression`]: a response that holds both a secret and
//! something that an attacker chose tells the secret by its length when it is compressed (BREACH),
//! and only the application knows which ones do. Once it is on,
//! [`Response::uncompressed`](crate::Response::uncompressed) turns it off for one response.
//!
//! # What is compressed
//!
//! A response is left alone if any of this holds:
//!
//! | | why |
//! |---|---|
//! | the client does not ask for a coding that is known here | RFC 9110, 12.5.3 |
//! | shorter than [`Compression::len_min`] | with its head it fits into one packet either way |
//! | its `Content-Type` is not on the list in `media_type.rs`, or missing | images, archives and fonts are compressed already |
//! | it has a `Content-Encoding` | never twice |
//! | status 206, or a `Content-Range` | ranges count the bytes as they are |
//! | `Cache-Control: no-transform` | RFC 9111, 5.2.2.6 |
//! | it has a digest of its content | the digest would be wrong (RFC 9530) |
//! | it has trailers | they may be about the bytes too |
//! | too many bodies are being compressed | memory, see [`Compression::streams_max`] |
//! | it is an answer of [`Service::inline`](crate::Service::inline) | it was prepared once, and so can its compressed form |
//!
//! `Vary: Accept-Encoding` is sent whenever another client could have got another coding, so also
//! with the plain form. A strong `ETag` becomes weak: the bytes are no longer those it names (RFC
//! 9110, 8.8.3). `Accept-Ranges` is dropped for the same reason.
//!
//! # How
//!
//! Bodies in memory up to 64 KiB are compressed whole and keep their `Content-Length`. Others are
//! compressed as the peer reads them; a source that has nothing for now
//! ([`Progress::Wait`](crate::Progress::Wait)) has what it gave so far flushed out, so that events
//! arrive when they happen. All of it runs on workers.

mod encoder;
mod media_type;
mod negotiate;
mod source;

pub(crate) use negotiate::{Negotiator, negotiate};

use crate::http::accept_encoding::Coding;

/// How a server compresses its responses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compression {
    /// The codings to use, the best first; a client's own order goes before it. Default:
    /// [`Coding::ALL`].
    pub codings: Vec<Coding>,
    /// The shortest body that is compressed, in bytes, where the length is known. Default: 860. An
    /// Ethernet packet carries 1460 bytes, and a head takes up to 600 of them; what fits into one
    /// packet arrives no sooner for being shorter.
    pub len_min: u64,
    /// Bodies that may be compressed at once as they are sent; past it they go out as they are.
    /// Each holds 1.4 MiB (zstd), 1.1 MiB (br) or 0.2 MiB (gzip) for as long as its peer reads.
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
