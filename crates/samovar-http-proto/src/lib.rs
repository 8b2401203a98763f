//! HTTP/1.1, HTTP/2 and WebSocket as state machines: bytes in, events and bytes out.
//!
//! This crate implements the server side of the protocols of `samovar-http`. It opens no socket or
//! file, starts no thread and reads no clock: time and bytes are arguments. So tests can step
//! through every part, split the input at any byte, and fuzz it.
//!
//! * [`h1`]: HTTP/1.1 and 1.0. [`h1::conn::Conn`] holds the state of a connection.
//! * `h2`: HTTP/2, with the feature `http2`, on by default. `h2::Session` holds the streams of a
//!   connection.
//! * [`ws`]: WebSocket handshakes, frames and messages.
//! * [`multipart`]: forms with files.
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
//! This crate does not support clients, HTTP/3, server push, priorities or CONNECT.

#![forbid(unsafe_code)]

pub mod h1;
#[cfg(feature = "http2")]
pub mod h2;
pub mod http;
pub mod multipart;
pub mod ws;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
