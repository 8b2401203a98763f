//! Limits the files that all readers of the process open for read-ahead.
//!
//! A reader holds up to 64 descriptors for read-ahead. A hundred readers on a cold disk would
//! exhaust the process's descriptors, which connections need too: so all read-ahead together gets a
//! quarter of the limit. Readers that get none read one file at a time.

use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

use rustix::process::Resource;

use super::reservation::Reservation;

/// Assumed limit of open descriptors if the process has none.
const UNLIMITED: u64 = 65_536;

static RESERVED: AtomicUsize = AtomicUsize::new(0);

/// Reserves `count` descriptors for read-ahead; returns `None` if fewer are left.
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
