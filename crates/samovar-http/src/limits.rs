//! All configurable limits of the engine.

use std::time::Duration;

use crate::proto::head::HeadLimits;

/// A connection with a slow request or response may be evicted after this multiple of
/// [`Limits::rest_time_min`].
pub(crate) const SLOW_FACTOR: u32 = 5;

/// Limits of a server. The defaults suit a server on the public internet.
///
/// Later versions may add limits, so end a literal with the defaults:
///
/// ```
/// use samovar_http::Limits;
///
/// let limits = Limits { connections_max: 1000, ..Limits::default() };
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Limits of a request head, larger than browsers need; a larger head gets 414 or 431.
    pub head: HeadLimits,
    /// Maximum number of open connections over all I/O threads. At the limit, a new connection
    /// evicts an idle or slow one, or gets 503. Default: 16384. A low limit of open files
    /// (`RLIMIT_NOFILE`) reduces it: to that limit minus 256, and to at most half of a limit below
    /// 4096. The remaining descriptors are for files, such as those sent as response bodies.
    pub connections_max: usize,
    /// Minimum time for which a connection must have been idle before it may be evicted; five times
    /// as long in the middle of a slow request or response. If an address has more than half of all
    /// connections, the idle ones that exceed that half may be evicted without waiting. Applies
    /// only at `connections_max`, and to uploads at `waiting_handlers_max`.
    /// Default: 1 s; [`Duration::MAX`] turns eviction off.
    pub rest_time_min: Duration,
    /// Maximum number of requests that wait for a worker in one lane; further requests get 503.
    /// Default: 4096, because clients give up before a longer queue is served.
    pub queue_len_max: usize,
    /// Maximum number of handlers that wait for their client in the middle of a request's body, or
    /// [for something else](crate::BodyReader::wait). They occupy no worker slot, but a thread
    /// each. Beyond the limit, a request with a streamed body gets 503. But if one address has more
    /// than half of the waiting handlers, or would still have more than the address of the request,
    /// the slowest upload of the former address is ended instead. It must have waited for its
    /// client for five times `rest_time_min`, unless its address has more than half and the request
    /// comes from another address. The same number of jobs may wait
    /// for the source of a body that they send, and the same number of handlers that hang may have
    /// [lent their slot by themselves](crate::Builder::workers); both count separately. Default:
    /// 1024.
    pub waiting_handlers_max: usize,
    /// Maximum time from accepting a connection to the end of its TLS handshake; then the
    /// connection is closed. Default: 10 s.
    pub handshake_time: Duration,
    /// Maximum number of TLS handshakes in progress, each of which needs some milliseconds of a
    /// worker; a new connection beyond the limit is closed. Default: 4096.
    pub handshakes_max: usize,
    /// Maximum time from the first to the last byte of a request head; then the client gets 408.
    /// Default: 10 s; a head fits into one or two packets.
    pub head_time: Duration,
    /// Maximum time between two requests on a connection; then the connection is closed. Default:
    /// 60 s, shorter than the keep-alive time of most proxies.
    pub idle_time: Duration,
    /// Length of the window in which the minimum throughput of a client is measured. Default: 30 s.
    pub stall_time: Duration,
    /// Minimum throughput: number of bytes of a body that a client must send, or of a response that
    /// it must read, within each `stall_time`. A slower client is disconnected. Default: 4096,
    /// slower than a modem.
    pub stall_len_min: u64,
    /// Maximum time for which nothing may come from a client's machine, not even the acknowledgment
    /// of a keep-alive probe, which the kernel sends from half of this time on. After that the
    /// client has vanished, for example because its power failed, and the connection is closed,
    /// even if a response waits for the application. Precise to a second; for data that the client
    /// has not acknowledged, at least `stall_time`. Default: 60 s; zero turns the probes off.
    pub silence_time: Duration,
    /// Whether a client that has shut down its sending side can still wait for a response that the
    /// application [defers](crate::Response::later), writes to a [channel](crate::Body::channel) or
    /// reads from a [reader](crate::Body::reader). Other responses are sent completely in either
    /// case. Default: false, so such a response ends as [`Left`](crate::End::Left) as soon as the
    /// application or the reader lets the client wait. The reason: a client that has closed its
    /// connection looks the same until the server sends something, or until the client's kernel has
    /// forgotten the connection (Linux: after a minute) and replies to a probe of
    /// [`silence_time`](Self::silence_time) with a reset. Until then it would occupy one of
    /// `connections_max`.
    pub half_close: bool,
    /// Maximum time for which a closing connection is still read, so that the client can receive
    /// the last response. What the client sends is discarded, however much it is: many clients read
    /// no response before they have written their whole request. Default: 2 s.
    pub linger_time: Duration,
    /// Memory for response bodies in progress, in bytes; when it is used up, further bodies are
    /// sent in pieces of 16 KiB. Default: 64 MiB.
    pub body_memory_max: usize,
    /// Memory for all request bodies that are received before their handlers start, in bytes; when
    /// it is used up, further bodies get 503. Default: 64 MiB.
    pub request_memory_max: usize,
    /// Maximum number of responses on one connection, which is then closed. Default: 0, no limit.
    pub requests_per_connection_max: u64,
    /// Maximum number of concurrent streams on an HTTP/2 connection. Further streams are refused
    /// with `REFUSED_STREAM`, so the client can retry them. A stream that the client has reset
    /// counts until its handler has returned. Default: 100, the minimum that RFC 9113, 6.5.2
    /// recommends.
    pub streams_max: u32,
    // Forces users to end a literal with `..Limits::default()`, so a later version can add a field.
    // The attribute `non_exhaustive` would forbid that form, too.
    #[doc(hidden)]
    pub more: (),
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: HeadLimits::default(),
            connections_max: 16_384,
            rest_time_min: Duration::from_secs(1),
            queue_len_max: 4096,
            waiting_handlers_max: 1024,
            handshake_time: Duration::from_secs(10),
            handshakes_max: 4096,
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(60),
            stall_time: Duration::from_secs(30),
            stall_len_min: 4096,
            silence_time: Duration::from_secs(60),
            half_close: false,
            linger_time: Duration::from_secs(2),
            body_memory_max: 64 << 20,
            request_memory_max: 64 << 20,
            requests_per_connection_max: 0,
            streams_max: 100,
            more: (),
        }
    }
}
