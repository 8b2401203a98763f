//! All limits of the engine.

use std::time::Duration;

#[cfg(feature = "http2")]
use crate::h2::Http2Limits;
use crate::proto::head::HeadLimits;

/// Limits of a server. The defaults suit a server on the public internet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Limits of a request head, more than browsers send; beyond them 414 or 431.
    pub head: HeadLimits,
    /// Open connections, over all I/O threads. At the limit a new connection evicts one that waits
    /// for its client, or gets 503. Default: 16384. Never more than the process may have
    /// descriptors, less 256, or half of them if they are fewer than 4096: bodies hold files open.
    pub connections_max: usize,
    /// How long a connection must be idle before it may be evicted; five times as long in the
    /// middle of a slow request or answer, and not at all if its address has more than half of all
    /// connections. Applies at `connections_max` only. Default: 1 s; [`Duration::MAX`] turns
    /// eviction off.
    pub rest_time_min: Duration,
    /// Requests that wait for a worker in one lane; beyond them 503. Default: 4096; clients give up
    /// before a longer queue is served.
    pub queue_len_max: usize,
    /// Handlers that wait for their client in the middle of a body without occupying a worker slot;
    /// beyond them a request with a streamed body gets 503. Each costs a thread. Default: 512.
    pub waiting_handlers_max: usize,
    /// Time from accepting a connection to the end of its TLS handshake; then the connection is
    /// closed. Default: 10 s.
    pub handshake_time: Duration,
    /// TLS handshakes in progress, each some milliseconds for a worker; beyond them a new
    /// connection is closed. Default: 4096.
    pub handshakes_max: usize,
    /// Time from the first to the last byte of a head; then 408. Default: 10 s, for what fits into
    /// one or two packets.
    pub head_time: Duration,
    /// Time between two requests on a connection; then the connection is closed. Default: 60 s,
    /// shorter than the keep-alive time of most proxies.
    pub idle_time: Duration,
    /// Window over which the minimum throughput of a client is measured. Default: 30 s.
    pub stall_time: Duration,
    /// Minimum throughput: bytes of a body that a client must send, or of an answer that it must
    /// read, within one `stall_time`. Slower clients are disconnected. Default: 4096, slower than a
    /// modem.
    pub stall_len_min: u64,
    /// Whether a client that shuts down its sending side can still wait for an answer that the
    /// application [defers](crate::Response::later) or writes to a
    /// [channel](crate::Body::channel). Default: false: such an answer ends as
    /// [`Left`](crate::End::Left), because a client that closes its connection looks the same, and
    /// would otherwise keep the connection open for as long as the application is silent.
    ///
    /// Requests that are still unread delay this end, by one `stall_time` at most. Answers that do
    /// not wait for the application are sent whole in either case.
    pub half_close: bool,
    /// How long a closing connection is still read, so that the client can see the last answer.
    /// Default: 2 s.
    pub linger_time: Duration,
    /// Memory for response bodies in progress, in bytes; beyond it they leave in pieces of 16 KiB.
    /// Default: 64 MiB.
    pub body_memory_max: usize,
    /// Memory for request bodies that are received before their handlers start, in bytes for all of
    /// them; beyond it 503. Default: 64 MiB.
    pub request_memory_max: usize,
    /// Answers on one connection before it is closed. Default: 0, no limit.
    pub requests_per_connection_max: u64,
    /// Limits specific to HTTP/2.
    #[cfg(feature = "http2")]
    pub http2: Http2Limits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: HeadLimits::default(),
            connections_max: 16_384,
            rest_time_min: Duration::from_secs(1),
            queue_len_max: 4096,
            waiting_handlers_max: 512,
            handshake_time: Duration::from_secs(10),
            handshakes_max: 4096,
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(60),
            stall_time: Duration::from_secs(30),
            stall_len_min: 4096,
            half_close: false,
            linger_time: Duration::from_secs(2),
            body_memory_max: 64 << 20,
            request_memory_max: 64 << 20,
            requests_per_connection_max: 0,
            #[cfg(feature = "http2")]
            http2: Http2Limits::default(),
        }
    }
}
