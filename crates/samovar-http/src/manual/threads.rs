//! The threading model, and what may block.
//!
//! | thread | how many | runs | may block |
//! |---|---|---|---|
//! | I/O | one per core ([`Builder::io_threads`](crate::Builder::io_threads)) | protocols, [`Service::inline`](crate::Service::inline), [`Service::intake`](crate::Service::intake), handlers of [inline bodies](crate::Intake::Inline), inline WebSocket handlers, [`Observer`](crate::Observer) | never: all connections of the thread would wait |
//! | workers | eight per core ([`Builder::workers`](crate::Builder::workers)) | [`Service::handle`](crate::Service::handle), [`Source::pull`](crate::Source::pull), WebSocket handlers, TLS handshakes, compression, [`Observer`](crate::Observer) | yes |
//!
//! An I/O thread has its own listener, epoll instance and connections. A request that is answered
//! inline shares nothing with another thread.
//!
//! A connection belongs to one thread at a time. To answer on a worker, the connection *moves* to
//! the worker with the request. The worker writes the response to the socket until the socket
//! buffer is full, then moves the connection back. So no lock guards a connection, and a slow
//! reader holds no thread: its connection waits in the I/O thread and is dispatched again when the
//! socket is writable. HTTP/2 connections and WebSockets have several tasks at once; they stay with
//! their I/O thread, and single streams and events move.
//!
//! # What if all workers are busy?
//!
//! Requests queue, up to [`Limits::queue_len_max`](crate::Limits::queue_len_max); further requests
//! are answered 503 with `Retry-After`. Responses in progress take turns with new requests. Inline
//! responses are not affected.
//!
//! A handler that waits *for its own client*, in the middle of a body in either direction, gives up
//! its worker slot while it waits: another thread takes the slot, up to
//! [`Limits::waiting_handlers_max`](crate::Limits::waiting_handlers_max) threads. So slow clients
//! cannot stall a server. A handler that waits for anything else, such as a database, keeps its
//! slot, because more handlers would only queue at the database: set the number of workers to the
//! concurrency that the database supports. Waiting that the engine cannot see keeps the slot, too:
//! call [`Sender::send`](crate::Sender::send) from threads of your own.
//!
//! # What if a disk hangs?
//!
//! All workers that read from it hang. So there are two lanes for blocking work, each with as many
//! slots as there are workers. A request that is declined with
//! [`Reply::dispatch_slow`](crate::Reply::dispatch_slow) runs in the slow lane, including its body.
//! If all requests that read from a disk use the slow lane, all other requests are answered while
//! the disk hangs. The slow requests wait, their clients are not disconnected for it, and they
//! complete when the disk is back. Files of HTTP/1.1 responses are closed by workers too, because
//! some file systems block on close.
//!
//! # What about long computations?
//!
//! A third lane is for work that takes the processor for milliseconds, such as hashing a password
//! ([`Reply::dispatch_costly`](crate::Reply::dispatch_costly)): one slot for sixteen workers. After
//! the computation, [`Response::requeue`](crate::Response::requeue) requeues the request in the
//! lane for the rest of its work.
//!
//! # What if something panics?
//!
//! | panics in | consequence |
//! |---|---|
//! | a handler | the client gets 500, the observer gets an event; do not build with `panic = "abort"` |
//! | the source of a body | 503 if nothing was sent yet, otherwise the connection is reset |
//! | an observer | the connection of the event is closed |
//! | a WebSocket handler | the socket is closed with 1011 |
