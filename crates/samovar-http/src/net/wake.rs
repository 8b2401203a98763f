//! Wake-ups of connections by application code.

use std::fmt;
use std::sync::Arc;

use super::key::Key;
use crate::memory::{Blocks, BufferPool};

/// Interface of the server to a body: wake-ups and memory pools.
pub(crate) trait Host: Send + Sync {
    /// Makes I/O thread `home` check a connection, or one stream of it.
    fn wake(&self, home: usize, key: Key, stream: u32);

    fn buffers(&self) -> &Arc<BufferPool>;

    fn blocks(&self) -> &Arc<Blocks>;
}

/// Makes the engine check a connection again, because its body has bytes or its deferred response
/// is complete. Cheap to clone, usable from any thread, and without effect once the connection is
/// closed.
#[derive(Clone)]
pub struct Waker {
    host: Arc<dyn Host>,
    home: usize,
    key: Key,
    /// Stream number on an HTTP/2 connection; 0 for an HTTP/1 connection or a WebSocket.
    stream: u32,
}

impl Waker {
    pub(crate) fn new(host: Arc<dyn Host>, home: usize, key: Key, stream: u32) -> Self {
        Self {
            host,
            home,
            key,
            stream,
        }
    }

    /// Wakes the connection. Several calls before the engine checks the connection may count as
    /// one.
    pub fn wake(&self) {
        self.host.wake(self.home, self.key, self.stream);
    }

    pub(crate) fn host(&self) -> &dyn Host {
        &*self.host
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waker").field(&self.key).finish()
    }
}
