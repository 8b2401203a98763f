//! Where to, how long, how many.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for all that is not a connection.
const DESCRIPTORS_KEPT: u64 = 64;

/// A run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The server.
    pub address: SocketAddr,
    /// Connections that are held open, of all threads. Members of a fleet share them if they are
    /// more: whoever has something to ask takes the one that has rested longest.
    pub connections: usize,
    /// Addresses to come from, if the server is on the loopback: 127.0.0.1, 127.0.0.2 and so on.
    /// One has some 28,000 ports.
    pub sources: u8,
    /// How long requests are sent.
    pub duration: Duration,
    /// A request that takes longer has failed, and its connection is closed.
    pub timeout: Duration,
}

impl Plan {
    /// As many connections as `members`, or as this process may have, for `duration`.
    #[must_use]
    pub fn new(address: SocketAddr, members: usize, duration: Duration) -> Self {
        Self {
            address,
            connections: members.min(connections_max()),
            sources: 9,
            duration,
            timeout: Duration::from_secs(10),
        }
    }
}

/// How many connections this process may have. Raises the limit of open files as far as it may be.
#[must_use]
pub fn connections_max() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let descriptors = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let descriptors = descriptors.unwrap_or(u64::MAX);
    usize::try_from(descriptors.saturating_sub(DESCRIPTORS_KEPT)).unwrap_or(usize::MAX)
}
