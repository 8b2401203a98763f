//! How often what an operator may want to know has happened since the start.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Something that is counted. Its name is what the log says, and stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    /// A download or listing broke because its path was collected, or registered anew, meanwhile.
    CollectedUnderWay,
    /// A narinfo, or some in one piece of an answer, was sent though its path was not held.
    AnnouncedUnheld,
    /// A NAR was sent from files though its path was not held.
    SentUnheld,
    /// Holding paths against garbage collection began to fail.
    HoldFailed,
    /// As many paths were held as may be.
    HoldFull,
    /// A path was held against garbage collection.
    Held,
    /// The files of a path were found not to be what its row says.
    Damaged,
    /// The bytes of a path were hashed and found right.
    Verified,
    /// The files of a damaged path were changed, or found right.
    Mended,
    /// Something was asked about a damaged path.
    KeptOut,
    /// A path could not be served for another reason of its own.
    PathFailed,
    /// The store began to fail as a whole.
    StoreFailed,
    /// A response was cut off, or became a 503, because its body failed.
    BodyFailed,
    /// A peer broke the protocol or a limit of a request.
    Refused,
    /// A peer read or wrote too slowly.
    TooSlow,
    /// A TLS handshake failed.
    HandshakeFailed,
    /// A connection that waited for its client was closed for a new one, at the limit of them.
    GaveWay,
    /// A new connection found that limit reached, and none that could be closed.
    ConnectionsFull,
    /// A request found the queue to the workers full.
    WorkersFull,
    /// No connection could be accepted, for want of descriptors or memory.
    AcceptFailed,
    /// An answer of many narinfos was refused, because too many paths were on their way.
    ListsFull,
    /// Such an answer gave way to another one, because its client read slowly.
    ListGaveWay,
    /// A request was not let in.
    AccessDenied,
    /// A request was refused because its client asks too often, or guesses passwords.
    AccessLimited,
    /// A password was hashed and found right.
    PasswordVerified,
    /// A handler panicked.
    Panicked,
    /// Anything else that the engine reports.
    Other,
}

impl Count {
    const ALL: [(Self, &'static str); 27] = [
        (Self::CollectedUnderWay, "collected_under_way"),
        (Self::AnnouncedUnheld, "announced_unheld"),
        (Self::SentUnheld, "sent_unheld"),
        (Self::HoldFailed, "hold_failed"),
        (Self::HoldFull, "hold_full"),
        (Self::Held, "held"),
        (Self::Damaged, "damaged"),
        (Self::Verified, "verified"),
        (Self::Mended, "mended"),
        (Self::KeptOut, "kept_out"),
        (Self::PathFailed, "path_failed"),
        (Self::StoreFailed, "store_failed"),
        (Self::BodyFailed, "body_failed"),
        (Self::Refused, "refused"),
        (Self::TooSlow, "too_slow"),
        (Self::HandshakeFailed, "handshake_failed"),
        (Self::GaveWay, "gave_way"),
        (Self::ConnectionsFull, "connections_full"),
        (Self::WorkersFull, "workers_full"),
        (Self::AcceptFailed, "accept_failed"),
        (Self::ListsFull, "lists_full"),
        (Self::ListGaveWay, "list_gave_way"),
        (Self::AccessDenied, "access_denied"),
        (Self::AccessLimited, "access_limited"),
        (Self::PasswordVerified, "password_verified"),
        (Self::Panicked, "panicked"),
        (Self::Other, "other"),
    ];
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
        let names = Count::ALL.into_iter().map(|(_, name)| name);
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
        for (index, (count, _)) in Count::ALL.into_iter().enumerate() {
            assert_eq!(index, count as usize);
        }
        let counts = Counts::default();
        assert_eq!(counts.to_string(), "nothing");
        counts.add(Count::Other);
        counts.add(Count::Damaged);
        counts.add(Count::Damaged);
        assert_eq!(counts.to_string(), "damaged=2 other=1");
    }
}
