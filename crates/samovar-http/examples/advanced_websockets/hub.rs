//! The clients of this server, and their channels.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use samovar_http::ws::{CloseCode, Frame, Socket};

/// Number of pings in a row that a client may leave unanswered.
const MISSED_MAX: u32 = 2;

/// The clients of this server.
#[derive(Default)]
pub(crate) struct Hub {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Subscribers by channel and socket ID. Invariant: no channel is without subscribers.
    channels: BTreeMap<String, BTreeMap<u64, Socket>>,
    /// All sockets by ID, with the number of pings that were not answered yet.
    sockets: BTreeMap<u64, (Socket, u32)>,
}

impl Hub {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, socket: &Socket) {
        let entry = (socket.clone(), 0);
        self.state().sockets.insert(socket.id(), entry);
    }

    pub(crate) fn leave(&self, socket: &Socket) {
        self.state().sockets.remove(&socket.id());
    }

    pub(crate) fn subscribe(&self, channel: &str, socket: &Socket) {
        let mut state = self.state();
        let subscribers = state.channels.entry(channel.to_owned()).or_default();
        subscribers.insert(socket.id(), socket.clone());
    }

    pub(crate) fn unsubscribe(&self, channel: &str, socket: &Socket) {
        let mut state = self.state();
        let Some(subscribers) = state.channels.get_mut(channel) else {
            return;
        };
        subscribers.remove(&socket.id());
        if subscribers.is_empty() {
            state.channels.remove(channel);
        }
    }

    /// Sends a message to the subscribers of a channel. Sending never waits: a client that does not
    /// read is disconnected by the engine.
    pub(crate) fn deliver(&self, channel: &str, text: &str) {
        let state = self.state();
        let Some(subscribers) = state.channels.get(channel) else {
            return;
        };
        let frame = Frame::new(&format!("message {channel} {text}"));
        for socket in subscribers.values() {
            socket.send_frame(&frame);
        }
    }

    /// Sends a ping to each client, and closes the sockets of those that have not answered several.
    pub(crate) fn ping(&self) {
        for (socket, missed) in self.state().sockets.values_mut() {
            if *missed >= MISSED_MAX {
                socket.close(CloseCode::POLICY, "no heartbeat");
            }
            *missed += 1;
            socket.ping(b"");
        }
    }

    /// Records that a client has answered.
    pub(crate) fn heard(&self, socket: &Socket) {
        if let Some((_, missed)) = self.state().sockets.get_mut(&socket.id()) {
            *missed = 0;
        }
    }
}
