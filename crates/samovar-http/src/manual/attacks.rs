//! Past attacks on HTTP servers, and the countermeasures here.
//!
//! Tests are named where they exist: `tests/` is in this crate, `conformance/` is the workspace's
//! suite, which runs against any server.
//!
//! # One message, two readings
//!
//! *Request smuggling* (Linhart et al., 2005; Kettle, 2019) needs two servers in a chain that
//! disagree about the end of a message. Here an ambiguous message is refused with 400 and the
//! connection is closed:
//!
//! * `Content-Length` together with `Transfer-Encoding`, repeated fields, lists, signs, white
//!   space, lengths of more than 64 bits, transfer codings other than one `chunked` at the end;
//! * bare LF or CR anywhere, obs-fold, white space before a colon, NUL and other controls;
//! * chunk sizes with anything but hexadecimal digits, or that overflow; chunk data without CRLF;
//!   trailers that name a length, a coding or a host;
//! * no `Host`, two, or one that differs from an absolute-form target;
//! * a body with an HTTP/1.0 `Transfer-Encoding`.
//!
//! Nothing is rewritten and forwarded. The next request is parsed when the previous response is
//! complete, so responses cannot be out of order. `conformance/rfc9112/smuggling.rs` has the cases.
//!
//! *HTTP/2 downgrades* (Kettle, 2021): names and values from HTTP/2 are checked against HTTP/1's
//! grammar before a handler sees them; connection fields and a `Content-Length` that the frames
//! contradict are stream errors.
//!
//! # Slowness
//!
//! *Slowloris* (2009), *slow POST* (2010), *slow read* (2012): a head must be complete
//! [`head_time`](crate::Limits::head_time) after its first byte. A body, in either direction, must
//! transfer [`stall_len_min`](crate::Limits::stall_len_min) bytes in every
//! [`stall_time`](crate::Limits::stall_time). Meanwhile a slow client costs a few hundred bytes and
//! the bytes read so far, but no worker slot: see [`threads`](super::threads). An HTTP/2 window
//! that stays closed counts as slow reading.
//!
//! # Floods
//!
//! | flood of | countermeasure |
//! |---|---|
//! | connections | [`connections_max`](crate::Limits::connections_max); further connections get 503, or with TLS a close; descriptors are reserved for files |
//! | connections, out of descriptors | accepting pauses instead of spinning; after a while, waiting clients get 503 through a reserved descriptor (`tests/exhaustion.rs`) |
//! | requests | a bounded queue, 503 |
//! | large heads, many fields, long targets | 431, 414; [`HeadLimits`](crate::HeadLimits) |
//! | large bodies | 413 by announced or received length; [`request_memory_max`](crate::Limits::request_memory_max) for the sum |
//! | pipelining without reading | a request is not processed before the previous response was sent |
//! | colliding hashes (2011) | fields and parameters are lists, not hash tables; the header map of `h2` switches to a keyed hash on collisions |
//! | chunk extensions, tiny chunks | size lines of at most 256 bytes; framing is decoded in place |
//! | TLS handshakes | processed on workers; [`handshakes_max`](crate::Limits::handshakes_max), [`handshake_time`](crate::Limits::handshake_time) |
//! | *Rapid Reset* (CVE-2023-44487), *Made You Reset* (CVE-2025-8671) | a rate limit for resets by either side: [`AbuseLimits`](crate::AbuseLimits) |
//! | CONTINUATION (2024), SETTINGS, PING, empty frames (CVE-2019-9511 to 9518) | rate limits; the size of a head is checked as it arrives |
//! | HPACK bombs (CVE-2016-6581) | the limit applies to the decoded size |
//! | compression bombs | request bodies are not decompressed; the limit of WebSocket messages applies during decompression |
//!
//! # Response splitting
//!
//! Names and values of fields are checked when they are set: a value with a control character, such
//! as CR, LF or NUL, panics, and the client gets 500. Fields that frame the message cannot be set.
//!
//! # Truncated responses
//!
//! A body that fails, has not its announced length, or whose writer panics, ends with a connection
//! reset: never with a last chunk, never padded. Dropping a [`Sender`](crate::Sender) counts as a
//! failure. If nothing was sent yet, the client gets 503 instead.
//!
//! *Responses destroyed by a close*: closing a socket with unread bytes makes the kernel send RST,
//! which can overtake the response. So the server shuts down its writing side first and discards
//! input until the peer closes, for at most [`linger_time`](crate::Limits::linger_time)
//! (RFC 9112, 9.6).
//!
//! # Compression and secrets
//!
//! *BREACH* (2013): compression is off by default, and
//! [`uncompressed`](crate::Response::uncompressed) turns it off for a single response. *CRIME*
//! (2012): TLS does not compress.
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
//! Redirects of trailing slashes stay on the host: there is none for `//evil.example/`.
//!
//! # Code
//!
//! `#![forbid(unsafe_code)]`. Parsers do no I/O (`samovar-http-proto`), so they are fuzzed
//! (`fuzz/`), and property tests split every input at any byte. Ciphers, HPACK and compression come
//! from established libraries: rustls, h2, flate2, brotli, zstd.
