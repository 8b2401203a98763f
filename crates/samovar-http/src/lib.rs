//! A multi-threaded HTTP server for plain blocking handlers, without `async`. No *client* can stall
//! the others. A running handler occupies one worker thread and nothing else.
//!
//! ```no_run
//! use samovar_http::{Error, Request, Router};
//!
//! fn greet(request: &mut Request) -> Result<String, Error> {
//!     let name = request.param("name").unwrap_or_default();
//!     let greeting = std::fs::read_to_string("greeting")?;
//!     Ok(format!("{greeting}, {name}\n"))
//! }
//!
//! fn main() -> std::io::Result<()> {
//!     Router::new()
//!         .get("/", |_| "Hello, world\n")
//!         .get("/hello/{name}", greet)
//!         .serve("127.0.0.1:8080")
//! }
//! ```
//!
//! In an `async` server, a handler that sleeps, computes or reads a file can stall all requests, as
//! in [hyper #1320], [FastAPI #1806] and [Llama Stack #1489]. With this crate, it stalls no other.
//!
//! [hyper #1320]: https://github.com/hyperium/hyper/issues/1320
//! [FastAPI #1806]: https://github.com/fastapi/fastapi/issues/1806
//! [Llama Stack #1489]: https://github.com/ogx-ai/ogx/issues/1489
//!
//! The folder `examples` has a program for each topic; the [`manual`] starts with a
//! [guide](manual::guide). Central types: [`Router`] and [`Route`], [`Request`] and its [`Head`],
//! [`Response`] and [`Body`], [`Error`]; [`Server::builder`] for listeners, threads and [`Limits`];
//! the modules [`ws`], [`tls`] and [`compress`].
//!
//! # Threading model
//!
//! *I/O threads* send responses that are in memory; *workers* run handlers and all other code that
//! may block. A slow client occupies no worker slot. [`manual::threads`] has the details.
//!
//! # Services
//!
//! A [`Router`] is one implementation of [`Service`]. A program that finds its responses in another
//! way, such as a proxy or a file server, implements the trait itself. A service can respond in one
//! of two methods:
//!
//! * [`Service::inline`], on the I/O thread, for responses from memory. It must not block. It may
//!   decline a request, which a worker then handles.
//! * [`Service::handle`], on a worker, for everything else.
//!
//! ```
//! use samovar_http::{Listener, Request, Response, Server, Service};
//!
//! struct Hello;
//!
//! impl Service for Hello {
//!     type Local = ();
//!     fn local(&self) {}
//!     fn handle(&self, request: &mut Request) -> Response {
//!         let path = String::from_utf8_lossy(request.head().path()).into_owned();
//!         Response::text(samovar_http::http::Status::OK, format!("You asked for {path}\n"))
//!     }
//! }
//!
//! # fn main() -> std::io::Result<()> {
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let server = Server::builder(Hello).listen(listener).start()?;
//! assert_ne!(server.local_addrs()[0].port(), 0);
//! server.stop();
//! # Ok(())
//! # }
//! ```
//!
//! # Scope
//!
//! The server side of HTTP/1.1 and 1.0 (RFC 9110, RFC 9112), HTTP/2 (RFC 9113), WebSocket (RFC
//! 6455) and TLS, over TCP, unix sockets and inherited descriptors, on Linux. It also compiles for
//! macOS, but was never run there. Bodies in both directions can have any size within configured
//! limits, with back-pressure. For logs and metrics, the server reports events to an [`Observer`].
//!
//! The Cargo features `compression`, `http2`, `signals` (`stop_signal`) and `tls` are on by
//! default. They add dependencies: without them, a program has a third of the crates and needs no C
//! compiler.
//! The crate has no client, HTTP/3, templates, JSON, sessions or database access. The crate
//! `samovar-web` adds files of a directory, JSON, cookies and multipart forms.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "http2"),
    expect(
        dead_code,
        reason = "what only streams of HTTP/2 need is left in place"
    )
)]

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
compile_error!(
    "samovar-http supports Linux and macOS only, because it is built on epoll and kqueue"
);

pub mod http;
pub mod manual;

mod answer;
mod body;
mod client;
#[cfg(feature = "compression")]
pub mod compress;
mod conn;
mod core;
mod error;
mod escaped;
mod exec;
mod extensions;
#[cfg(not(feature = "http2"))]
#[path = "no_h2.rs"]
mod h2;
pub mod handover;
mod head;
mod io;
mod jobs;
mod lane;
mod limits;
pub mod log;
mod memory;
mod net;
mod observer;
mod proto;
mod request;
mod response;
mod route;
mod server;
mod service;
#[cfg(feature = "signals")]
mod signals;
mod sync;
mod sys;
mod threads;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(not(feature = "tls"))]
#[path = "no_tls.rs"]
mod tls;
mod upgrade;
mod upload;
pub mod ws;

#[cfg(feature = "http2")]
use samovar_http_proto::h2;

pub use body::{Batch, Progress, Source};
pub use client::{Claimant, Peer, PeerName, UnixPeer};
pub use error::Error;
pub use exec::lend_slot;
pub use extensions::Extensions;
pub use h2::Abuse;
pub use head::Head;
pub use jobs::Unfinished;
pub use limits::Limits;
pub use net::listener::Listener;
pub use net::wake::Waker;
pub use observer::{End, Exchange, Incident, Observer, Tag};
pub use request::{BodyReader, Params, Request, RequestBuilder};
pub use response::{
    Body, Inline, IntoResponse, Prepared, Reply, Responder, Response, SendError, Sender, Turn,
};
pub use route::{Next, Route, Router, with};
pub use samovar_http_proto::h1::Refusal;
pub use samovar_http_proto::h1::head::HeadLimits;
pub use server::{Builder, Load, Server};
pub use service::{Intake, Service};
#[cfg(feature = "signals")]
pub use signals::stop_signal;
pub use upload::BodyError;

/// Compiles the examples of the README together with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
