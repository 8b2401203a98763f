//! Every limit, its default and its reason; what an idle connection costs.
//!
//! Memory does not depend on how many clients there are beyond a stated number of bytes each, nor
//! on the size of anything they send or ask for.
//!
//! | limit | default | past it | reason |
//! |---|---|---|---|
//! | [`head`](crate::Limits::head): length | 16 KiB ([`HeadLimits`](crate::HeadLimits)) | 431 | larger than any browser's, small enough to be kept for each connection |
//! | its target | 8 KiB | 414 | RFC 9112, 3 asks for 8000 bytes |
//! | its fields | 100, at most 128 | 431 | no client sends half of it |
//! | [`head_time`](crate::Limits::head_time) | 10 s | 408 | a head is one packet or two |
//! | [`idle_time`](crate::Limits::idle_time) | 60 s | close | shorter than what most proxies keep |
//! | [`stall_time`](crate::Limits::stall_time), [`stall_len_min`](crate::Limits::stall_len_min) | 30 s, 4096 B | 408, or close | a modem is faster |
//! | [`linger_time`](crate::Limits::linger_time) | 2 s | close | as long as an answer needs to cross the world |
//! | [`connections_max`](crate::Limits::connections_max) | 16,384, less if descriptors are fewer | 503; with TLS a close | below what a process may usually have open |
//! | [`requests_per_connection_max`](crate::Limits::requests_per_connection_max) | none | close | nothing grows with them |
//! | [`handshake_time`](crate::Limits::handshake_time) | 10 s | close | TLS: as for a head |
//! | [`handshakes_max`](crate::Limits::handshakes_max) | 4096 | close | each costs a worker some milliseconds |
//! | [`queue_len_max`](crate::Limits::queue_len_max) | 4096 | 503 | what waits longer is not waited for |
//! | [`waiting_handlers_max`](crate::Limits::waiting_handlers_max) | 512 | 503 for streamed bodies | each is a thread |
//! | body of a route | 1 MiB ([`Route::body_len_max`](crate::Route::body_len_max)) | 413 | as in Mummy |
//! | [`request_memory_max`](crate::Limits::request_memory_max) | 64 MiB | 503 | all buffered bodies together |
//! | [`body_memory_max`](crate::Limits::body_memory_max) | 64 MiB | smaller pieces | all response bodies together; 16 KiB each past it |
//! | streamed body of a route | what [`Route::streaming`](crate::Route::streaming) says | the read fails; 413 by `?` | |
//! | [`form`](crate::Request::form) | 1000 fields; 1 MiB if streamed | 413 | a field costs more than its bytes |
//! | a [`Sender`](crate::Sender)'s queue | 256 KiB | `send` waits, `try_send` fails | |
//! | chunk size line | 256 B | 400 | extensions are unused |
//! | trailers of a request | 8 KiB | 400 | as a head |
//! | unread rest of a body | 64 KiB | close | reading more costs both more than a new connection |
//! | HTTP/2: requests at once on a connection | 100 ([`Http2Limits`](crate::Http2Limits)) | refused, to be tried again | the least that RFC 9113 recommends |
//! | HTTP/2: windows | 256 KiB a stream, 1 MiB a connection | nothing more comes | 5 MB a second over 50 ms |
//! | HTTP/2: frames that cost more than they are worth | see [`AbuseLimits`](crate::AbuseLimits) | `ENHANCE_YOUR_CALM` | |
//!
//! Queries and cookies are bounded by the head they come in. HTTP/2
//! ([`Http2Limits`](crate::Http2Limits), [`AbuseLimits`](crate::AbuseLimits)), WebSockets
//! ([`ws::Limits`](crate::ws::Limits)), and compression
//! ([`Compression`](crate::compress::Compression)) have limits of their own.
//!
//! # What a connection costs
//!
//! Reads go into a buffer of the thread; only an incomplete request leaves bytes behind. An idle
//! HTTP/1.1 connection takes less than a kilobyte of memory (`tests/idle_memory.rs` holds it to
//! that), and so does an idle WebSocket without compression context. TLS adds its keys, some 4 KiB
//! (`tests/tls_memory.rs` allows 6).
//!
//! An idle HTTP/2 connection takes about 15 KiB, most of it the tables and buffers of `h2`. A
//! stream whose answer is not read holds a piece of the body, 16 KiB where there are many of them
//! and 256 KiB at most, and 32 KiB within `h2` (`tests/http2_memory.rs`).
//!
//! A response body under way takes one buffer of 256 KiB while there is budget, and 16 KiB beyond.
//! A file that goes out as it is takes none: the kernel sends it.
