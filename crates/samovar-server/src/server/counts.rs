//! Counters of events since the start of the process.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$doc:meta])+ $count:ident = $name:literal,)+) => {
        /// A counter. Its name appears in the log and in `/metrics`, so it must not change.
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
    /// A download or listing was aborted, because its path was garbage-collected or registered
    /// again during the transfer.
    PathCollected = "path_collected",
    /// A narinfo, or one part of a bulk response, was sent without a lease.
    NarinfoUnleased = "narinfo_unleased",
    /// A NAR was sent from the files of the store without a lease.
    NarUnleased = "nar_unleased",
    /// Requests for leases started to fail.
    LeasesFailed = "leases_failed",
    /// The limit of leases was reached.
    LeaseLimitReached = "lease_limit_reached",
    /// A path was leased.
    PathLeased = "path_leased",
    /// A path was quarantined.
    PathQuarantined = "path_quarantined",
    /// The contents of a path were hashed and match its registration.
    PathVerified = "path_verified",
    /// A quarantined path was repaired.
    PathReleased = "path_released",
    /// A request for a quarantined path was answered with 404.
    QuarantinedRequested = "quarantined_requested",
    /// A path could not be served, for a reason without a counter of its own.
    PathFailed = "path_failed",
    /// The store became unavailable.
    StoreFailed = "store_failed",
    /// A response was aborted, or became a 503, because its body failed.
    BodyFailed = "body_failed",
    /// A client violated the protocol or a limit of requests.
    Refused = "refused",
    /// A client read or wrote too slowly.
    TooSlow = "too_slow",
    /// A TLS handshake failed.
    HandshakeFailed = "handshake_failed",
    /// An idle connection was closed at the limit of connections, in favour of a new one.
    ConnectionEvicted = "connection_evicted",
    /// A new connection was refused at the limit of connections.
    ConnectionsFull = "connections_full",
    /// A request was refused because the queue to the workers was full.
    WorkersFull = "workers_full",
    /// A connection could not be accepted for lack of descriptors or memory.
    AcceptFailed = "accept_failed",
    /// A bulk query was refused at the limit of bulk queries.
    BulkLimitReached = "bulk_limit_reached",
    /// A bulk response to a slow client was aborted in favour of another one.
    BulkEvicted = "bulk_evicted",
    /// A request was denied access.
    AccessDenied = "access_denied",
    /// A request exceeded a rate limit or the limit of wrong passwords.
    AccessLimited = "access_limited",
    /// A password was hashed and matches.
    PasswordVerified = "password_verified",
    /// A path was uploaded.
    PathUploaded = "path_uploaded",
    /// A path was uploaded once more with another NAR, which was discarded.
    UploadConflict = "upload_conflict",
    /// An upload was refused.
    UploadRefused = "upload_refused",
    /// The ID token of a CI job was exchanged for a token.
    IdTokenExchanged = "id_token_exchanged",
    /// An ID token was refused, or could not be verified.
    IdTokenRefused = "id_token_refused",
    /// An uploaded file was missing or had a wrong length.
    FileLost = "file_lost",
    /// The storage could not be read or written.
    StorageFailed = "storage_failed",
    /// An upstream cache did not answer and is not asked until it does.
    UpstreamDown = "upstream_down",
    /// An upstream cache has sent something that is not passed on.
    UpstreamFault = "upstream_fault",
    /// A path of an upstream cache was passed on, but not kept.
    NotKept = "upstream_not_kept",
    /// A handler panicked.
    Panicked = "panicked",
    /// Any other event of the engine.
    Other = "other",
}

/// The values of all [`Count`]s, shared by all threads.
#[derive(Debug)]
pub(super) struct Counts([AtomicU64; Count::ALL.len()]);

impl Default for Counts {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; Count::ALL.len()])
    }
}

impl Counts {
    pub(super) fn add(&self, count: Count) {
        if let Some(number) = self.0.get(count as usize) {
            number.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns all counters with their names, including zeros.
    pub(super) fn all(&self) -> Vec<(&'static str, u64)> {
        let numbers = self.0.iter().map(|number| number.load(Ordering::Relaxed));
        let names = Count::ALL.iter().map(|(_, name)| *name);
        names.zip(numbers).collect()
    }
}

/// Writes `name=number` for each counter that is not zero, or `none`.
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
            "" => f.write_str("none"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_numbers_and_names() {
        for (index, (count, _)) in Count::ALL.iter().enumerate() {
            assert_eq!(index, *count as usize);
        }
        let counts = Counts::default();
        assert_eq!(counts.to_string(), "none");
        counts.add(Count::Other);
        counts.add(Count::PathQuarantined);
        counts.add(Count::PathQuarantined);
        assert_eq!(counts.to_string(), "path_quarantined=2 other=1");
    }
}
