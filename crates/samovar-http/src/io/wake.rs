//! How something that a connection waits for says that it is there.

use std::fmt;
use std::sync::Arc;

use super::inbox::Message;
use super::slab::Key;
use crate::server::Core;

/// Makes the engine look at one connection again: a body that had nothing to give, an answer that
/// was promised for later. Cheap to clone, usable from any thread, and harmless once the connection
/// is gone.
#[derive(Clone)]
pub struct Waker {
    core: Arc<Core>,
    home: usize,
    key: Key,
    /// The stream within the connection; 0 where a connection is one stream.
    stream: u32,
}

impl Waker {
    pub(crate) fn new(core: &Arc<Core>, home: usize, key: Key) -> Self {
        Self {
            core: Arc::clone(core),
            home,
            key,
            stream: 0,
        }
    }

    #[cfg(feature = "http2")]
    pub(crate) fn for_stream(core: &Arc<Core>, home: usize, key: Key, stream: u32) -> Self {
        Self {
            stream,
            ..Self::new(core, home, key)
        }
    }

    /// Wakes the connection. Calls before it has looked may count as one.
    pub fn wake(&self) {
        // An I/O thread that is gone has no connections.
        drop(
            self.core
                .send_home(self.home, Message::Wake(self.key, self.stream)),
        );
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waker").field(&self.key).finish()
    }
}
