//! HTTP/1.1, HTTP/2 and WebSocket as state machines: bytes in, events and bytes out.
//!
//! The server's side of the protocols behind `samovar-http`. Nothing in here opens a socket or a
//! file, starts a thread or reads a clock: time and bytes are arguments. So every part can be
//! stepped through in a test, split at any byte and fuzzed.
//!
//! * [`h1`]: HTTP/1.1 and 1.0. [`h1::conn::Conn`] holds the state of a connection.
//! * `h2` (feature `http2`): HTTP/2. `h2::Session` holds the streams of a connection.
//! * [`ws`]: WebSocket handshakes, frames, messages and permessage-deflate (feature `compression`).
//! * [`http`]: methods, status codes and header values, shared by the protocols and by handlers.
//!
//! # Examples
//!
//! A request head, parsed in place:
//!
//! ```
//! use samovar_http_proto::h1::head::{HeadIndex, HeadLimits, parse};
//!
//! let input = b"GET /status?full HTTP/1.1\r\nHost: example.org\r\n\r\nnext";
//! let mut index = HeadIndex::default();
//! let len = parse(input, &HeadLimits::default(), &mut index)?;
//! assert_eq!(len, Some(input.len() - 4));
//! assert_eq!(index.path.of(input), b"/status");
//! # Ok::<(), samovar_http_proto::h1::Refusal>(())
//! ```
//!
//! # Out of scope
//!
//! Clients. HTTP/3. Server push, priorities and CONNECT.

#![forbid(unsafe_code)]

pub mod h1;
#[cfg(feature = "http2")]
pub mod h2;
pub mod http;
pub mod ws;
