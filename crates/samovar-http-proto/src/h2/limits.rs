//! Limits of an HTTP/2 connection.

use super::AbuseLimits;

/// Limits of an HTTP/2 connection, beside those of the server: a header list is bounded by
/// [`HeadLimits::head_len_max`](crate::h1::head::HeadLimits), a header block by the server's time
/// for a head, a body by the least throughput of its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http2Limits {
    /// Concurrent streams on a connection; more are refused with `REFUSED_STREAM`, so that the
    /// client can repeat them. A stream that the client has reset counts until its handler has
    /// returned. Default: 100, the minimum that RFC 9113, 6.5.2 recommends.
    pub streams_max: u32,
    /// Flow-control window of a request body, in bytes: sent, but not read by the handler yet.
    /// Default: 256 KiB, enough for 5 MB/s at a round trip of 50 ms.
    pub stream_window_len: u32,
    /// Flow-control window of a connection, in bytes. Default: 1 MiB.
    pub connection_window_len: u32,
    /// Rate limits of frames that cost the server more than the client.
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
