//! The listeners of an I/O thread.

use std::io;

use crate::net::listener::Socket;
use crate::sys::{self, Poll, WakeUp};

/// Poll key of the first listener; each further listener has the next lower key. The slab never
/// assigns keys this large.
const LISTENER_KEY: u64 = u64::MAX - 1;

/// The listeners of a thread, and a reserve descriptor for use when no other is free.
#[derive(Debug)]
pub(super) struct Acceptor {
    listeners: Vec<Socket>,
    reserve: Option<WakeUp>,
    /// Whether the last attempt to accept has failed for lack of descriptors.
    pub(super) is_short: bool,
}

impl Acceptor {
    pub(super) fn new(sockets: Vec<Socket>) -> io::Result<Self> {
        Ok(Self {
            listeners: sockets,
            reserve: Some(WakeUp::new()?),
            is_short: false,
        })
    }

    pub(super) fn count(&self) -> usize {
        self.listeners.len()
    }

    pub(super) fn socket(&self, index: usize) -> Option<&Socket> {
        self.listeners.get(index)
    }

    /// Returns the index of the listener with this poll key; `None` if the key is not a listener's.
    pub(super) fn index_of(&self, key: u64) -> Option<usize> {
        let index = usize::try_from(LISTENER_KEY.checked_sub(key)?).ok()?;
        (index < self.listeners.len()).then_some(index)
    }

    pub(super) fn is_polled(&self) -> bool {
        self.listeners.iter().all(|listener| listener.is_polled)
    }

    /// Registers the listeners with the poll.
    pub(super) fn poll(&mut self, poll: &Poll) -> io::Result<()> {
        for (listener, index) in self.listeners.iter_mut().zip(0..) {
            if !listener.is_polled {
                let is_shared = listener.is_shared;
                poll.add_listener(&*listener, LISTENER_KEY - index, is_shared)?;
                listener.is_polled = true;
            }
        }
        Ok(())
    }

    /// Removes the listeners from the poll, because accepting would fail again at once. The next
    /// sweep registers them again.
    pub(super) fn pause(&mut self, poll: &Poll) {
        for listener in &mut self.listeners {
            if listener.is_polled {
                listener.is_polled = poll.remove(&*listener).is_err();
            }
        }
    }

    /// Closes the listeners.
    pub(super) fn close(&mut self, poll: &Poll) {
        // Closing the descriptors is not enough: epoll keeps a socket registered while another
        // thread has a descriptor of it.
        self.pause(poll);
        self.listeners.clear();
    }

    /// Accepts up to `count` waiting connections one after the other with the reserve descriptor,
    /// sends `answer` to each, and closes it.
    pub(super) fn turn_away(
        &mut self,
        index: usize,
        count: usize,
        answer: &[u8],
        buffer: &mut [u8],
    ) {
        self.reserve = None;
        if let Some(socket) = self.socket(index) {
            for _ in 0..count {
                let Ok(Some((client, _))) = sys::accept(socket) else {
                    break;
                };
                // Read the request before closing: if a socket is closed with unread bytes, the
                // client may lose the response.
                drop(sys::send(&client, answer, false));
                drop(sys::shutdown_write(&client));
                drop(sys::recv(&client, buffer));
            }
        }
        self.reserve = WakeUp::new().ok();
    }
}
