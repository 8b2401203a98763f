//! Wake-ups of connections by the application.

use std::fmt;
use std::sync::Arc;

use super::key::Key;
#[cfg(feature = "http2")]
use crate::body::Blocks;
use crate::body::BufferPool;

/// The server as seen by a body: wake-ups and memory.
pub(crate) trait Host: Send + Sync {
    /// Makes I/O thread `home` check a connection, or one stream of it.
    fn wake(&self, home: usize, key: Key, stream: u32);

    fn buffers(&self) -> &Arc<BufferPool>;

    #[cfg(feature = "http2")]
    fn blocks(&self) -> &Arc<Blocks>;
}

/// Makes the engine check one connection again: its body has bytes, or its deferred response is
/// there. Cheap to clone, usable from any thread, and without effect once the connection is closed.
#[derive(Clone)]
pub struct Waker {
    host: Arc<dyn Host>,
    home: usize,
    key: Key,
    /// 0 for an HTTP/1 connection or a WebSocket.
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

    /// Wakes the connection. Calls before it was checked may count as one.
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
