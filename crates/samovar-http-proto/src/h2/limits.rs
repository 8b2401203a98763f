//! Limits of an HTTP/2 connection.

use super::AbuseLimits;

/// Limits of an HTTP/2 connection in addition to the server's limits:
/// [`HeadLimits::head_len_max`](crate::h1::head::HeadLimits) bounds a header list, the server's
/// time limit for heads bounds a header block, and the minimum throughput bounds the duration of a
/// body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http2Limits {
    /// Maximum number of concurrent streams on a connection. Further streams are refused with
    /// `REFUSED_STREAM`, so the client can retry them. A stream that the client has reset counts
    /// until its handler has returned. Default: 100, the minimum that RFC 9113, 6.5.2 recommends.
    pub streams_max: u32,
    /// Flow-control window of a request body, in bytes: the maximum that the client may send before
    /// the handler reads. Default: 256 KiB, enough for 5 MB/s at a round-trip time of 50 ms.
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
