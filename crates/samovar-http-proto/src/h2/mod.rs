//! HTTP/2 as a state machine: bytes in, events and bytes out.
//!
//! The `h2` crate knows frames, HPACK, flow control and the states of streams. It is written for an
//! asynchronous runtime; here it runs over two byte vectors instead, polled by hand, and nothing
//! wakes it but the next call. A [`Session`] turns what it says into [`Event`]s, and requests into
//! the heads that HTTP/1.1 requests have, read by the same parser: routes, handlers and logs see no
//! difference, and there is one opinion about what a valid target or `Host` is.
//!
//! Nothing in here knows a socket, a file or a thread, and time is an argument. (`h2` itself reads
//! the clock, to forget streams that were reset a second ago.)
//!
//! `pipe` holds the two byte vectors, `frames` reads frame headers on their way through them,
//! `abuse` counts the frames that cost more than they are worth, `head` converts heads, `session`
//! keeps the streams, and `commands` is what can be done with them.
//!
//! # Source
//!
//! RFC 9113; RFC 9110; HPACK is RFC 7541. Server push, priorities and CONNECT are not served, and
//! the `Upgrade: h2c` of RFC 7540 is gone from RFC 9113.

mod abuse;
mod commands;
mod error_code;
mod frames;
mod head;
mod limits;
mod pipe;
mod session;
mod table;

pub use abuse::{Abuse, AbuseLimits, Allowance};
pub use commands::ResponseHead;
pub use error_code::ErrorCode;
pub use session::{Event, Session};

pub use crate::h1::conn::PREFACE;
pub use limits::Http2Limits;
