//! WebSocket connections (RFC 6455) for plain handlers.
//!
//! A WebSocket starts as an ordinary request to an ordinary handler, so ordinary code decides who
//! may open one. The handler returns the response of [`Upgrade::accept`]. From then on, the
//! connection's [`Handler`] receives its events, and any thread with a clone of its [`Socket`] can
//! send.
//!
//! ```
//! use samovar_http::ws::{Message, Socket, Upgrade};
//! use samovar_http::{Request, Response};
//!
//! fn echo(request: &mut Request) -> Response {
//!     Upgrade::new(|socket: &Socket, message: Message<'_>| socket.send(message)).accept(request)
//! }
//! ```
//!
//! # Guarantees
//!
//! * The events of a socket are delivered in order, one at a time: first [`open`](Handler::open),
//!   last and exactly once [`close`](Handler::close). Handlers run on workers and may block;
//!   different sockets run in parallel. A handler that never blocks can run on the I/O thread
//!   ([`Upgrade::inline`]), which avoids the switch to a worker.
//! * Sending works from any thread, never blocks, and preserves the order of each thread's calls.
//!   Messages sent before the handshake is complete are queued; messages sent after the end are
//!   dropped.
//! * A [`Frame`] is encoded once for all sockets; each socket queues a reference.
//! * All memory is bounded ([`Limits`]): frames, messages, and the queues for the handler and for
//!   the peer. A peer that does not read is closed with 1013 and then
//!   disconnected. If a handler is too slow, the engine stops reading.
//! * Lost connections are detected: a silent peer gets a ping, and is disconnected if it does not
//!   respond.
//! * Pings of the peer are answered. If the peer does not read, only the latest one is.
//! * Handshakes from pages of other origins are refused ([`Origins`]); otherwise any page could
//!   open a socket with the user's cookies.
//! * An idle socket owns no buffer.
//!
//! # Heartbeats
//!
//! Most applications need no heartbeat of their own. The engine sends a ping to a peer from which
//! nothing has arrived for [`ping_time`](Limits::ping_time), and resets the connection if nothing
//! arrives for another [`pong_time`](Limits::pong_time). The handler then gets
//! [`close`](Handler::close) with 1006.
//!
//! An application that measures round trips, or that keeps proxies from closing idle connections,
//! sends its own pings with [`Socket::ping`], from any thread. They do not change the rule above:
//! each byte of the peer, including a pong, delays the engine's next ping. So while a peer answers
//! pings of the application that are more frequent than `ping_time`, the engine sends none. An
//! unanswered ping of the application closes nothing by itself. The handler gets pongs if it
//! [asks for them](Handler::observes_pings):
//!
//! ```
//! use std::time::{Duration, Instant};
//! use samovar_http::ws::{Handler, Message, Socket};
//!
//! /// Replies to each message with the time of the last round trip.
//! struct RoundTrip {
//!     started: Instant,
//!     last: Duration,
//! }
//!
//! impl Handler for RoundTrip {
//!     fn open(&mut self, socket: &Socket) {
//!         self.started = Instant::now();
//!         socket.ping(b"");
//!     }
//!
//!     fn message(&mut self, socket: &Socket, _: Message<'_>) {
//!         socket.send(&format!("{:?}", self.last));
//!     }
//!
//!     fn observes_pings(&self) -> bool {
//!         true
//!     }
//!
//!     fn pong(&mut self, _: &Socket, _: &[u8]) {
//!         self.last = self.started.elapsed();
//!     }
//! }
//! ```
//!
//! # Extensions
//!
//! Extensions such as permessage-deflate are not accepted, so messages are sent uncompressed.

mod accepted;
mod frame;
mod handler;
mod inbound;
mod limits;
mod message;
mod outbound;
mod socket;

pub(crate) use accepted::Accepted;
pub use frame::Frame;
pub use handler::{Closed, Handler};
pub(crate) use inbound::{CloseReply, End, Event};
pub use limits::{Limits, Origins};
pub use message::Message;
pub(crate) use outbound::Flushed;
pub use outbound::SendError;
pub use samovar_http_proto::ws::handshake::HandshakeError;
pub use samovar_http_proto::ws::{CloseCode, Failure};
pub use socket::Socket;

pub use crate::upgrade::Upgrade;
