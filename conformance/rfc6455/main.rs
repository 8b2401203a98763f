//! RFC 6455 (WebSocket), section by section.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attacks;
#[path = "../rfc9112/citations.rs"]
mod citations;
mod client;
mod closing;
mod extensions;
mod frames;
mod handshake;
#[path = "../own.rs"]
mod own;
#[path = "../rfc9112/server.rs"]
mod server;
