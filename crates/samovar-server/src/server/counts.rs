//! How often what an operator may want to know has happened since the start.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$doc:meta])+ $count:ident = $name:literal,)+) => {
        /// A counter. Its name is part of the log and of `/metrics`, and stays.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Count {
            $($(#[$doc])+ $count,)+
        }

        impl Count {
            const ALL: &[(Self, &str)] = &[$((Self::$count, $name),)+];
        }
    };
}

counts! {
    /// A download or listing broke because its path was collected, or registered anew, meanwhile.
    PathCollected = "path_collected",
    /// A narinfo, or some in one piece of an answer, was sent though its path was not held.
    NarinfoUnleased = "narinfo_unleased",
    /// A NAR was sent from files though its path was not held.
    NarUnleased = "nar_unleased",
    /// Holding paths against garbage collection began to fail.
    LeasesFailed = "leases_failed",
    /// As many paths were held as may be.
    LeaseLimitReached = "lease_limit_reached",
    /// A path was held against garbage collection.
    PathLeased = "path_leased",
    /// The files of a path were found not to be what its row says.
    PathQuarantined = "path_quarantined",
    /// The bytes of a path were hashed and found right.
    PathVerified = "path_verified",
    /// The files of a damaged path were changed, or found right.
    PathReleased = "path_released",
    /// Something was asked about a damaged path.
    QuarantinedRequested = "quarantined_requested",
    /// A path could not be served for another reason of its own.
    PathFailed = "path_failed",
    /// The store began to fail as a whole.
    StoreFailed = "store_failed",
    /// A response was cut off, or became a 503, because its body failed.
    BodyFailed = "body_failed",
    /// A peer broke the protocol or a limit of a request.
    Refused = "refused",
    /// A peer read or wrote too slowly.
    TooSlow = "too_slow",
    /// A TLS handshake failed.
    HandshakeFailed = "handshake_failed",
    /// A connection that waited for its client was closed for a new one, at the limit of them.
    ConnectionEvicted = "connection_evicted",
    /// A new connection found that limit reached, and none that could be closed.
    ConnectionsFull = "connections_full",
    /// A request found the queue to the workers full.
    WorkersFull = "workers_full",
    /// No connection could be accepted, for want of descriptors or memory.
    AcceptFailed = "accept_failed",
    /// An answer of many narinfos was refused, because too many paths were on their way.
    BulkLimitReached = "bulk_limit_reached",
    /// Such an answer gave way to another one, because its client read slowly.
    BulkEvicted = "bulk_evicted",
    /// A request was not let in.
    AccessDenied = "access_denied",
    /// A request was refused because its client asks too often, or guesses passwords.
    AccessLimited = "access_limited",
    /// A password was hashed and found right.
    PasswordVerified = "password_verified",
    /// A handler panicked.
    Panicked = "panicked",
    /// Anything else that the engine reports.
    Other = "other",
}

/// One number for each [`Count`].
#[derive(Debug, Default)]
pub(super) struct Counts([AtomicU64; Count::ALL.len()]);

impl Counts {
    pub(super) fn add(&self, count: Count) {
        if let Some(number) = self.0.get(count as usize) {
            number.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All of them, those that are zero included.
    pub(super) fn all(&self) -> Vec<(&'static str, u64)> {
        let numbers = self.0.iter().map(|number| number.load(Ordering::Relaxed));
        let names = Count::ALL.iter().map(|(_, name)| *name);
        names.zip(numbers).collect()
    }
}

/// `name=number`, those that are not zero; `nothing` if all are.
impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (number, (_, name)) in self.0.iter().zip(Count::ALL) {
            let number = number.load(Ordering::Relaxed);
            if number > 0 {
                write!(f, "{separator}{name}={number}")?;
                separator = " ";
            }
        }
        match separator {
            "" => f.write_str("nothing"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_number_and_name() {
        for (index, (count, _)) in Count::ALL.iter().enumerate() {
            assert_eq!(index, *count as usize);
        }
        let counts = Counts::default();
        assert_eq!(counts.to_string(), "nothing");
        counts.add(Count::Other);
        counts.add(Count::PathQuarantined);
        counts.add(Count::PathQuarantined);
        assert_eq!(counts.to_string(), "path_quarantined=2 other=1");
    }
}
