//! Which code runs where, and what may block.
//!
//! | thread | how many | runs | may block |
//! |---|---|---|---|
//! | I/O | one a core ([`Builder::io_threads`](crate::Builder::io_threads)) | protocols, [`Service::inline`](crate::Service::inline), [`Service::intake`](crate::Service::intake), handlers of [inline bodies](crate::Intake::Inline), inline WebSocket handlers, [`Observer`](crate::Observer) | never: all connections of the thread wait |
//! | workers | eight a core ([`Builder::workers`](crate::Builder::workers)) | [`Service::handle`](crate::Service::handle), [`Source::pull`](crate::Source::pull), WebSocket handlers, TLS handshakes, compression, [`Observer`](crate::Observer) | yes |
//!
//! An I/O thread has its own listener, its own epoll instance and its own connections; on the way
//! of a request that is answered inline, nothing is shared with another thread.
//!
//! A connection is at one place at a time. When a worker is to answer, the connection is *moved* to
//! it with the request: the worker writes the answer to the socket itself, goes on with the body
//! until the socket takes no more, and moves the connection back. So no lock guards a connection,
//! and a client that reads slowly holds no thread: its connection waits with the I/O thread, which
//! sends it to a worker again when there is room. HTTP/2 connections and WebSockets have many
//! things to do at once; they stay with their I/O thread, and what is moved are streams and events.
//!
//! # What if all workers are busy?
//!
//! Requests queue, up to [`Limits::queue_len_max`](crate::Limits::queue_len_max); past it they are
//! answered with 503 and `Retry-After`. Answers under way take turns with new requests, however
//! many those are. Inline answers do not notice.
//!
//! # What if a disk hangs?
//!
//! Every worker that reads from it hangs too. So there are two lanes for what may block, each with
//! as many places as there are workers: a request that was declined with
//! [`Reply::dispatch_slow`](crate::Reply::dispatch_slow) is answered in the slow one, its body
//! included. If everything that reads from a disk is declined in this way, all else is answered
//! while the disk hangs. What waits for it queues, no peer is taken for slow because of it, and it
//! comes to a good end when the disk is back. Files of HTTP/1 answers are closed by workers too,
//! because some file systems wait even for that.
//!
//! # What if something computes for long?
//!
//! A third lane is for what takes the processor for milliseconds, such as to hash a password
//! ([`Reply::dispatch_costly`](crate::Reply::dispatch_costly)): one place for sixteen workers. When
//! the computing is done and the rest of the answer is as any other,
//! [`Response::again`](crate::Response::again) leaves it to the lane it belongs to.
//!
//! A handler that waits *for its own client*, in the middle of a body in either direction, does
//! not count: while it waits, another thread takes its place, up to
//! [`Limits::waiting_handlers_max`](crate::Limits::waiting_handlers_max). So clients cannot stall
//! a server by being slow. A handler that waits for anything else, say a database, keeps its
//! place, because more of them would only queue there: set the number of workers to what the
//! database likes. Nor does a place change hands where code waits for a client in ways the engine
//! cannot see: [`Sender::send`](crate::Sender::send) is for threads of your own.
//!
//! # What if something panics?
//!
//! A handler: its client gets 500, the observer is told, nothing else notices. (So
//! `panic = "abort"` is not for a server.) A body's source: the connection is reset, or gets 503 if
//! nothing of the answer has left. An observer: the connection it was told about is closed. A
//! WebSocket's handler: the socket is closed with 1011.
