//! From ten lines that say "Hello" to everything else.
//!
//! # Hello
//!
//! ```no_run
//! use samovar_http::Router;
//!
//! fn main() -> std::io::Result<()> {
//!     Router::new()
//!         .get("/", |_| "Hello\n")
//!         .serve("127.0.0.1:8080")
//! }
//! ```
//!
//! # A handler is a function
//!
//! From `&mut Request` to anything that is [`IntoResponse`](crate::IntoResponse). It runs on a
//! worker thread, so it may wait for a database, a file or a lock. State is what it captures.
//! [`Error`](crate::Error) takes any error by `?`: the client gets 500 and no word of it, the error
//! handler gets all of it.
//!
//! ```no_run
//! use std::sync::Mutex;
//! use std::collections::HashMap;
//! use samovar_http::http::Status;
//! use samovar_http::{Error, Request, Router};
//!
//! fn main() -> std::io::Result<()> {
//!     let kettles: &Mutex<HashMap<u32, f64>> = Box::leak(Box::default());
//!     Router::new()
//!         .get("/kettles/{id}", move |request: &mut Request| {
//!             let id = request.param("id").unwrap_or_default().parse();
//!             let id = id.map_err(|_| Error::new(Status::BAD_REQUEST, "a number, please\n"))?;
//!             match kettles.lock().unwrap().get(&id) {
//!                 Some(celsius) => Ok(format!("{celsius}\n")),
//!                 None => Err(Error::new(Status::NOT_FOUND, "no such kettle\n")),
//!             }
//!         })
//!         .put("/kettles/{id}", move |request: &mut Request| -> Result<_, Error> {
//!             let id = request.param("id").unwrap_or_default().parse()?;
//!             let celsius = std::str::from_utf8(request.body())?.trim().parse()?;
//!             kettles.lock().unwrap().insert(id, celsius);
//!             Ok(Status::NO_CONTENT)
//!         })
//!         .serve("127.0.0.1:8080")
//! }
//! ```
//!
//! [`Router`](crate::Router) has the patterns; [`Route`](crate::Route) what a single route may want
//! otherwise, such as a larger body; [`Router::wrap`](crate::Router::wrap) middleware, which is a
//! function around functions.
//!
//! JSON comes and goes as text, by whatever serializer you use: with serde,
//! `serde_json::from_slice(request.body())?` and
//! `Response::json(Status::OK, serde_json::to_string(&kettle)?)`. A `?` on what a client has sent
//! makes a 500 of it; that it is the client's fault is for you to say, as with the number above.
//!
//! # Large bodies
//!
//! In: a route declared [`streaming`](crate::Route::streaming) starts with the head, and
//! [`Request::reader`](crate::Request::reader) is the body as [`Read`](std::io::Read). An upload of
//! any size takes constant memory, and a client that dawdles holds no worker's place.
//!
//! Out: [`Body::file`](crate::Body::file) for files, [`Body::reader`](crate::Body::reader) for
//! what can be read, [`Body::pieces`](crate::Body::pieces) for what is made,
//! [`Response::push`](crate::Response::push) for what is easier written than yielded, and
//! [`Source`](crate::Source) for what wants to do all by itself. All are pulled as the client
//! reads: memory does not depend on the size, and a slow client holds no thread.
//!
//! # Answers that take their time
//!
//! [`Response::later`](crate::Response::later) returns a promise; whoever keeps it, from whatever
//! thread, calls [`Responder::respond`](crate::Responder::respond).
//! [`Body::channel`](crate::Body::channel) does the same for the pieces of a body, which is all
//! that server-sent events are:
//!
//! ```
//! use std::sync::Mutex;
//! use samovar_http::http::Status;
//! use samovar_http::{Body, Request, Response, Sender};
//!
//! static LISTENERS: Mutex<Vec<Sender>> = Mutex::new(Vec::new());
//!
//! fn events(_: &mut Request) -> Response {
//!     let (sender, body) = Body::channel();
//!     LISTENERS.lock().unwrap().push(sender);
//!     Response::new(Status::OK, body).header("Content-Type", "text/event-stream")
//! }
//!
//! /// From any thread. Who is gone, or does not read, is dropped.
//! fn announce(text: &str) {
//!     let event = format!("data: {text}\n\n");
//!     LISTENERS.lock().unwrap().retain(|sender| sender.try_send(&*event).is_ok());
//! }
//! # announce("x");
//! ```
//!
//! # WebSockets
//!
//! A handshake is an ordinary request to an ordinary route, so who may have one is decided by
//! ordinary code; the answer is made by `ws::Upgrade`. See the [`ws`](crate::ws) module.
//!
//! # An orderly end
//!
//! [`Router::serve`](crate::Router::serve) serves until the process is killed. A service that ends
//! with TERM starts a [`Server`](crate::Server), waits for the signal (with `signal-hook`, for
//! one), and [drains](crate::Server::drain): nothing new is accepted, answers under way are
//! finished, WebSockets are closed with 1001. Handlers that ask for the server's
//! [load](crate::Server::load) find it in a static, see the example `metrics`.
//!
//! ```no_run
//! use std::time::Duration;
//! use samovar_http::{Listener, Router, Server};
//! # fn wait_for_signal() {}
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let router = Router::new().get("/", |_| "Hello\n");
//! let server = Server::builder(router)
//!     .listen(Listener::tcp("[::]:8080".parse()?, 1024)?)
//!     .start()?;
//! wait_for_signal();
//! server.drain(Duration::from_secs(30));
//! # Ok(())
//! # }
//! ```
//!
//! # What never blocks
//!
//! A [route can answer inline](crate::Route::inline), on the I/O thread, without the way to a
//! worker and back: right for what is in memory, and wrong for anything that could wait. It may
//! decline. A handler that needs the body has the same from
//! [`inline_body`](crate::Route::inline_body).
//!
//! # More than one line of set-up
//!
//! [`Server::builder`](crate::Server::builder) takes a router as it takes any
//! [`Service`](crate::Service), and has the rest: [listeners](crate::Listener) on TCP, unix sockets
//! and inherited descriptors, with or without [TLS](crate::tls); [limits](crate::Limits);
//! [compression](crate::compress); threads. A [`Server`](crate::Server) drains before it stops, and
//! [hands its sockets over](crate::handover) to a newer process. What happened is told to an
//! [`Observer`](crate::Observer); [`Server::load`](crate::Server::load) has the figures of the
//! moment. Neither asks for a certain way of logs or metrics.
//!
//! Behind a proxy, [`Head::peer`](crate::Head::peer) is the proxy; what it says of its client in
//! `X-Forwarded-For` is a header like any other, and is not believed here.
//!
//! HTTP/2 needs no words: where TLS is, clients choose it; where it is not, a client that begins
//! with HTTP/2's preface gets it.
