//! How connections come to an I/O thread, and how they leave it.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::answer::last;
use super::conn::Conn;
use super::inbox::Message;
use super::link::Link;
use super::slab::Key;
use super::sys;
use super::thread::{IoThread, LISTENER_KEY};
use super::transport::Transport;
use crate::exec;
use crate::head::Peer;
use crate::observer::{End, Incident};
use crate::service::Service;

/// Connections accepted in a row before others get their turn.
const ACCEPT_COUNT: usize = 64;
/// How often that is done at most when a server drains: as long as any backlog, and not for ever
/// while new connections keep coming.
const DRAIN_ACCEPT_ROUNDS: usize = 128;
/// Connections past the limit that are held until their 503 is read; beyond them, a connection is
/// closed whether the peer has heard why or not.
const REFUSED_MAX: usize = 64;

/// A descriptor kept for the time when there are no others.
#[derive(Debug)]
pub(super) struct Reserve {
    descriptor: Option<OwnedFd>,
    /// Accepting failed, and has not succeeded since.
    is_short: bool,
}

impl Reserve {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            descriptor: Some(sys::wake_descriptor()?),
            is_short: false,
        })
    }
}

impl<S: Service> IoThread<S> {
    pub(super) fn accept(&mut self, index: usize) {
        self.accept_some(index);
    }

    /// `false` once nobody waits.
    fn accept_some(&mut self, index: usize) -> bool {
        for _ in 0..ACCEPT_COUNT {
            let Some(listener) = self.listeners.get(index) else {
                return false;
            };
            match sys::accept(&listener.socket) {
                Ok(Some((socket, peer))) => {
                    self.reserve.is_short = false;
                    #[cfg(feature = "tls")]
                    if let Some(config) = listener.socket.tls.clone() {
                        self.admit_tls(socket, peer, &config);
                        continue;
                    }
                    self.admit(Transport::Plain(socket), peer, |_| {});
                }
                Ok(None) => return false,
                Err(error) if sys::is_exhaustion(&error) => {
                    self.shared
                        .service
                        .observer()
                        .incident(&Incident::AcceptFailed { error: &error });
                    // The first time it waits, since descriptors may come back soon.
                    if std::mem::replace(&mut self.reserve.is_short, true) {
                        self.turn_waiting_away(index);
                    }
                    self.pause_listeners();
                    return false;
                }
                // The peer gave up between knocking and our answer.
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
        let max = self.shared.limits.connections_max;
        self.shared.accepted_count.fetch_add(1, Ordering::Relaxed);
        let count = self.shared.connection_count.fetch_add(1, Ordering::Relaxed);
        let is_full = count >= max && !self.make_room();
        if is_full && count >= max.saturating_add(REFUSED_MAX) {
            self.shared.connection_count.fetch_sub(1, Ordering::Relaxed);
            return self
                .shared
                .service
                .observer()
                .incident(&Incident::ConnectionsFull);
        }
        let key = self.slab.reserve();
        let mut conn = Box::new(Conn::new(transport, peer, self.home, key, self.now));
        prepare(&mut conn);
        let added = self.poll.add_connection(&conn.transport, key.to_bits());
        if added.is_err() || is_full && conn.is_shaking() {
            // Where a handshake would come first, the reason costs more than the refusal.
            self.close(conn);
        } else if is_full {
            self.guarded(Some(key), |thread| thread.turn_away(conn));
        } else {
            self.slab.put(key, Link::Http1(conn));
        }
    }

    /// Nothing was accepted for a while, for want of descriptors. With the one kept for this, those
    /// who wait are told, one after the other.
    fn turn_waiting_away(&mut self, index: usize) {
        self.reserve.descriptor = None;
        let mut answer = Vec::new();
        last(&mut answer, false, &self.date).overload(&self.shared.service);
        if let Some(listener) = self.listeners.get(index) {
            for _ in 0..ACCEPT_COUNT {
                let Ok(Some((socket, _))) = sys::accept(&listener.socket) else {
                    break;
                };
                // What the peer has sent is read, or closing would destroy the answer.
                drop(sys::send(&socket, &answer, false));
                drop(sys::shutdown_write(&socket));
                drop(sys::recv(&socket, &mut self.read_buffer));
            }
        }
        self.reserve.descriptor = sys::wake_descriptor().ok();
    }

    /// No room for this connection. It is told so, whatever it wants.
    fn turn_away(&mut self, mut conn: Box<Conn>) {
        self.shared
            .service
            .observer()
            .incident(&Incident::ConnectionsFull);
        // Nobody can go here. With other threads it may be otherwise.
        for (home, inbox) in self.shared.inboxes.iter().enumerate() {
            if home != self.home {
                drop(inbox.push(Message::MakeRoom));
            }
        }
        conn.proto.close_after();
        conn.needs_linger = true;
        last(&mut conn.output, false, &self.date).overload(&self.shared.service);
        let next = self.send_more(&mut conn);
        self.settle(conn, next);
    }

    pub(super) fn close(&mut self, conn: Box<Conn>) {
        self.forget(conn.key);
        // Closing the descriptor takes it out of the poll: nobody else holds a copy.
        drop(conn);
    }

    /// Frees the place of a connection that is closed.
    pub(super) fn forget(&mut self, key: Key) {
        if self.slab.free(key) {
            self.shared.connection_count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn poll_listeners(&mut self) -> std::io::Result<()> {
        for (listener, index) in self.listeners.iter_mut().zip(0..) {
            if !listener.is_polled {
                let key = LISTENER_KEY - index;
                self.poll
                    .add_listener(&listener.socket, key, listener.socket.is_shared)?;
                listener.is_polled = true;
            }
        }
        Ok(())
    }

    /// Accepting would only fail again at once; the next sweep tries it.
    fn pause_listeners(&mut self) {
        for listener in &mut self.listeners {
            if listener.is_polled {
                listener.is_polled = self.poll.remove(&listener.socket).is_err();
            }
        }
    }

    pub(super) fn start_drain(&mut self, deadline: Instant) {
        let earlier = self
            .drain_by
            .map_or(deadline, |drain_by| drain_by.min(deadline));
        if self.drain_by.replace(earlier).is_none() {
            self.drain_since = Some(self.now);
            // Connections that the kernel has accepted for us are ours to serve.
            for index in 0..self.listeners.len() {
                (0..DRAIN_ACCEPT_ROUNDS).all(|_| self.accept_some(index));
            }
            // A shared socket stays known to the poll while another thread has it open.
            self.pause_listeners();
            self.listeners.clear();
        }
    }

    /// Ends every connection that is here or comes back.
    pub(super) fn cut_off(&mut self) {
        if self.slab.count() > 0 {
            self.shared.is_cut_off.store(true, Ordering::Release);
        }
        let mut keys = Vec::new();
        self.slab.keys_here(&mut keys);
        for key in keys {
            self.guarded(Some(key), |thread| match thread.slab.take(key) {
                Some(Link::Http1(mut conn)) => {
                    if conn.is_sending() {
                        conn.reset_on_close();
                        drop(exec::fail(&thread.shared, &mut conn, End::Cut));
                    }
                    thread.close(conn);
                }
                Some(Link::Ws(conn)) => thread.cut_off_socket(conn),
                #[cfg(feature = "http2")]
                Some(Link::H2(mut conn)) => thread.cut_off_h2(&mut conn),
                None => {}
            });
        }
        for message in self.shared.inboxes[self.home].close() {
            self.guarded(None, |thread| match message {
                Message::Returned(conn, _) => exec::cut_off(&thread.shared, conn),
                Message::Lost(key) => thread.forget(key),
                // Its stream went with its connection.
                #[cfg(feature = "http2")]
                Message::Stream(..) => {}
                Message::Wake(..) | Message::MakeRoom | Message::Drain(_) | Message::Ping(_) => {}
            });
        }
    }
}
