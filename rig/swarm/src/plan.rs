//! Where to, how long, how many.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for all that is not a connection.
const DESCRIPTORS_KEPT: u64 = 64;
/// The same for a server with `samovar-http` (256), and some more.
const DESCRIPTORS_OF_SERVER: u64 = 320;
/// With fewer descriptors such a server keeps half of them.
const DESCRIPTORS_FEW: u64 = 4096;
/// It has so many connections at least, or half as many as descriptors.
const DESCRIPTORS_OF_FEW: u64 = 16;

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
    /// As many connections as `members`, or as [both sides](connections_both) may have, for
    /// `duration`.
    #[must_use]
    pub fn new(address: SocketAddr, members: usize, duration: Duration) -> Self {
        Self {
            address,
            connections: members.min(connections_both()),
            sources: 9,
            duration,
            timeout: Duration::from_secs(10),
        }
    }
}

/// How many connections this process may have. Raises the limit of open files as far as it may be.
#[must_use]
pub fn connections_max() -> usize {
    count(descriptors().saturating_sub(DESCRIPTORS_KEPT))
}

/// How many a server with `samovar-http` may have, too, if it may have as many descriptors as this
/// process. Raises the limit of open files as far as it may be.
#[must_use]
pub fn connections_both() -> usize {
    let descriptors = descriptors();
    let max = descriptors.saturating_sub(DESCRIPTORS_OF_SERVER);
    let max = max.max(DESCRIPTORS_OF_FEW);
    count(if descriptors < DESCRIPTORS_FEW {
        max.min(descriptors / 2)
    } else {
        max
    })
}

fn count(connections: u64) -> usize {
    usize::try_from(connections).unwrap_or(usize::MAX)
}

fn descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let descriptors = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    descriptors.unwrap_or(u64::MAX)
}
