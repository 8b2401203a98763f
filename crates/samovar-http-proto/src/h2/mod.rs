//! HTTP/2 as a state machine: bytes in, events and bytes out.
//!
//! The `h2` crate implements frames, HPACK, flow control and stream states. It is written for an
//! asynchronous runtime; here it runs over two byte vectors and is polled by each call. A
//! [`Session`] turns its output into [`Event`]s, and rewrites request heads as HTTP/1.1 heads that
//! the HTTP/1.1 parser reads. So routes, handlers and logs see no difference, and one parser
//! decides what a valid target or `Host` is.
//!
//! Time is an argument. The exception is inside `h2`, which reads the clock to forget streams one
//! second after their reset.
//!
//! `pipe` holds the two byte vectors, `frames` reads the frame headers in them, `abuse` limits the
//! rate of costly frames, `head` converts heads, `session` holds the streams, and `commands` has
//! the methods for them.
//!
//! # Source
//!
//! RFC 9113; RFC 9110; HPACK is RFC 7541. Server push, priorities and CONNECT are not supported,
//! nor is `Upgrade: h2c`, which RFC 9113 removed.

mod abuse;
mod commands;
mod frames;
mod head;
mod pipe;
mod session;
mod table;

pub use ::h2::Reason as ErrorCode;
pub use abuse::Abuse;
pub use commands::ResponseHead;
pub use session::{Event, Session};

pub use crate::h1::conn::PREFACE;
