//! Past attacks on HTTP servers, and what here rules each out.
//!
//! Where a rule is a test, its place is named: `tests/` is this crate's, `conformance/` the
//! workspace's suite, which can be pointed at any server.
//!
//! # One message, two readings
//!
//! *Request smuggling* (Linhart et al., 2005; Kettle, 2019) needs two servers in a chain that see
//! the end of a message at different places. Here a message has one reading, or is refused with 400
//! and the connection closed:
//!
//! * `Content-Length` and `Transfer-Encoding` together, either of them twice, lists, signs, white
//!   space, lengths past 64 bits, codings other than one `chunked` at the end;
//! * bare LF or CR anywhere, obs-fold, white space before a colon, NUL and other controls;
//! * chunk sizes with anything but hexadecimal digits, or that overflow; chunk data without CRLF;
//!   trailers that name a length, a coding or a host;
//! * no `Host`, two, or one that differs from an absolute-form target;
//! * a body with an HTTP/1.0 `Transfer-Encoding`.
//!
//! Nothing is rewritten and passed on. The next request is not looked at before the last answer is
//! complete, so answers cannot be out of order. `conformance/rfc9112/smuggling.rs` is the table.
//!
//! *HTTP/2 downgrades* (Kettle, 2021): names and values from HTTP/2 are checked against HTTP/1's
//! grammar before a handler sees them; connection fields and a `Content-Length` that the frames
//! contradict are stream errors.
//!
//! # Slowness
//!
//! *Slowloris* (2009), *slow POST* (2010), *slow read* (2012): a head has
//! [`head_time`](crate::Limits::head_time) from its first byte to its last, whatever arrives
//! meanwhile. A body, in either direction, has to move
//! [`stall_len_min`](crate::Limits::stall_len_min) bytes in every
//! [`stall_time`](crate::Limits::stall_time). Until then it costs its connection's few hundred
//! bytes and what was read, and no thread, or one that is not counted among the workers: see
//! [`threads`](super::threads). An HTTP/2 window that stays shut counts as slow reading.
//!
//! # Floods
//!
//! | | ruled out by |
//! |---|---|
//! | connections | [`connections_max`](crate::Limits::connections_max); past it 503, or with TLS a close; descriptors are kept back for files |
//! | no descriptors | accepting pauses instead of spinning; after a while, those who wait are told 503 through a descriptor kept for it (`tests/exhaustion.rs`) |
//! | requests for workers | a bounded queue, 503 |
//! | large heads, many fields, long targets | 431, 414; [`HeadLimits`](crate::HeadLimits) |
//! | large bodies | 413 at a length known or seen; [`request_memory_max`](crate::Limits::request_memory_max) for all together |
//! | pipelining without reading | the next request is not answered while the last answer waits |
//! | colliding hashes (2011) | fields and parameters are lists in order, not hash tables; the map that `h2` reads HTTP/2 fields into changes to a keyed hash when it meets collisions |
//! | endless chunk extensions, many tiny chunks (CVE-2024-27316's sisters) | a line of 256 bytes; framing is decoded in place |
//! | TLS handshakes | on workers; [`handshakes_max`](crate::Limits::handshakes_max), [`handshake_time`](crate::Limits::handshake_time) |
//! | *Rapid Reset* (CVE-2023-44487), *Made You Reset* (CVE-2025-8671) | a rate for resets, whoever sends them: [`AbuseLimits`](crate::AbuseLimits) |
//! | CONTINUATION (2024), SETTINGS, PING, empty frames (CVE-2019-9511 to 9518) | rates; a head's size counts as it comes |
//! | HPACK bombs (CVE-2016-6581) | the decoded size counts |
//! | compression bombs | request bodies are not decompressed; WebSocket messages count as they grow |
//!
//! # Splitting an answer
//!
//! A field's name and value are checked when they are set: a value with a control character, CR,
//! LF and NUL among them, panics, which to the client is a 500. Fields that frame the message
//! cannot be set at all.
//!
//! # Half an answer taken for a whole one
//!
//! A body that fails, or is not of its announced length, or whose writer panics, ends with a reset:
//! never with a last chunk, never with zeros. A [`Sender`](crate::Sender) that is dropped has
//! failed. If nothing of the answer has left, the client gets 503 instead.
//!
//! *An answer destroyed by its own close*: unread bytes at a close make the kernel send RST, which
//! can overtake the answer. So our side is shut down first, and what still comes is dropped until
//! the peer closes, for [`linger_time`](crate::Limits::linger_time) (RFC 9112, 9.6).
//!
//! # Compression and secrets
//!
//! *BREACH* (2013): compression is off unless asked for, and off again for a response with
//! [`uncompressed`](crate::Response::uncompressed). *CRIME* (2012): TLS does not compress.
//!
//! # WebSockets
//!
//! *Cross-site hijacking* (2013): browsers send a page's `Origin` and cookies along; a handshake of
//! another origin is answered with 403 unless it is on a list. *Cache poisoning through unmasked
//! frames* (Huang et al., 2011): a frame without a mask ends the connection. Lengths, reserved
//! bits, UTF-8, fragments and close codes are checked to the letter: `conformance/rfc6455`.
//!
//! # Paths
//!
//! A path is decoded segment by segment after it was split, so an encoded slash is never one;
//! [`param_path`](crate::Request::param_path) refuses what would lead out of a directory. Redirects
//! of trailing slashes never leave the host: `//evil.example/` is not one.
//!
//! # Code
//!
//! `#![forbid(unsafe_code)]`. Parsers do no I/O, so they are fuzzed and stepped through whole:
//! `fuzz/`, and the property tests that split every input anywhere. What decides about ciphers,
//! HPACK and compression is the field's: rustls, h2, flate2, brotli, zstd.
