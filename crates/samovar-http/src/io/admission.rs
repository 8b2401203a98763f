//! Accepts, refuses, evicts and closes the connections of an I/O thread.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::context::{Drain, Next};
use super::eviction::{Wait, is_evictable, wait_of};
use super::link::Link;
use super::thread::IoThread;
use super::{h2, http1, ws};
use crate::answer::last;
use crate::client::Peer;
use crate::conn::{Conn, Message, Stage};
use crate::exec;
use crate::net::key::Key;
use crate::net::transport::Transport;
use crate::observer::{End, Incident};
use crate::service::Service;
use crate::sys;
use crate::tls::TlsConfig;

/// Number of connections accepted in a row before other events are handled.
const ACCEPT_COUNT: usize = 64;
/// Number of rounds of [`ACCEPT_COUNT`] when a server starts to drain: enough for any backlog, but
/// finite even if new connections keep arriving.
const DRAIN_ACCEPT_ROUNDS: usize = 128;
/// Maximum number of connections above the connection limit that stay open until their client has
/// read the 503. Further connections are closed without a response.
const REFUSED_MAX: usize = 64;

impl<S: Service> IoThread<S> {
    /// Accepts waiting connections; returns `false` once there are none.
    pub(super) fn accept(&mut self, index: usize) -> bool {
        for _ in 0..ACCEPT_COUNT {
            let Some(listener) = self.acceptor.socket(index) else {
                return false;
            };
            match sys::accept(listener) {
                Ok(Some((socket, peer))) => {
                    let tls = listener.tls.clone();
                    self.acceptor.is_short = false;
                    if let Some(config) = tls {
                        self.admit_tls(socket, peer, &config);
                        continue;
                    }
                    self.admit(Transport::Plain(socket), peer, |_| {});
                }
                Ok(None) => return false,
                Err(error) if sys::is_exhaustion(&error) => {
                    self.cx.incident(&Incident::AcceptFailed { error: &error });
                    // Respond with 503 only after the second failure in a row, because descriptors
                    // may be free again soon.
                    if std::mem::replace(&mut self.acceptor.is_short, true) {
                        self.turn_waiting_away(index);
                    }
                    self.acceptor.pause(&self.poll);
                    return false;
                }
                // The client has disconnected before its connection was accepted.
                Err(_) => {}
            }
        }
        true
    }

    pub(super) fn admit(
        &mut self,
        transport: Transport,
        peer: Peer,
        prepare: impl FnOnce(&mut Conn),
    ) {
        let shared = &self.cx.shared;
        let max = shared.limits.connections_max;
        shared.accepted_count.fetch_add(1, Ordering::Relaxed);
        let count = shared.connection_count.fetch_add(1, Ordering::Relaxed);
        let is_full = count >= max && !self.evict();
        if is_full && count >= max.saturating_add(REFUSED_MAX) {
            let connection_count = &self.cx.shared.connection_count;
            connection_count.fetch_sub(1, Ordering::Relaxed);
            return self.cx.incident(&Incident::ConnectionsFull);
        }
        let key = self.slab.reserve();
        let mut conn = Box::new(Conn::new(transport, peer, self.cx.home, key, self.cx.now));
        prepare(&mut conn);
        let added = self.poll.add_connection(&conn.transport, key.to_bits());
        if added.is_err() || is_full && conn.stage() == Stage::Handshake {
            // A refused TLS connection gets no 503: that would need a TLS handshake, which costs
            // more than the refusal is worth.
            self.close(conn);
        } else if is_full {
            self.guarded(Some(key), |thread| thread.turn_away(conn));
        } else {
            self.slab.put(key, Link::Http1(conn));
        }
    }

    /// Responds to waiting connections with 503, because no descriptor was free for a while.
    fn turn_waiting_away(&mut self, index: usize) {
        let mut answer = Vec::new();
        last(&mut answer, false, &self.cx.date).overload(&self.cx.shared.service, None);
        let buffer = self.cx.read_buffer.get();
        self.acceptor
            .turn_away(index, ACCEPT_COUNT, &answer, buffer);
    }

    fn admit_tls(&mut self, socket: OwnedFd, peer: Peer, config: &TlsConfig) {
        let Some(handshake) = self.cx.shared.handshakes.take_one() else {
            return self.cx.incident(&Incident::ConnectionsFull);
        };
        let stream = config.stream(socket);
        self.admit(Transport::Tls(Box::new(stream)), peer, |conn| {
            conn.start_handshake(handshake);
        });
    }

    /// Responds with 503, because the connection limit is reached.
    fn turn_away(&mut self, mut conn: Box<Conn>) {
        self.cx.incident(&Incident::ConnectionsFull);
        // This thread has no connection to evict; another thread may have one.
        for (home, inbox) in self.cx.shared.inboxes.iter().enumerate() {
            if home != self.cx.home {
                drop(inbox.push(Message::Evict));
            }
        }
        conn.proto.close_after();
        conn.needs_linger = true;
        last(&mut conn.output, false, &self.cx.date).overload(&self.cx.shared.service, None);
        let next = http1::send_more(&mut self.cx, &mut conn);
        self.settle(conn, next);
    }

    pub(super) fn close(&mut self, conn: Box<Conn>) {
        self.forget(conn.key);
        // Dropping the connection closes its only descriptor, which removes the socket from the
        // poll.
        drop(conn);
    }

    /// Frees the slot of a closed connection.
    pub(super) fn forget(&mut self, key: Key) {
        if self.slab.free(key) {
            let connection_count = &self.cx.shared.connection_count;
            connection_count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn start_drain(&mut self, deadline: Instant) {
        if let Some(drain) = &mut self.cx.drain {
            drain.deadline = drain.deadline.min(deadline);
            return;
        }
        let since = self.cx.now;
        self.cx.drain = Some(Drain { since, deadline });
        // Accept and serve all connections that the kernel has already established.
        for index in 0..self.acceptor.count() {
            (0..DRAIN_ACCEPT_ROUNDS).all(|_| self.accept(index));
        }
        self.acceptor.close(&self.poll);
    }

    // Methods for the eviction of connections.

    /// Evicts a connection to make a new one possible; returns `false` if none may be evicted.
    pub(super) fn evict(&mut self) -> bool {
        loop {
            let Some(key) = self.eviction.pop() else {
                if self.eviction.is_futile(self.cx.now) {
                    return false;
                }
                // Connections that are waiting in the inbox are candidates, too.
                self.receive(&mut Vec::new());
                let limits = &self.cx.shared.limits;
                if !self.eviction.search(&self.slab, limits, self.cx.now) {
                    return false;
                }
                continue;
            };
            if self.evict_candidate(key) {
                return true;
            }
        }
    }

    /// Closes a candidate; returns `false` if the connection has become busy since the search.
    fn evict_candidate(&mut self, key: Key) -> bool {
        if !is_evictable(&self.slab, key, &self.cx.shared.limits) {
            return false;
        }
        let count = self.slab.count();
        self.guarded(Some(key), |thread| match thread.slab.take(key) {
            Some(Link::Http1(conn)) => thread.evict_http1(conn),
            Some(Link::H2(mut conn)) => {
                thread.cx.incident(&Incident::GaveWay { peer: conn.peer });
                h2::cut_off(&mut thread.cx, &mut conn);
                thread.forget(key);
            }
            Some(link) => thread.slab.put(key, link),
            None => {}
        });
        self.slab.count() < count
    }

    fn evict_http1(&mut self, mut conn: Box<Conn>) {
        let is_at_rest = |conn: &Conn| wait_of(conn, u64::MAX) == Wait::AtRest;
        if is_at_rest(&conn) && conn.stage() == Stage::Receiving {
            // Read before closing: a request may have arrived whose event has not been handled yet.
            conn.readable = true;
            let next = http1::go_on(&mut self.cx, &mut conn);
            if !matches!(next, Next::Wait) || !is_at_rest(&conn) {
                return self.settle(conn, next);
            }
            conn.transport.say_goodbye();
        }
        self.cx.incident(&Incident::GaveWay { peer: conn.peer });
        if conn.is_sending() {
            conn.transport.reset_on_close();
            drop(exec::fail(&self.cx.shared, &mut conn, End::Cut));
        }
        self.close(conn);
    }

    // Methods for closing all connections.

    /// Closes all connections. Those that a worker has are closed when they return.
    pub(super) fn cut_off(&mut self) {
        if self.slab.count() > 0 {
            self.cx.shared.is_cut_off.store(true, Ordering::Release);
        }
        let mut keys = Vec::new();
        self.slab.keys_here(&mut keys);
        for key in keys {
            self.guarded(Some(key), |thread| match thread.slab.take(key) {
                Some(Link::Http1(mut conn)) => {
                    if conn.is_sending() {
                        conn.transport.reset_on_close();
                        drop(exec::fail(&thread.cx.shared, &mut conn, End::Cut));
                    }
                    thread.close(conn);
                }
                Some(Link::Ws(mut conn)) => {
                    let next = ws::lose(&mut thread.cx, &mut conn, "the server stopped");
                    thread.cx.wake_workers();
                    thread.settle_socket(conn, next);
                }
                Some(Link::H2(mut conn)) => {
                    h2::cut_off(&mut thread.cx, &mut conn);
                    thread.forget(key);
                }
                None => {}
            });
        }
        for conn in self.cx.shared.inboxes[self.cx.home].take_laid_by() {
            self.guarded(None, |thread| exec::cut_off(&thread.cx.shared, conn));
        }
        for message in self.cx.shared.inboxes[self.cx.home].close() {
            self.guarded(None, |thread| match message {
                Message::Returned(conn, _) => exec::cut_off(&thread.cx.shared, conn),
                Message::Lost(key) => thread.forget(key),
                // Any other message concerns a connection of this thread, which has none left.
                _ => {}
            });
        }
    }
}
