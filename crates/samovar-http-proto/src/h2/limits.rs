//! Limits of an HTTP/2 connection.

use super::AbuseLimits;

/// Limits of an HTTP/2 connection, beside those of the server: a header list is bounded by
/// [`HeadLimits::head_len_max`](crate::h1::head::HeadLimits), a header block by the server's time
/// for a head, a body by the least throughput of its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http2Limits {
    /// Requests at once on a connection; more are refused with `REFUSED_STREAM`, which tells the
    /// peer to try again. A request that the peer has reset counts until its handler is done.
    /// Default: 100, the least that RFC 9113, 6.5.2 recommends.
    pub streams_max: u32,
    /// Bytes of a request's body that may be on their way, or waiting for a handler to read them.
    /// Default: 256 KiB, enough for 5 MB a second over 50 ms.
    pub stream_window_len: u32,
    /// The same for all requests of a connection. Default: 1 MiB.
    pub connection_window_len: u32,
    /// Frames that cost more than they are worth.
    pub abuse: AbuseLimits,
}

impl Default for Http2Limits {
    fn default() -> Self {
        Self {
            streams_max: 100,
            stream_window_len: 256 * 1024,
            connection_window_len: 1024 * 1024,
            abuse: AbuseLimits::default(),
        }
    }
}
