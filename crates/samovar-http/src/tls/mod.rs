//! HTTPS: certificates, their choice and their renewal, and the records on a socket.
//!
//! TLS 1.2 and 1.3 by rustls, which is driven over bytes: it owns no socket and no thread. A
//! [`TlsConfig`] says with which certificates a listener answers, see
//! [`Listener::tls`](crate::Listener::tls); it can be renewed while connections use it.
//!
//! # What is decided here
//!
//! | | |
//! |---|---|
//! | versions | 1.3 and 1.2 (RFC 8446, RFC 5246); older ones have known breaks |
//! | suites | AEADs with forward secrecy only, AES-128-GCM first: the cheapest where the processor knows AES |
//! | 0-RTT | never: early data can be replayed (RFC 8446, 8), and a handler cannot tell |
//! | renegotiation | does not exist in rustls; a request for it ends the connection |
//! | compression of records | does not exist in rustls (CRIME) |
//! | resumption | tickets, keys changed every six hours; a bounded table for clients that know none |
//! | the end | `close_notify` is sent; a connection that ends without the peer's is an error, not an end |
//!
//! A connection that is idle holds its keys and no buffer: some 4 KiB, see `tests/tls_memory.rs`.

mod certificate;
mod config;
mod der;
mod error;
mod names;
mod resolver;
mod stream;
mod validity;

pub use certificate::Certificate;
pub use config::{ClientCertificates, TlsBuilder, TlsConfig};
pub use error::{TlsError, TlsErrorKind};
pub(crate) use names::peer_names;
pub(crate) use stream::{Handshake, Stream};
