//! How many files all readers of the process together may open ahead.
//!
//! A reader that looks ahead holds up to 64 descriptors. A hundred of them on a cold disk would use
//! up what the process may have, and then every connection would suffer: so together they get a
//! quarter of it, and the ones that come too late read one file after another.

use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

use rustix::process::Resource;

use super::reservation::Reservation;

/// Descriptors a process has when nothing limits it, for the purpose of dividing them.
const UNLIMITED: u64 = 65_536;

static RESERVED: AtomicUsize = AtomicUsize::new(0);

/// The right to open `count` files ahead, unless too many are reserved already.
pub(super) fn reserve(count: usize) -> Option<Reservation> {
    let mut reservation = Reservation::empty(&RESERVED);
    reservation.try_grow(count, limit()).then_some(reservation)
}

fn limit() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let limit = rustix::process::getrlimit(Resource::Nofile).current;
        usize::try_from(limit.unwrap_or(UNLIMITED).min(UNLIMITED) / 4).unwrap_or_default()
    })
}
