//! Every bound of the engine, in one place.

use std::time::Duration;

#[cfg(feature = "http2")]
use crate::h2::Http2Limits;
use crate::proto::head::HeadLimits;

/// Limits of a server. The defaults suit a server on the open network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bounds of a request head; past them 414 or 431.
    pub head: HeadLimits,
    /// Connections at once, over all I/O threads; past it one that waits for its peer is closed for
    /// the new one, or that gets 503. Default: 16384,
    /// but never more than the descriptors the process may have, less a reserve of 256, and not
    /// more than half of them if they are fewer than 4096: bodies hold files open.
    pub connections_max: usize,
    /// How long a connection has to be at rest before it may be closed for a new one; five times as
    /// long in the middle of a request or an answer of which too little moves, and not at all where
    /// an address has more than half of all. At the limit of connections only. Default: 1 s;
    /// [`Duration::MAX`]: never.
    pub rest_time_min: Duration,
    /// Requests waiting for a worker; past it 503. Default: 4096.
    pub queue_len_max: usize,
    /// Handlers that may wait for their peer in the middle of a body without counting as workers;
    /// past it a request with a streamed body gets 503. Each costs a thread. Default: 512.
    pub waiting_handlers_max: usize,
    /// From the acceptance of a connection to the end of its TLS handshake. Default: 10 s; past it
    /// the connection is closed.
    pub handshake_time: Duration,
    /// TLS handshakes under way at once; past it a new connection is closed. Default: 4096.
    pub handshakes_max: usize,
    /// From a head's first byte to its last. Default: 10 s; past it 408.
    pub head_time: Duration,
    /// Between two requests on one connection. Default: 60 s; past it the connection is closed.
    pub idle_time: Duration,
    /// The window over which a peer's least throughput is measured. Default: 30 s.
    pub stall_time: Duration,
    /// Bytes a peer has to send of a body, or read of an answer, within one `stall_time`; below,
    /// the connection is closed. Default: 4096.
    pub stall_len_min: u64,
    /// Whether a client that shuts down its sending side may still wait for an answer that the
    /// application gives [later](crate::Response::later) or writes to a
    /// [channel](crate::Body::channel). Default: no: such an answer ends as
    /// [`Left`](crate::End::Left), as most clients that close cannot be told from it, and a
    /// connection whose client is gone would stay open for as long as the application is silent.
    /// Requests of that connection that are not read yet delay this, by one `stall_time` at most.
    /// Other answers are sent whole either way.
    pub half_close: bool,
    /// How long a closing connection is read so that the peer can see the last answer.
    /// Default: 2 s.
    pub linger_time: Duration,
    /// Memory for response bodies under way, in bytes; past it they leave in small pieces.
    /// Default: 64 MiB.
    pub body_memory_max: usize,
    /// Memory for request bodies that are read before their handlers start, in bytes and in sum;
    /// past it 503. Default: 64 MiB.
    pub request_memory_max: usize,
    /// Answers on one connection before it is closed; 0 means no limit. Default: 0.
    pub requests_per_connection_max: u64,
    /// Limits of HTTP/2 alone.
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
