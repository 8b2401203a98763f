//! WebSocket connections: RFC 6455 and permessage-deflate (RFC 7692) for plain handlers.
//!
//! A WebSocket begins as an ordinary request to an ordinary handler, so whoever may not have one is
//! turned away by ordinary code. The handler answers with [`Upgrade::accept`]; from then on the
//! connection's [`Handler`] is told what happens, and anybody with a clone of its [`Socket`] can
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
//! # What holds
//!
//! * The events of one socket come in order and one at a time: first [`open`](Handler::open), last
//!   and exactly once [`close`](Handler::close). They run on workers and may block; different
//!   sockets run in parallel. A handler that never blocks can be run on the I/O thread
//!   ([`Upgrade::inline`]), which saves the way to a worker.
//! * Sending works from any thread, never blocks, and keeps the order of each thread's calls. What
//!   is sent before the handshake is out waits for it; what is sent after the end is dropped.
//! * A [`Frame`] is encoded, and compressed, once for all sockets it is sent to; each queues a
//!   reference.
//! * All memory is bounded ([`Limits`]): frames, messages after decompression, what waits for a
//!   handler, what waits for the peer. A peer that does not read is closed with 1013 and then cut
//!   off; a handler that is behind makes the engine stop reading.
//! * Peers that vanish are noticed: a silent one is sent a ping, and cut off if it stays silent.
//! * Browsers' pages from elsewhere are refused ([`Origins`]): without that, any page could open a
//!   socket with its visitor's cookies.
//! * An idle socket owns no buffer.
//!
//! # Compression
//!
//! Where a client offers permessage-deflate it is accepted without *context takeover* in either
//! direction: each message is compressed by itself. That way an idle socket costs nothing for it,
//! and a [`Frame`] compressed once suits all. [`Compression`] has the other choice. Messages of
//! fewer bytes than [`Compression::len_min`], and those that would not become shorter, are sent as
//! they are.

mod accepted;
mod frame;
mod handler;
mod inbound;
mod limits;
mod message;
mod outbound;
mod socket;
mod upgrade;

pub(crate) use accepted::Accepted as Upgraded;
pub use frame::Frame;
pub use handler::{Closed, Handler};
pub(crate) use inbound::{End, Event, Owed};
pub use limits::{Compression, Limits, Origins};
pub use message::Message;
pub(crate) use outbound::Flushed;
pub use outbound::SendError;
pub use samovar_http_proto::ws::handshake::HandshakeError;
pub use samovar_http_proto::ws::{CloseCode, Failure};
pub use socket::Socket;
pub use upgrade::Upgrade;
