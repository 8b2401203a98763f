//! A tour, from handlers to graceful shutdown.
//!
//! # Handlers
//!
//! A handler is a function from `&mut Request` to any type that implements
//! [`IntoResponse`](crate::IntoResponse). It runs on a worker thread, so it may wait for a
//! database, a file or a lock. [`with`](crate::with) passes shared state to it; closures can
//! capture state, too. Middleware gets shared state by
//! [`Router::wrap_with`](crate::Router::wrap_with).
//!
//! `?` converts any other error, also an `anyhow::Error` or a boxed error, to an
//! [`Error`](crate::Error): the client gets 500 without the
//! cause, which only the error handler and the log get. If the client caused the error, the handler
//! must set the status, such as 400 for a malformed number in this example:
//!
//! ```no_run
//! use std::collections::HashMap;
//! use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
//! use samovar_http::http::Status;
//! use samovar_http::{Error, Request, Router, with};
//!
//! #[derive(Default)]
//! struct Kettles {
//!     celsius: Mutex<HashMap<u32, f64>>,
//! }
//!
//! impl Kettles {
//!     /// A panic under the lock must not fail all later requests.
//!     fn lock(&self) -> MutexGuard<'_, HashMap<u32, f64>> {
//!         self.celsius.lock().unwrap_or_else(PoisonError::into_inner)
//!     }
//!
//!     /// `None` is answered 404.
//!     fn show(&self, request: &mut Request) -> Result<Option<String>, Error> {
//!         let celsius = self.lock().get(&id(request)?).copied();
//!         Ok(celsius.map(|celsius| format!("{celsius}\n")))
//!     }
//!
//!     fn store(&self, request: &mut Request) -> Result<Status, Error> {
//!         let text = str::from_utf8(request.body()).unwrap_or_default().trim();
//!         let celsius = text.parse()
//!             .map_err(|_| Error::new(Status::BAD_REQUEST, "the body must be a number"))?;
//!         self.lock().insert(id(request)?, celsius);
//!         Ok(Status::NO_CONTENT)
//!     }
//! }
//!
//! fn id(request: &Request) -> Result<u32, Error> {
//!     let id = request.param("id").unwrap_or_default().parse();
//!     id.map_err(|_| Error::new(Status::BAD_REQUEST, "the id must be a number"))
//! }
//!
//! fn main() -> std::io::Result<()> {
//!     let kettles = Arc::new(Kettles::default());
//!     Router::new()
//!         .get("/kettles/{id}", with(&kettles, Kettles::show))
//!         .put("/kettles/{id}", with(&kettles, Kettles::store))
//!         .serve("127.0.0.1:8080")
//! }
//! ```
//!
//! [`Router::on_error`](crate::Router::on_error) renders all errors alike, for example as JSON:
//! those of handlers, requests without a route, and requests that the engine refuses.
//!
//! [`Router`](crate::Router) documents the patterns, [`Route`](crate::Route) the settings of a
//! single route, such as the length limit of its body, and [`Router::wrap`](crate::Router::wrap)
//! the middleware. A function can build the routes of a part of the program, with their own
//! middleware and error pages, as a router that [`Router::mount`](crate::Router::mount) adds below
//! a prefix.
//!
//! # Handlers that block
//!
//! Nothing needs to be configured for handlers that wait: a server runs up to 512 of them at the
//! same time, and starts a thread only when a request needs one. If they wait for something of
//! limited capacity, such as a database, set the maximum by
//! [`Router::workers`](crate::Router::workers). With such a maximum, a handler that waits for
//! something else should do so within [`lend_slot`](crate::lend_slot), so that other requests can
//! use its slot. [The threading model](super::threads) has the details.
//!
//! # JSON
//!
//! The crate `samovar-web` has JSON, typed parameters, files, cookies and multipart forms. Without
//! it, use any serializer with [`Request::body`](crate::Request::body) and
//! [`Response::json`](crate::Response::json). Respond to malformed JSON with 400; with a bare `?`
//! the client would get 500, and the error would be logged:
//!
//! ```
//! use samovar_http::http::Status;
//! use samovar_http::{Error, Request, Response};
//!
//! fn echo(request: &mut Request) -> Result<Response, Error> {
//!     let value: serde_json::Value = serde_json::from_slice(request.body())
//!         .map_err(|error| Error::new(Status::BAD_REQUEST, format!("malformed JSON: {error}")))?;
//!     Ok(Response::json(Status::OK, serde_json::to_string(&value)?))
//! }
//! ```
//!
//! # Requests from other origins
//!
//! Browsers let a page read the responses of another origin only if they have the fields of CORS.
//! Add the fields in middleware. Before some requests, a browser asks with OPTIONS whether it may
//! send them; [`Router::answer_options`](crate::Router::answer_options) responds to such requests
//! on every path with a route, and the middleware adds its fields to these responses, too. The
//! example `cors` does so; `Cors` of `samovar-web` is such a middleware for a list of origins.
//!
//! # Large bodies
//!
//! To receive a large body, use a [`streaming`](crate::Route::streaming) route. Its handler starts
//! once the head has arrived, and reads the body from [`Request::reader`](crate::Request::reader).
//! An upload of any size takes constant memory, and a slow client occupies no worker slot.
//!
//! To send a large body, use [`Body::file`](crate::Body::file) for a file,
//! [`Body::reader`](crate::Body::reader) for any reader, or [`Body::pieces`](crate::Body::pieces)
//! for an iterator. A [`Source`](crate::Source) gives full control. All of them produce bytes as
//! the client reads, so memory does not depend on the size of the body, and a slow client occupies
//! no worker slot.
//!
//! # Deferred responses
//!
//! [`Response::later`](crate::Response::later) returns at once; any thread can complete the
//! response later with [`Responder::respond`](crate::Responder::respond). With
//! [`Body::channel`](crate::Body::channel), any thread can send the pieces of a body, for example
//! server-sent events. The example `sse` sends events from another thread, and removes clients that
//! have disconnected or do not read. [`Sender::beat`](crate::Sender::beat) keeps a silent stream
//! alive behind a proxy.
//!
//! A client that closes its sending side counts as disconnected while its response waits. A client
//! that goes on reading, as some proxies and `nc -N` do, needs
//! [`Limits::half_close`](crate::Limits::half_close).
//!
//! # WebSockets
//!
//! A handshake is an ordinary request on an ordinary route, so ordinary code can decide who may
//! open a socket. The handler returns the response of a [`ws::Upgrade`](crate::ws::Upgrade), see
//! the [`ws`](crate::ws) module.
//!
//! # Compression
//!
//! Texts of 860 bytes or more are compressed for clients that accept it. Exclude pages that contain
//! both a secret and text from the request: see [`compress`](crate::compress).
//!
//! # Tests
//!
//! A handler is a function, so a test can call it with a request made by
//! [`Request::builder`](crate::Request::builder). [`Router::answer`](crate::Router::answer) calls a
//! whole router without a socket: middleware, the handler, and the error handler.
//! [`Response::into_bytes`](crate::Response::into_bytes) reads the body of any kind.
//!
//! ```
//! use samovar_http::{Request, Router};
//!
//! let router = Router::new().get("/hello/{name}", |request: &mut Request| {
//!     format!("Hello, {}\n", request.param("name").unwrap_or_default())
//! });
//! let response = router.answer(Request::builder("GET", "/hello/Ada").build());
//! assert_eq!(response.into_bytes().unwrap(), b"Hello, Ada\n");
//! ```
//!
//! # Graceful shutdown
//!
//! [`Router::serve`](crate::Router::serve) serves until the process is killed.
//! [`Router::serve_until`](crate::Router::serve_until) serves until a function returns, for example
//! the one of [`stop_signal`](crate::stop_signal), which waits for SIGTERM or Ctrl-C. Then it
//! accepts no more connections, completes the responses in progress, and closes WebSockets with
//! 1001. It returns when that is done or the given time is over, whatever handlers do, with the
//! requests that it has left behind. The example `sse` ends its event streams first.
//!
//! [`Builder::serve_until`](crate::Builder::serve_until) does the same for any server. If handlers
//! need the [load](crate::Server::load) of the server, the program
//! [starts](crate::Builder::start) it, waits for a signal itself, and
//! [drains](crate::Server::drain) it, as in the example `metrics`.
//!
//! # Inline responses
//!
//! The handler of an [inline route](crate::Route::inline) runs on the I/O thread, which saves the
//! switch to a worker thread. Use it only for responses from memory: it must never block. It may
//! decline a request, which is then handled by a worker. For a handler that needs the request body,
//! use [`inline_body`](crate::Route::inline_body).
//!
//! # Logs and metrics
//!
//! An [`Observer`](crate::Observer) receives a report of each exchange and of each incident, with
//! the [pattern](crate::Exchange::pattern) of the route, which is the label for metrics, and with
//! what middleware has [attached](crate::Exchange::extensions) to the request, such as an
//! identifier for the log. The module [`log`](crate::log) has observers that write log files. The
//! examples `logging` and `metrics` show both. Without an observer, a router writes the
//! application's errors and panics to standard error, and nothing else.
//!
//! # Configuration
//!
//! [`Server::builder`](crate::Server::builder) takes a router, or any other
//! [`Service`](crate::Service), and configures [listeners](crate::Listener) on TCP, unix sockets
//! and inherited descriptors, with or without [TLS](crate::tls); [limits](crate::Limits); threads.
//! A [`Server`](crate::Server) can [hand its sockets over](crate::handover) to a new process.
//! [`Server::load`](crate::Server::load) returns the current load.
//!
//! Behind a proxy, [`Head::peer`](crate::Head::peer) is the proxy's address. The engine does not
//! interpret `X-Forwarded-For`; handlers can read it like any other header.
//!
//! HTTP/2 needs no configuration. Clients choose it during the TLS handshake, or, without TLS, by
//! starting with the HTTP/2 preface.
