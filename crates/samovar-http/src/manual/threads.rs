//! The threading model, and the rules for blocking.
//!
//! | thread | number | runs | may block |
//! |---|---|---|---|
//! | I/O | one per core ([`Builder::io_threads`](crate::Builder::io_threads)) | protocols, [`Service::inline`](crate::Service::inline), [`Service::intake`](crate::Service::intake), handlers of [inline bodies](crate::Intake::Inline), inline WebSocket handlers, [`Observer`](crate::Observer) | never: all connections of the thread would wait |
//! | workers | eight per core in each lane, and up to 512 while handlers block ([`Builder::workers`](crate::Builder::workers)); started when jobs need them | [`Service::handle`](crate::Service::handle), [`Source::pull`](crate::Source::pull), WebSocket handlers, compression, [`Observer`](crate::Observer) | yes |
//! | workers for TLS handshakes | one per core | handshakes, and nothing of the application | never |
//! | monitor | one, which sleeps unless requests wait | the choice of the number of workers | for a moment |
//!
//! Each I/O thread has its own listener, epoll instance and connections. A request that is answered
//! inline uses no data of other threads. After a batch of at least 8 events, the thread yields the
//! processor, so that clients and other threads on the same core do not wait for its whole time
//! slice. After a yield of more than 2 ms, it does not yield for 10 ms.
//!
//! A connection belongs to one thread at a time. To respond on a worker, the connection *moves* to
//! the worker with the request. The worker writes the response until the socket buffer is full. If
//! no other job needs its slot, it waits for up to 2 ms until the socket is writable again. If that
//! takes longer, or the client was slower before, it moves the connection back. So a connection
//! needs no lock, and a slow reader occupies no thread: its connection waits in the I/O thread and
//! is dispatched again when the socket is writable. After 1 MiB, a response gives its slot to other
//! jobs of its lane if any are queued. HTTP/2 connections and WebSockets have several tasks at
//! once, so they stay with their I/O thread, and only single streams and events move.
//!
//! # What if all workers are busy?
//!
//! A lane starts with eight worker slots per core. If a request finds no free slot, the monitor
//! looks at the threads that occupy slots, first after a millisecond. Threads that compute or wait
//! for a processor are *computing*, the others *block*. While fewer than eight threads per core
//! compute, the number of slots at most doubles with each look, up to 512, so that a hundred
//! requests run after a few milliseconds. If the handlers compute, there are no more slots, because
//! more threads would only take turns. Slots that were not used for a second are given up; threads
//! beyond the initial slots end after ten seconds without work. So handlers may sleep, or wait for
//! a database or another server, without any setting.
//!
//! Further requests wait in a queue of up to [`Limits::queue_len_max`](crate::Limits::queue_len_max)
//! for each lane; beyond that, requests get 503 with `Retry-After`. Responses in progress alternate
//! with new requests. Inline responses and TLS handshakes are not affected.
//!
//! If all 512 slots are in use and requests wait, a handler that has run for more than a second and
//! sleeps *lends its slot* to another request. When it has returned, its response occupies a slot
//! again. So a server responds although hundreds of handlers hang. The number of handlers that have
//! lent their slot is limited by
//! [`Limits::waiting_handlers_max`](crate::Limits::waiting_handlers_max). If more hang, requests wait
//! until one of them returns.
//!
//! # What if the handlers wait for something of limited capacity?
//!
//! Set the number of workers to the concurrency that a database supports, for example to the number
//! of its connections ([`Router::workers`](crate::Router::workers) or
//! [`Builder::workers`](crate::Builder::workers)): further handlers would only queue there instead
//! of here. Then the server lends no slot of a handler that hangs. A handler that waits for
//! something else, such as a lock, an event or another server, lends its slot by
//! [`lend_slot`](crate::lend_slot) during the wait. After such a wait, and after a wait for bytes
//! of a [streamed](crate::Route::streaming) body, the handler goes on at once, so more handlers
//! than the maximum may run then. If a database supports only so many, use a pool of connections
//! besides:
//!
//! ```
//! use std::sync::mpsc::Receiver;
//! use samovar_http::lend_slot;
//!
//! /// Waits for the result of another thread. Other requests may use the slot meanwhile.
//! fn wait_for(result: &Receiver<String>) -> Option<String> {
//!     lend_slot(|| result.recv()).ok()
//! }
//! ```
//!
//! Without a maximum of the application, `lend_slot` is rarely needed: it saves the second after
//! which a handler lends its slot by itself when all 512 are in use.
//!
//! # What if handlers wait for their clients?
//!
//! A handler that waits *for its own client*, in the middle of a request's body, releases its
//! worker slot while it waits. Another thread takes the slot; the number of waiting handlers is
//! limited by [`Limits::waiting_handlers_max`](crate::Limits::waiting_handlers_max), and at the limit
//! the address with most of them loses its slowest upload, even a new one if the address has more
//! than half of them. So slow clients cannot stall a server.
//! The same holds while the reader of [`Body::reader`](crate::Body::reader) or the iterator of
//! [`Body::pieces`](crate::Body::pieces) waits, for example for an upstream server: it occupies a
//! thread until it returns, and no slot. If its client leaves meanwhile, the connection is closed
//! and the response reported as [`End::Left`](crate::End::Left). Nor does it occupy a slot if it
//! computes instead of waiting, and its compression does not either. So a reader that decompresses,
//! for example, should have a body that [keeps the slot](crate::Body::keeping_slot): otherwise as
//! many threads as handlers may wait compute at the same time.
//!
//! [`Sender::send`](crate::Sender::send) waits for a client, too, but keeps its slot: call it only
//! from threads of your own.
//!
//! # What if a disk hangs?
//!
//! All workers that read from the disk hang. So there are three lanes for blocking work, each with
//! its own slots. A request that is dispatched with
//! [`Reply::dispatch_slow`](crate::Reply::dispatch_slow) runs in the slow lane, including its
//! response body. If all requests that read from a disk use the slow lane, all other requests are
//! served while the disk hangs. Requests that write to a disk use a third lane:
//! [`Reply::dispatch_writing`](crate::Reply::dispatch_writing). If a disk cannot be written, the
//! slow lane still reads what is in memory. The requests in the lane that hangs wait. The server
//! does not disconnect their clients, and completes the requests when the disk works again. Workers
//! also close the files of HTTP/1.1 responses, because some file systems block on close.
//!
//! # What if a handler hangs while the server stops?
//!
//! [`Router::serve_until`](crate::Router::serve_until) and [`Server::drain`](crate::Server::drain)
//! return at their timeout, and dropping the server does not wait for the handler, so the process
//! can end. A handler that waits for the rest of a request body does not hang: reading fails
//! shortly before the timeout, and the handler's response is sent.
//! [`Server::unfinished`](crate::Server::unfinished)
//! names the requests that are left behind, for the log.
//!
//! # What do the cores share?
//!
//! Memory that several cores write moves between their caches, which costs more than most requests
//! on machines with many cores. The engine writes, for each
//!
//! | event | shared memory that is written |
//! |---|---|
//! | request answered inline | none |
//! | connection | the counters of open and of accepted connections |
//! | request on a worker | the mutex of the queue, three times; the inbox of the connection's I/O thread, once, and its eventfd if the thread sleeps |
//! | response that is longer than 64 KiB | the list of free buffers and the counter of their memory, twice each; the mutex of the queue whenever the socket buffer is full, and every 1 MiB |
//!
//! The [`Observer`](crate::Observer) is called on each of these threads: an observer that counts
//! should have counters for each thread.
//!
//! # What about long computations?
//!
//! Another lane is for work that takes the processor for milliseconds, such as hashing a password
//! ([`Reply::dispatch_costly`](crate::Reply::dispatch_costly)). It has one slot per two
//! cores. There the networks of clients take turns, so that one client's computations do not hold
//! up another's; [`Reply::dispatch_costly_for`](crate::Reply::dispatch_costly_for) names the client
//! behind a proxy, and whether it comes before others. After the computation,
//! [`Response::requeue`](crate::Response::requeue) moves the request to the prompt lane, and
//! `requeue_slow` and `requeue_writing` to those lanes, for the rest of its work. If the result is
//! that another part of the application is responsible,
//! [`Response::send_back`](crate::Response::send_back) lets the I/O thread decide again, as if no
//! worker had had the request.
//!
//! # What if something panics?
//!
//! | panic in | consequence |
//! |---|---|
//! | a handler | the client gets 500, and the observer gets an event; this does not work in programs built with `panic = "abort"` |
//! | the source of a body | the client gets 503 if nothing was sent yet; otherwise the connection is reset |
//! | an observer | the connection of the event is closed |
//! | a WebSocket handler | the socket is closed with 1011 |
