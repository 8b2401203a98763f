//! Past attacks on HTTP servers, and the countermeasures of this server.
//!
//! If a countermeasure has a test, the test file is named: `tests/` is in this crate;
//! `conformance/` is the test suite of the workspace, which can run against any server.
//!
//! # Ambiguous messages
//!
//! *Request smuggling* (Linhart et al., 2005; Kettle, 2019) needs two servers in a chain that
//! disagree about the end of a message. This server refuses an ambiguous message with 400 and
//! closes the connection. It refuses a message with any of these faults:
//!
//! * `Content-Length` together with `Transfer-Encoding`; a `Content-Length` that is repeated, a
//!   list, signed, contains white space or exceeds 64 bits; transfer codings other than one
//!   `chunked` at the end;
//! * bare LF or CR anywhere, obs-fold, white space before a colon, NUL and other control
//!   characters;
//! * chunk sizes that overflow or contain anything but hexadecimal digits; chunk data without CRLF;
//! * trailer fields with a length, a transfer coding or a host;
//! * a request without `Host`, with two `Host` fields, or with a `Host` that differs from the host
//!   in an absolute-form target;
//! * `Transfer-Encoding` in an HTTP/1.0 request.
//!
//! This server forwards no messages. It parses the next request after the previous response is
//! complete, so responses keep their order. The test cases are in
//! `conformance/rfc9112/smuggling.rs`.
//!
//! *HTTP/2 downgrades* (Kettle, 2021): names and values from HTTP/2 are checked against HTTP/1's
//! grammar before a handler sees them. Connection-specific fields, and a `Content-Length` that
//! contradicts the frames, are stream errors.
//!
//! # Slowness
//!
//! In *Slowloris* (2009), *slow POST* (2010) and *slow read* (2012), clients send or read as slowly
//! as they can. This server disconnects them: a head must be complete
//! [`head_time`](crate::Limits::head_time) after its first byte, and a body, in either direction,
//! must transfer [`stall_len_min`](crate::Limits::stall_len_min) bytes in every
//! [`stall_time`](crate::Limits::stall_time). Until then, a slow client takes a few hundred bytes
//! of memory, plus the bytes received so far, but no worker slot: see [`threads`](super::threads).
//! An HTTP/2 client that keeps its flow-control window closed counts as a slow reader.
//!
//! # Floods
//!
//! | flood of | countermeasure |
//! |---|---|
//! | connections | [`connections_max`](crate::Limits::connections_max); further connections get 503, or with TLS a close; descriptors are reserved for files |
//! | connections, until no file descriptor is free | the server pauses accepting instead of retrying in a loop; after a while it uses a reserved descriptor to send 503 to waiting clients (`tests/exhaustion.rs`) |
//! | requests | the queue of requests is bounded; further requests get 503 |
//! | large heads, many fields, long targets | requests beyond [`HeadLimits`](crate::HeadLimits) get 431 or 414 |
//! | large bodies | a request gets 413 if the announced or the received length exceeds the limit; [`request_memory_max`](crate::Limits::request_memory_max) limits the sum of all bodies |
//! | pipelining without reading | a request is not processed before the previous response was sent |
//! | colliding hashes (2011) | fields and parameters are lists, not hash tables; the header map of `h2` switches to a keyed hash on collisions |
//! | chunk extensions, tiny chunks | a chunk size line has at most 256 bytes; framing is decoded in place |
//! | TLS handshakes | workers process the handshakes; [`handshakes_max`](crate::Limits::handshakes_max) limits their number, [`handshake_time`](crate::Limits::handshake_time) their duration |
//! | *Rapid Reset* (CVE-2023-44487), *Made You Reset* (CVE-2025-8671) | a rate limit applies to stream resets by either side, see [`bounds`](super::bounds) |
//! | CONTINUATION (2024), SETTINGS, PING, empty frames (CVE-2019-9511 to 9518) | rate limits apply to these frames; the size of a head is checked as it arrives |
//! | HPACK bombs (CVE-2016-6581) | the limit of a request head applies to its decoded size |
//! | compression bombs | nothing that a client sends is decompressed |
//!
//! # Response splitting
//!
//! Names and values of fields are checked when they are set: a value with a control character, such
//! as CR, LF or NUL, panics, and the client gets 500. Fields that frame the message cannot be set.
//!
//! # Truncated responses
//!
//! If a body fails, panics or differs from its announced length, the connection is reset. The reset
//! also discards what the client has not yet received of responses to requests that it sent earlier
//! on the same connection without waiting (pipelining).
//! The server never ends such a body with a last chunk and never pads it. Dropping a
//! [`Sender`](crate::Sender) before `finish` counts as a failure. If no byte was sent yet, the
//! client gets 503 instead.
//!
//! *Responses destroyed by a close*: if a server closes a socket with unread bytes, the kernel
//! sends RST, which can overtake the response. So this server first shuts down its writing side,
//! and then discards input until the peer closes the connection, for at most
//! [`linger_time`](crate::Limits::linger_time) (RFC 9112, 9.6).
//!
//! # Compression and secrets
//!
//! *BREACH* (2013) derives secrets from the length of compressed responses that also contain text
//! chosen by the attacker. A router compresses texts, as most servers do, so an application
//! excludes its responses with secrets: [`Route::uncompressed`](crate::Route::uncompressed) for a
//! route, [`Response::uncompressed`](crate::Response::uncompressed) for a response,
//! [`Router::compression`](crate::Router::compression) for all. Header fields, such as cookies, are
//! never compressed together with a body. WebSocket messages are not compressed.
//! *CRIME* (2012) does the same with TLS compression, which this server does not have.
//!
//! # WebSockets
//!
//! *Cross-site hijacking* (2013): browsers send cookies and the page's `Origin` with a handshake. A
//! handshake from another origin gets 403 unless the origin is listed. *Cache poisoning through
//! unmasked frames* (Huang et al., 2011): an unmasked frame ends the connection. Lengths, reserved
//! bits, UTF-8, fragments and close codes are checked strictly: `conformance/rfc6455`.
//!
//! # Paths
//!
//! A path is split first and decoded segment by segment, so an encoded slash never separates
//! segments. [`param_path`](crate::Request::param_path) refuses paths that lead out of a directory.
//!
//! # Code
//!
//! The crate has no `unsafe` code (`#![forbid(unsafe_code)]`). Parsers do no I/O
//! (`samovar-http-proto`), so they are fuzzed (`fuzz/`), and property tests split every input at
//! any byte. Ciphers, HPACK and compression come from established libraries: rustls, h2, flate2,
//! brotli, zstd.
