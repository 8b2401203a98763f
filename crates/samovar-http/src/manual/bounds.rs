//! All limits with their defaults and reasons; the memory of an idle connection.
//!
//! Memory grows with the number of clients by a stated number of bytes each. It does not depend on
//! the size of requests or responses.
//!
//! | limit | default | when exceeded | reason |
//! |---|---|---|---|
//! | [`head`](crate::Limits::head): length | 16 KiB ([`HeadLimits`](crate::HeadLimits)) | 431 | more than browsers send, small enough to buffer per connection |
//! | request target | 8 KiB | 414 | RFC 9112, 3 asks for 8000 bytes |
//! | header fields | 100, at most 128 | 431 | clients send less than half of it |
//! | [`head_time`](crate::Limits::head_time) | 10 s | 408 | a head fits into one or two packets |
//! | [`idle_time`](crate::Limits::idle_time) | 60 s | close | shorter than the keep-alive time of most proxies |
//! | [`stall_time`](crate::Limits::stall_time), [`stall_len_min`](crate::Limits::stall_len_min) | 30 s, 4096 B | 408, or close | slower than a modem |
//! | [`linger_time`](crate::Limits::linger_time) | 2 s | close | enough for a response to arrive anywhere |
//! | [`connections_max`](crate::Limits::connections_max) | 16,384, or fewer by `RLIMIT_NOFILE` | 503; with TLS a close | below the usual descriptor limit |
//! | [`requests_per_connection_max`](crate::Limits::requests_per_connection_max) | none | close | no resource grows with it |
//! | [`handshake_time`](crate::Limits::handshake_time) | 10 s | close | as for a head |
//! | [`handshakes_max`](crate::Limits::handshakes_max) | 4096 | close | each takes a worker some milliseconds |
//! | [`queue_len_max`](crate::Limits::queue_len_max) | 4096 | 503 | clients give up before a longer queue is served |
//! | [`waiting_handlers_max`](crate::Limits::waiting_handlers_max) | 512 | 503 for streamed bodies | each costs a thread |
//! | body of a route | 1 MiB ([`Route::body_len_max`](crate::Route::body_len_max)) | 413 | as in Mummy |
//! | [`request_memory_max`](crate::Limits::request_memory_max) | 64 MiB | 503 | sum of all buffered request bodies |
//! | [`body_memory_max`](crate::Limits::body_memory_max) | 64 MiB | smaller pieces | sum of all response bodies; 16 KiB each beyond |
//! | streamed body of a route | argument of [`Route::streaming`](crate::Route::streaming) | the read fails; `?` answers 413 | |
//! | [`form`](crate::Request::form) | 1000 fields; 1 MiB if streamed | 413 | a field costs more memory than its bytes |
//! | a [`Sender`](crate::Sender)'s queue | 256 KiB | `send` waits, `try_send` fails | |
//! | chunk size line | 256 B | 400 | extensions are not used |
//! | trailers of a request | 8 KiB | 400 | as for a head |
//! | unread rest of a body | 64 KiB | close | reading more costs more than a new connection |
//! | HTTP/2: concurrent streams | 100 ([`Http2Limits`](crate::Http2Limits)) | `REFUSED_STREAM` | minimum recommended by RFC 9113 |
//! | HTTP/2: windows | 256 KiB per stream, 1 MiB per connection | flow control | 5 MB/s at a round trip of 50 ms |
//! | HTTP/2: resets, control frames, window updates | see [`AbuseLimits`](crate::AbuseLimits) | `ENHANCE_YOUR_CALM` | |
//!
//! Queries and cookies are bounded by the head. HTTP/2 ([`Http2Limits`](crate::Http2Limits),
//! [`AbuseLimits`](crate::AbuseLimits)), WebSockets ([`ws::Limits`](crate::ws::Limits)) and
//! compression ([`Compression`](crate::compress::Compression)) have limits of their own.
//!
//! # Memory of a connection
//!
//! Sockets are read into a buffer of the thread; only the bytes of an incomplete request are kept.
//! An idle HTTP/1.1 connection takes less than a kilobyte (tested by `tests/idle_memory.rs`), and
//! so does an idle WebSocket without compression context. TLS adds about 4 KiB
//! (`tests/tls_memory.rs` allows 6).
//!
//! An idle HTTP/2 connection takes about 15 KiB, mostly tables and buffers of `h2`. A stream whose
//! response is not read holds a piece of the body, 16 KiB to 256 KiB depending on their number, and
//! 32 KiB within `h2` (`tests/http2_memory.rs`).
//!
//! A response body in progress takes one buffer: 256 KiB within the budget, 16 KiB beyond. A file
//! sent with `sendfile` takes none.
