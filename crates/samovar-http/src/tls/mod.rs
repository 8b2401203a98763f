//! HTTPS: certificates, their selection and renewal, and TLS connections.
//!
//! TLS 1.2 and 1.3 by rustls, which works on byte buffers here and owns no socket or thread. A
//! [`TlsConfig`] holds the certificates of a listener, see [`Listener::tls`](crate::Listener::tls).
//! The certificates can be reloaded while connections use them.
//!
//! ```no_run
//! use samovar_http::tls::TlsConfig;
//! use samovar_http::{Listener, Router, Server};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tls = TlsConfig::builder()
//!     .certificate_files("chain.pem", "key.pem")
//!     .build()?;
//! let listener = Listener::bind("[::]:8443")?.tls(tls.clone());
//! let server = Server::builder(Router::new().get("/", |_| "Hello\n"))
//!     .listen(listener)
//!     .start()?;
//! tls.reload()?; // after the files were renewed
//! # Ok(())
//! # }
//! ```
//!
//! # Policy
//!
//! | | |
//! |---|---|
//! | versions | 1.3 and 1.2 (RFC 8446, RFC 5246); older versions are broken |
//! | cipher suites | AEADs with forward secrecy only; AES-128-GCM first, the cheapest where the processor has AES instructions |
//! | 0-RTT | never: early data can be replayed (RFC 8446, 8), and a handler cannot tell |
//! | renegotiation | not implemented in rustls; a request for it ends the connection |
//! | record compression | not implemented in rustls (CRIME) |
//! | resumption | tickets with keys rotated every six hours; a bounded session table for clients without tickets |
//! | end of a connection | `close_notify` is sent; a connection that ends without the peer's is an error |
//!
//! An idle connection keeps its keys but no buffer: about 4 KiB, see `tests/tls_memory.rs`.

mod certificate;
mod config;
mod error;
mod names;
mod resolver;
mod session;
mod stream;
mod trust;

pub use certificate::Certificate;
pub use config::{ClientCertificates, TlsBuilder, TlsConfig};
pub use error::TlsError;
pub(crate) use names::peer_names;
pub(crate) use session::Session;
pub(crate) use stream::{Handshake, Stream};
