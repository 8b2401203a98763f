//! Parameters of a run, and limits of connections.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors reserved for other uses than connections.
const DESCRIPTORS_KEPT: u64 = 64;
/// Descriptors that a server with `samovar-http` reserves (256), plus a margin.
const DESCRIPTORS_OF_SERVER: u64 = 320;
/// Limit of open files below which such a server reserves half of its descriptors.
const DESCRIPTORS_FEW: u64 = 4096;
/// Minimum number of connections that such a server accepts, unless half of its descriptors are
/// fewer.
const DESCRIPTORS_OF_FEW: u64 = 16;

/// Parameters of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Address of the server.
    pub address: SocketAddr,
    /// Number of open connections. If there are more clients than connections, the clients share
    /// them: each request takes the connection that was idle longest.
    pub connections: usize,
    /// Time during which requests are sent.
    pub duration: Duration,
    /// Maximum time for a response. After that time, the request fails and its connection is
    /// closed.
    pub timeout: Duration,
}

impl Plan {
    /// Creates a plan for `duration` with `members` connections, limited to [`connections_both`].
    #[must_use]
    pub fn new(address: SocketAddr, members: usize, duration: Duration) -> Self {
        Self {
            address,
            connections: members.min(connections_both()),
            duration,
            timeout: Duration::from_secs(10),
        }
    }
}

/// Returns the maximum number of connections of this process. Raises the limit of open files to its
/// hard limit.
#[must_use]
pub fn connections_max() -> usize {
    count(descriptors().saturating_sub(DESCRIPTORS_KEPT))
}

/// Returns the maximum number of connections that this process can open and a server with
/// `samovar-http` accepts, if the server has the same hard limit of open files. Raises this
/// process's limit to its hard limit.
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
