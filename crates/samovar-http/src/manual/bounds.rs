//! Limits without an option, where to find the others, and the memory of an idle connection.
//!
//! Memory grows with the number of clients, by a documented number of bytes per client. It does not
//! depend on the size of requests or responses.
//!
//! [`Limits`](crate::Limits) contains the configurable limits of a server, with their defaults and
//! reasons; the limits of the head also bound queries. [`ws::Limits`](crate::ws::Limits) contains
//! the limits of a WebSocket, and [`compress`](crate::compress) lists the limits of compression.
//! The other limits are:
//!
//! | limit | default | effect if exceeded | reason for the default |
//! |---|---|---|---|
//! | body of a route | 1 MiB ([`Route::body_len_max`](crate::Route::body_len_max)) | 413 | as in Mummy |
//! | streamed body of a route | none: an argument of [`Route::streaming`](crate::Route::streaming) | the read fails; with `?`, the response is 413 | |
//! | [`form`](crate::Request::form) | 1000 fields; 1 MiB if streamed | 413 | a field takes more memory than its bytes |
//! | a [`Sender`](crate::Sender)'s queue | 256 KiB | `send` waits, `try_send` fails | |
//! | [interim responses](crate::Request::inform) to one request | 64 KiB | `inform` fails | a client need not read them while the handler runs |
//! | chunk size line | 256 B | 400 | clients do not use chunk extensions |
//! | trailers of a request | 8 KiB | 400 | the same as for a head |
//! | unread rest of a body | 64 KiB | the connection is closed | reading more costs more than a new connection |
//! | HTTP/2: body bytes that the client may send before the handler reads them | 256 KiB per stream, 1 MiB per connection | `FLOW_CONTROL_ERROR` | enough for 5 MB/s at a round-trip time of 50 ms |
//! | HTTP/2: stream resets, by either side | 200 at once, 50 per second | `ENHANCE_YOUR_CALM` | Rapid Reset, see [`attacks`](super::attacks) |
//! | HTTP/2: SETTINGS, PING, PRIORITY, CONTINUATION, unknown and empty frames | 500 at once, 100 per second | `ENHANCE_YOUR_CALM` | none of these frames carries a request |
//! | HTTP/2: `WINDOW_UPDATE`, beyond two per DATA frame sent | 1000 at once, 100 per second | `ENHANCE_YOUR_CALM` | clients send about two per DATA frame |
//!
//! # Memory of a connection
//!
//! Sockets are read into a buffer that the connections of a thread share; a connection keeps only
//! the bytes of an incomplete request. An idle HTTP/1.1 connection takes less than a kilobyte
//! (tested by `tests/idle_memory.rs`), and so does an idle WebSocket. TLS adds about 4 KiB
//! (`tests/tls_memory.rs` allows 6).
//!
//! An idle HTTP/2 connection takes about 15 KiB, mostly tables and buffers of `h2`. A stream whose
//! response the client does not read takes one piece of the body, 16 KiB to 256 KiB depending on
//! the number of streams, and 32 KiB within `h2` (`tests/http2_memory.rs`).
//!
//! A response body in progress takes one buffer: 256 KiB within the memory budget, 16 KiB beyond
//! it. A file sent with `sendfile` takes no buffer.
